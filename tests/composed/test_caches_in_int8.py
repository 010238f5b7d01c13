"""Splits, norms and rotations that end in caches (torch_npu/composed/quantized_caches.py, compressed_keys.py)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
D = 8


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos.double() + torch.cat((-x[..., D // 2 :], x[..., : D // 2]), -1) * sin.double()


def int8(x: Tensor) -> Tensor:
    return x.round().clamp(-128, 127)


@DEVICES
@DTYPES
@pytest.mark.parametrize("mode", ["contiguous", "page"])
@pytest.mark.parametrize("sums", [False, True])
def test_rotated_keys_are_cached(device, dtype, mode, sums):
    b, s, nq, nk = 2, 3, 4, 2
    splits = [nq * D, nk * D, nk * D]
    cos, sin = (torch.randn(b, s, 1, D).to(dtype) for _ in range(2))
    scales, offsets = [torch.rand(D) * 20 for _ in range(2)], [torch.randn(D) * 3 for _ in range(2)]
    extra = {}
    if sums:
        x = torch.randint(-200, 200, (b, s, sum(splits))).int()
        extra = {"weight_scale": torch.rand(sum(splits)) / 50, "activation_scale": torch.rand(b * s)}
        bias = torch.randint(-9, 9, (sum(splits),)).int()
        wide = (x.double() + bias) * extra["weight_scale"] * extra["activation_scale"].view(b, s, 1)
        extra["bias"] = bias
    else:
        x = torch.randn(b, s, sum(splits)).to(dtype)
        wide = x.double()
    q, k, v = (t.unflatten(-1, (-1, D)) for t in wide.split(splits, -1))
    q, k = rotated(q, cos, sin), rotated(k, cos, sin)
    caches = [torch.zeros(3, 4, nk, D, dtype=torch.int8) for _ in range(2)]
    indices = torch.tensor([7, 2, 11, 4, 0, 9]) if mode == "page" else torch.tensor([1, 0])
    expected = [c.clone().double() for c in caches]
    for cache, rows, scale, offset in zip(expected, (k, v), scales, offsets, strict=True):
        made = int8(rows * scale.double() + offset.double())
        for i in range(b):
            for j in range(s):
                if mode == "page":
                    cache.view(-1, nk, D)[indices[i * s + j]] = made[i, j]
                else:
                    cache[i, indices[i] + j] = made[i, j]
    function = torch_npu.npu_dequant_rope_quant_kvcache if sums else torch_npu.npu_rope_quant_kvcache
    given = [t.to(device) for t in (x, cos, sin, *caches, indices.int(), *scales)]
    results = function(
        *given, splits, offset_k=offsets[0].to(device), offset_v=offsets[1].to(device), kv_output=True,
        cache_mode=mode, **{n: t.to(device) for n, t in extra.items()},
    )  # fmt: skip
    for actual, reference in zip(results[:3], (q, k, v), strict=True):
        assert actual.dtype == dtype
        assert_close(actual, reference, atol=torch.finfo(dtype).eps * 4)
    for actual, cache, reference in zip(results[3:], given[3:5], expected, strict=True):
        assert actual.data_ptr() == cache.data_ptr()
        assert_close(actual.float(), reference, atol=1)
    assert function(*given, splits, **{n: t.to(device) for n, t in extra.items()}, cache_mode=mode)[1].numel() == 0


@DEVICES
@DTYPES
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("every", [False, True])
def test_normed_heads_are_cached(device, dtype, quantized, every):
    b, s, heads, width = 2, 3, [4, 2, 2], 32
    blocks, size = 3, 4
    qkv, gammas = torch.randn(b * s, 8 * width).to(dtype), [torch.randn(width).to(dtype) for _ in range(2)]
    cos, sin = (torch.randn(b if every else b * s, width).to(dtype) for _ in range(2))
    index = torch.tensor([7, -1, 11, 4, -1, 0])
    kind = torch.int8 if quantized else dtype
    caches = [torch.full((blocks, n, size, width), 3).to(kind) for n in heads[1:]]
    scales = [torch.rand(n, width) / 20 + 0.02 for n in heads[1:]] if quantized else [None, None]
    wide_cos, wide_sin = (
        t.double().view(b, -1, 1, width).expand(b, s, 1, width).reshape(-1, 1, width) for t in (cos, sin)
    )
    parts = [t.double() for t in qkv.view(b * s, 8, width).split(heads, 1)]
    for number, gamma in enumerate(gammas):
        normed = parts[number] / (parts[number].square().mean(-1, keepdim=True) + 1e-6).sqrt() * gamma.double()
        turned = torch.cat((-normed[..., width // 2 :], normed[..., : width // 2]), -1)
        parts[number] = normed * wide_cos + turned * wide_sin
    out = torch.zeros(b * s, heads[0] * width, dtype=dtype)
    given = [t.to(device) for t in (qkv, *gammas, cos, sin, index, out, *caches)]
    options = {n: None if t is None else t.to(device) for n, t in zip(("k_scale", "v_scale"), scales, strict=True)}
    functional = torch_npu.npu_qkv_rms_norm_rope_cache_functional(
        *given, [b, s, 8, width], heads, is_output_qkv=True, **options
    )
    assert not given[6].any()
    results = torch_npu.npu_qkv_rms_norm_rope_cache(*given, [b, s, 8, width], heads, is_output_qkv=True, **options)
    for a, c in zip(functional, (*results, *given[6:]), strict=True):
        assert torch.equal(a, c)
    eps = torch.finfo(dtype).eps
    for actual, reference in zip(results, parts, strict=True):
        assert_close(actual, reference.flatten(1), atol=eps * 8)
    assert torch.equal(given[6], results[0])
    for cache, rows, scale, old in zip(given[7:], parts[1:], scales, caches, strict=True):
        expected = old.double()
        made = rows if scale is None else int8(rows / scale.double())
        for row, slot in enumerate(index.tolist()):
            if slot >= 0:
                expected[slot // size, :, slot % size] = made[row]
        assert_close(cache.float(), expected, atol=1 if quantized else eps * 8)
    nowhere = torch_npu.npu_qkv_rms_norm_rope_cache_functional(
        *given[:5], torch.full_like(given[5], -1), *given[6:], [b, s, 8, width], heads, **options
    )
    assert torch.equal(nowhere[4], given[7])


@DEVICES
@DTYPES
def test_last_block_is_compressed(device, dtype):
    block, stride, page = 4, 2, 8
    pages, weight = torch.randn(5, page, 3, D).to(dtype), torch.randn(block, 3).to(dtype)
    table, lengths = torch.tensor([[4, 1], [0, 3], [2, 2]]), [10, 5, 4]
    slots, cache = torch.tensor([5, 1, 2]), torch.zeros(6, 3, D).to(dtype)
    expected = cache.double()
    for number in (0, 2):
        places = range(lengths[number] - block, lengths[number])
        tokens = torch.stack([pages[table[number, t // page], t % page] for t in places]).double()
        expected[slots[number]] = (tokens * weight.double()[..., None]).sum(0)
    given = [t.to(device) for t in (pages, weight, slots.int())]
    target = cache.to(device)
    made = torch_npu.npu_nsa_compress_infer(
        *given, block, stride, page, block_table=table.int().to(device), actual_seq_len=lengths, cache=target
    )
    assert made is target
    assert_close(target, expected, terms=block, atol=torch.finfo(dtype).eps * 8)


X, C, I1, S = torch.zeros(1, 1, 24), torch.zeros(1, 2, 1, D, dtype=torch.int8), torch.zeros(1).int(), torch.zeros(D)
REFUSED = {
    "mode": (
        ValueError, "cache_mode", lambda f: f(X, X[..., :D], X[..., :D], C, C, I1, S, S, [D, D, D], cache_mode="other")
    ),
    "quantization": (
        NotImplementedError, "quant_mode=1",
        lambda f: f(X, X[..., :D], X[..., :D], C, C, I1, S, S, [D, D, D], quant_mode=1),
    ),
    "splits": (ValueError, "size_splits", lambda f: f(X, X[..., :D], X[..., :D], C, C, I1, S, S, [D, D, D - 1])),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    error, message, call = REFUSED[case]
    with pytest.raises(error, match=message):
        call(torch_npu.npu_rope_quant_kvcache)


def test_refused_dtypes():
    with pytest.raises(ValueError, match="x in int32"):
        torch_npu.npu_dequant_rope_quant_kvcache(X, X, X, C, C, I1, S, S, [D, D, D])
    with pytest.raises(ValueError, match="block_table"):
        torch_npu.npu_nsa_compress_infer(C.float(), torch.zeros(2, 1), I1, 2, 1, 2, cache=S)
