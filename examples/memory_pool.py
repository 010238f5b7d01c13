"""One reserved range of device memory serves a model at batch 1 and 32; then it is filled until it is full."""

import torch

import torch_npu

torch.manual_seed(0)
vmm_pool = torch_npu.VMMemoryPool(size_gb=32)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64 * 56 * 56, 10)
).to("npu")
with torch.no_grad():
    for batch in (1, 32, 1, 32):
        model(torch.randn(batch, 3, 56, 56).to("npu"))
        print(f"batch {batch:2}: {vmm_pool.stats()}")
del model
vmm_pool.close()

torch.npu.memory._record_memory_history("state", context="state", stacks="python")
with torch_npu.VMMemoryPool(size_gb=1) as small_pool:
    weights = torch.zeros(150, 1024, 1024, device="npu")
    cache = [torch.zeros(20, 1024, 1024, device="npu") for _ in range(4)]
    try:
        cache.append(torch.zeros(100, 1024, 1024, device="npu"))
    except torch.OutOfMemoryError as error:
        print(f"\n{error}\n")
    del weights, cache
    print(small_pool.stats())
