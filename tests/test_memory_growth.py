"""Workloads whose sizes change all the time: after each size was seen once, nothing more is asked of the device."""

import pytest

pytestmark = pytest.mark.slow

POOLS = {
    "cached": {"setup": ""},
    "expandable": {"setup": "torch.npu.memory._set_allocator_settings('expandable_segments:True')"},
    "one range": {"setup": "pool = torch_npu.VMMemoryPool(size_gb=8)"},
}

PRELUDE = """
import random, torch, torch_npu
{setup}
random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
torch.autograd.set_multithreading_enabled(False)

def asked():
    stats = torch.npu.memory_stats()
    return stats["reserved_bytes.all.current"], stats["num_device_alloc"], stats["num_alloc_retries"]
"""


@pytest.mark.parametrize("pool", POOLS)
def test_random_batches(run_python, pool):
    """1,000 training steps with batches of 1 to 32."""
    run_python(
        PRELUDE.format(**POOLS[pool])
        + """
model = torch.nn.Sequential(torch.nn.Linear(32, 200), torch.nn.ReLU(), torch.nn.Linear(200, 3)).to("npu")
inputs = torch.randn(32, 64, 32).to("npu")

def step(batch):
    model(inputs[:batch]).square().mean().backward()
    model.zero_grad()

for batch in range(32, 0, -1):
    step(batch)
before = asked()
for _ in range(1000):
    step(random.randint(1, 32))
assert asked() == before
"""
    )


@pytest.mark.parametrize("pool", POOLS)
def test_a_growing_cache(run_python, pool):
    """Keys and values that grow by one token a step, 1,000 times: the second sequence finds the memory of the first."""
    run_python(
        PRELUDE.format(**POOLS[pool])
        + """
def decode():
    keys = values = torch.zeros(1, 4, 0, 64, device="npu")
    for position in range(1000):
        token = torch.full((1, 4, 1, 64), float(position), device="npu")
        keys, values = torch.cat((keys, token), 2), torch.cat((values, -token), 2)
    return keys, values

expected = torch.arange(1000.0).repeat_interleave(64).view(1, 1, 1000, 64).expand(1, 4, 1000, 64)
keys, values = decode()
del keys, values
before = asked()
keys, values = decode()
assert asked() == before
assert torch.equal(keys.cpu(), expected) and torch.equal(values.cpu(), -expected)
"""
    )
