"""Operators of Ascend's transformer library: attention of packed sequences, rotary embedding, caches and products."""

from __future__ import annotations

import pytest
import torch
from tolerance import assert_close, tolerance
from torch import Tensor

import torch_npu

LENGTHS, HEADS, KEY_HEADS, SIZE = [7, 1, 30], 6, 2, 16
HALVES = (torch.float16, torch.bfloat16)


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """In float64, of one sequence: [tokens, heads, size]."""
    group = query.shape[1] // key.shape[1]
    q, k, v = (t.double().transpose(0, 1) for t in (query, *(t.repeat_interleave(group, 1) for t in (key, value))))
    scores = q @ k.transpose(1, 2) * SIZE**-0.5
    if mask is not None:
        scores = scores + mask.double()
    return (scores.softmax(-1) @ v).transpose(0, 1)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("masks", [0, 1, 3])
def test_attention_of_packed_sequences(dtype: torch.dtype, flat: bool, masks: int) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(sum(LENGTHS), h, SIZE).to(dtype) for h in (HEADS, KEY_HEADS, KEY_HEADS))
    longest = max(LENGTHS)
    mask = torch.full((longest, longest), -10000.0).triu(1).to(dtype) if masks else None
    if masks > 1:
        mask = torch.stack([mask, torch.zeros_like(mask), mask.flip(1).triu(2)])
    parts = zip(*(t.split(LENGTHS) for t in (query, key, value)), strict=True)
    wanted = []
    for number, (q, k, v) in enumerate(parts):
        own = mask if masks < 2 else mask[number]
        wanted.append(attention(q, k, v, None if own is None else own[: len(q), : len(q)]))
    there = [t.npu().flatten(1) if flat else t.npu() for t in (query, key, value)]
    out = torch.zeros_like(there[0])
    rest = (torch.tensor(LENGTHS, dtype=torch.int32), SIZE**-0.5, HEADS, KEY_HEADS, out)
    if mask is None:
        torch_npu._npu_flash_attention_unpad(*there, *rest)
    else:
        torch_npu._npu_flash_attention(*there, mask.npu(), *rest)
    limit = tolerance(dtype).relative  # of values near 1, which weights in dtype sum to numbers near 0
    torch.testing.assert_close(out.view(-1, HEADS, SIZE).cpu().double(), torch.cat(wanted), rtol=limit, atol=limit)


@pytest.mark.parametrize("neox", [False, True])
@pytest.mark.parametrize("turned", [SIZE, SIZE // 2])
def test_rotary_embedding_turns_in_place(turned: int, neox: bool) -> None:
    torch.manual_seed(0)
    positions, tokens = torch.tensor([[3, 0, 9], [9, 8, 1]]), 6
    angles = torch.rand(10, turned // 2)
    table = torch.cat((angles.cos(), angles.sin()), -1)
    tensors = [torch.randn(tokens, h * SIZE) for h in (HEADS, KEY_HEADS)]
    there = [t.npu() for t in tensors]
    torch_npu._npu_rotary_embedding(positions.npu(), *there, SIZE, table.npu(), neox)
    for ours, given in zip(there, tensors, strict=True):
        heads = given.view(tokens, -1, SIZE).double().clone()
        pairs = [(i, i + turned // 2) if neox else (2 * i, 2 * i + 1) for i in range(turned // 2)]
        turn = angles[positions.flatten()].double()
        for i, (a, b) in enumerate(pairs):
            cos, sin = turn[:, i : i + 1].cos(), turn[:, i : i + 1].sin()
            x, y = heads[..., a].clone(), heads[..., b].clone()
            heads[..., a], heads[..., b] = x * cos - y * sin, y * cos + x * sin
        assert_close(ours.view(tokens, -1, SIZE), heads.float(), terms=4)


def test_quantization_of_tensors() -> None:
    x = torch.tensor([[-300.0, -1.5, -0.5, 0.5], [1.5, 2.5, 90.0, 7.0]]).half()
    scale, zero_point = torch.tensor([1.0, 1.0, 1.0, 0.5]).half(), torch.tensor([1, -1, 0, 2], dtype=torch.int8)
    for offset in (zero_point, torch.empty(0, dtype=torch.int8)):
        y = torch.zeros(2, 4, dtype=torch.int8).npu()
        torch_npu._npu_quantize_per_tensor(x.npu(), scale.npu(), offset.npu(), y)
        wanted = (x / scale).round() + (offset if offset.numel() else 0)
        assert torch.equal(y.cpu(), wanted.clamp(-128, 127).to(torch.int8))


def test_cache_of_one_tensor() -> None:
    key, cache = torch.randn(3, 2, 8), torch.zeros(4, 16, 2, 8)
    slots = torch.tensor([17, 0, 63], dtype=torch.int32)
    there = cache.npu()
    torch_npu._npu_reshape_and_cache_siso(key.npu(), there, slots.npu())
    cache.view(64, 2, 8)[slots.long()] = key
    assert torch.equal(there.cpu(), cache)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_products_are_added_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight, c = torch.randn(50, 33).to(dtype), torch.randn(50, 17).to(dtype), torch.randn(33, 17)
    there = c.npu()
    torch_npu._npu_matmul_add_fp32(x.npu(), weight.npu(), there)
    assert_close(there, (c.double() + x.double().t() @ weight.double()).float(), terms=50)


def test_refusals() -> None:
    x = torch.randn(5, HEADS, SIZE).half().npu()
    lengths = torch.tensor([3, 4])
    with pytest.raises(ValueError, match="as many tokens as seq_len says"):
        torch_npu._npu_flash_attention_unpad(x, x, x, lengths, 1.0, HEADS, HEADS, torch.empty_like(x))
    with pytest.raises(ValueError, match=r"expected \[tokens, 7, size\]"):
        torch_npu._npu_flash_attention_unpad(x, x, x, lengths, 1.0, 7, 7, torch.empty_like(x))
    with pytest.raises(ValueError, match="y must be int8"):
        torch_npu._npu_quantize_per_tensor(x, x, x, x)
    with pytest.raises(ValueError, match="an even number of columns"):
        torch_npu._npu_rotary_embedding(torch.zeros(5).long().npu(), x, x, SIZE, torch.zeros(1, 17).npu(), True)
    with pytest.raises(TypeError, match="c must be float32"):
        torch_npu._npu_matmul_add_fp32(x[:, 0], x[:, 0], x[:, 0])
