"""Copies between layouts: transposes, channels that move, batches of them, and strides that are neither."""

from __future__ import annotations

import itertools

import pytest
import torch

DTYPES = (torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.int8, torch.complex64)


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(-99, 99, shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(65, 130), (3, 40, 70), (2, 9, 33, 17), (2, 3, 11, 8, 19)], ids=str)
def test_every_permutation(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain, wide = numbers(shape, dtype), numbers((*shape[:-1], shape[-1] + 3), dtype)[..., : shape[-1]]
    gaps = numbers((shape[0], 2 * shape[1], *shape[2:]), dtype)[:, ::2]
    for source in (plain, wide, gaps):
        there = source.npu()
        for order in itertools.permutations(range(len(shape))):
            assert torch.equal(there.permute(order).contiguous().cpu(), source.permute(order))
            into = torch.empty(source.permute(order).shape, dtype=dtype, device="npu")
            into.permute(order).copy_(there.permute(order).permute(order))
            assert torch.equal(into.permute(order).cpu(), source.permute(order).permute(order))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_channels_move(dtype: torch.dtype) -> None:
    image = numbers((3, 20, 31, 33), dtype)
    last = image.npu().contiguous(memory_format=torch.channels_last)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last.cpu(), image)
    assert torch.equal(last.contiguous().cpu(), image)
