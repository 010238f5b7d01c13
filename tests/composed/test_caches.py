"""Caches of keys and values (torch_npu/composed/caches.py)."""

import pytest
import torch

import torch_npu

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randint(-9, 9, shape).to(dtype)


@pytest.mark.parametrize("device", ["cpu", "npu"])
@DTYPES
@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("offset", [None, [4, 0, 8]])
def test_pages_are_read(device, dtype, cumulative, offset):
    keys, values = numbers(dtype, 6, 4, 2, 3), numbers(dtype, 6, 4, 2, 5)
    tables = torch.tensor([[3, 0, 5], [1, -1, 9], [2, 4, 0]], dtype=torch.int32)
    lengths = [5, 9, 2]
    seq_lens = torch.tensor([0, 5, 14, 16] if cumulative else lengths, dtype=torch.int32)
    key, value = numbers(dtype, 18, 2, 3), numbers(dtype, 18, 2, 5)  # two rows more than tokens
    expected = [key.clone(), value.clone()]
    row = 0
    for i, length in enumerate(lengths):
        for j in range(length):
            column = (offset[i] // 4 if offset else 0) + j // 4
            block = int(tables[i, column]) if column < 3 else -1
            for target, cache in zip(expected, (keys, values), strict=True):
                target[row] = cache[block, j % 4] if 0 <= block < 6 else 0
            row += 1
    given = [t.to(device) for t in (keys, values, tables, seq_lens)]
    targets = [t.to(device, copy=True) for t in (key, value)]
    options = {
        "seq_offset": torch.tensor(offset, dtype=torch.int32, device=device) if offset else None,
        "is_seq_lens_cumsum": cumulative,
    }
    made = torch_npu.npu_gather_pa_kv_cache_functional(*given, *targets, **options)
    assert all(torch.equal(a.cpu(), e) for a, e in zip(made, expected, strict=True))
    assert torch.equal(targets[0].cpu(), key)
    torch_npu.npu_gather_pa_kv_cache(*given, *targets, **options)
    assert all(torch.equal(a.cpu(), e) for a, e in zip(targets, expected, strict=True))


@DTYPES
def test_pages_are_written(dtype):
    key, value, slots = numbers(dtype, 5, 2, 16), numbers(dtype, 5, 2, 16), torch.tensor([7, -1, 0, 11, 3])
    caches = [numbers(dtype, 3, 4, 2, 16) for _ in range(2)]
    expected = [c.clone() for c in caches]
    for i, slot in enumerate(slots.tolist()):
        if slot >= 0:
            for target, rows in zip(expected, (key, value), strict=True):
                target[slot // 4, slot % 4] = rows[i]
    on_device = [c.npu() for c in caches]
    made = torch_npu.npu_scatter_pa_kv_cache_functional(
        key.npu(), value.npu(), *on_device, slots.npu(), cache_mode="Norm"
    )
    assert all(torch.equal(a.cpu(), e) for a, e in zip(made, expected, strict=True))
    assert all(torch.equal(a.cpu(), c) for a, c in zip(on_device, caches, strict=True))
    assert torch_npu.npu_scatter_pa_cache(key.npu(), slots.npu(), key_cache=on_device[0]) is on_device[0]
    assert torch.equal(on_device[0].cpu(), expected[0])


def test_latent_caches():
    caches = torch.zeros(2, 1, 9, 16).npu(), torch.zeros(2, 1, 9, 32).npu()
    angles = torch.randn(2, 1, 3, 8).repeat(1, 1, 1, 2)
    index = torch.stack([torch.randperm(9)[:3] for _ in range(2)]).npu()
    given = [t.npu() for t in (torch.randn(2, 1, 3, 48), torch.randn(32), angles.cos(), angles.sin())]
    made = torch_npu.npu_kv_rmsnorm_rope_cache_v2_functional(*given, index, *caches, is_output_kv=True)
    assert not any(c.any() for c in caches)
    results = torch_npu.npu_kv_rmsnorm_rope_cache_v2(*given, index, *caches, is_output_kv=True)
    for actual, expected in zip(made, (*results, *caches), strict=True):
        assert torch.equal(actual, expected)


C, K, T, L = torch.zeros(2, 4, 1, 8), torch.zeros(3, 1, 8), torch.zeros(1, 2).int(), torch.tensor([3])
REFUSED = {
    "caches": (lambda: torch_npu.npu_gather_pa_kv_cache(C, C, T, L, K, K[0]), r"caches \[blocks"),
    "lengths": (lambda: torch_npu.npu_gather_pa_kv_cache(C, C, T, L, K, K, is_seq_lens_cumsum=True), r"\[B \+ 1\]"),
    "offset": (lambda: torch_npu.npu_gather_pa_kv_cache(C, C, T, L, K, K, seq_offset=T), r"seq_offset \[B\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()
