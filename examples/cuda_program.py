"""A training loop that was written for CUDA and knows nothing of npu: run it with TORCH_TRANSFER_TO_NPU=1."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for _ in range(20):
    x = torch.randn(128, 64, device=device)
    y = torch.randint(0, 10, (128,)).cuda(non_blocking=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
torch.cuda.synchronize()
peak = torch.cuda.max_memory_allocated() / 2**20
print(f"{torch.cuda.get_device_name()}: loss {loss.item():.3f}, {peak:.1f} MiB at most")
