"""What the operators of a small model cost: on the CPU, which launches them, and on npu, which runs them."""

import torch
from torch import nn

import torch_npu

model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.LayerNorm(512)).to("npu")
x = torch.randn(256, 512, device="npu")
model(x).sum().backward()  # the first call also looks operators up
with torch_npu.profiler.profile(profile_memory=True) as profile:
    for _ in range(10):
        model(x).sum().backward()
profile.export_chrome_trace("trace.json")  # for https://ui.perfetto.dev

print(f"{'operator':36} calls   CPU ms   NPU ms  NPU MiB")
operators = [e for e in profile.key_averages() if e.key.startswith("aten::") and e.self_device_time_total > 0]
for e in sorted(operators, key=lambda e: -e.self_device_time_total)[:6]:
    cpu, npu, memory = e.self_cpu_time_total / 1e3, e.self_device_time_total / 1e3, e.self_device_memory_usage / 2**20
    print(f"{e.key:36} {e.count:5} {cpu - npu:8.2f} {npu:8.2f} {memory:8.1f}")
