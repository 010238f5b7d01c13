"""Dtypes that CANN's operators lack, on operators of data of any kind: the CPU's kernels run, over the same bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

DTYPES = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e8m0fnu,
    torch.float8_e4m3fnuz,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.complex32,
]
MASK, INDEX = torch.tensor([True, False, True]), torch.tensor([0, 2])

CALLS: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "masked_select": lambda x, mask, index: torch.masked_select(x, mask),
    "nonzero": lambda x, mask, index: x.nonzero(),
    "index": lambda x, mask, index: x[index],
    "index by a mask": lambda x, mask, index: x[mask],
    "index_put_": lambda x, mask, index: x.clone().index_put_((index,), x[:2].clone()),
    "index_put_ of one value": lambda x, mask, index: x.clone().index_put_((mask,), x[0].clone()),
    "masked_fill_": lambda x, mask, index: x.clone().masked_fill_(mask, 1),
    "masked_fill_ by a tensor": lambda x, mask, index: x.clone().masked_fill_(mask, x[2]),
    "where": lambda x, mask, index: torch.where(mask, x, x.flip(0)),
    "where of a number": lambda x, mask, index: torch.where(mask, x, torch.zeros((), dtype=x.dtype)),
    "equal": lambda x, mask, index: torch.equal(x, x.clone()),
    "unique": lambda x, mask, index: torch.unique(x),
    "unique_consecutive": lambda x, mask, index: torch.unique_consecutive(x),
    "index_select": lambda x, mask, index: x.index_select(0, index),
    "gather": lambda x, mask, index: x.gather(0, index),
    "scatter_": lambda x, mask, index: x.clone().scatter_(0, index, x[:2].clone()),
    "cat": lambda x, mask, index: torch.cat([x, x]),
    "fill_": lambda x, mask, index: x.clone().fill_(1),
    "pad": lambda x, mask, index: F.pad(x, (1, 1)),
    "repeat_interleave": lambda x, mask, index: torch.repeat_interleave(x, 2),
    "to float32": lambda x, mask, index: x.float(),
    "text": lambda x, mask, index: repr(x).replace("device='npu:0', ", "").replace(", device='npu:0'", ""),
}


def numbers(result: object) -> object:
    if not isinstance(result, Tensor):
        return result
    dtype = torch.complex64 if result.is_complex() else torch.float64 if result.is_floating_point() else torch.int64
    return result.dtype, result.cpu().to(dtype).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_what_the_cpu_does_the_device_does(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, 0.0, 2.0]).to(dtype)
    try:
        expected = CALLS[name](x, MASK, INDEX)
    except (RuntimeError, NotImplementedError) as error:
        with pytest.raises(type(error)):
            CALLS[name](x.npu(), MASK.npu(), INDEX.npu())
    else:
        assert numbers(CALLS[name](x.npu(), MASK.npu(), INDEX.npu())) == numbers(expected)
