"""Sums of 16-bit numbers into one place are made in float32 and rounded once, as on the NPU's own units."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torch_npu  # noqa: F401

COUNT = 512
PLACES = torch.zeros(COUNT, dtype=torch.int64)


def gradient(function: Callable[[Tensor, Tensor], Tensor], rows: int = 2) -> Callable[[Tensor, Tensor], Tensor]:
    def of(source: Tensor, places: Tensor) -> Tensor:
        x = torch.zeros(rows, 4, dtype=source.dtype, device=source.device, requires_grad=True)
        function(x, places).backward(source)
        assert x.grad is not None
        return x.grad[0]

    return of


def zeros(source: Tensor) -> Tensor:
    return torch.zeros(2, 4, dtype=source.dtype, device=source.device)


SUMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index_put_": lambda s, p: zeros(s).index_put_((p,), s, accumulate=True)[0],
    "index_add": lambda s, p: zeros(s).index_add(0, p, s)[0],
    "index_add of one dimension": lambda s, p: torch.stack(
        [zeros(s)[:, i].contiguous().index_add(0, p, s[:, i].contiguous())[0] for i in range(4)]
    ),
    "scatter_add": lambda s, p: zeros(s).scatter_add(0, p[:, None].expand(-1, 4), s)[0],
    "put_": lambda s, p: torch.stack([zeros(s).put_(p, s[:, i].contiguous(), accumulate=True)[0, 0] for i in range(4)]),
    "index_reduce": lambda s, p: zeros(s).index_reduce(0, p, s, "mean", include_self=False)[0] * COUNT,
    "segment_reduce": lambda s, p: torch.segment_reduce(s, "sum", lengths=p[:1] + COUNT)[0],
    "embedding": gradient(lambda x, p: F.embedding(p, x)),
    "embedding_bag": gradient(lambda x, p: F.embedding_bag(p[:, None], x, mode="sum")),
    "index": gradient(lambda x, p: x[p]),
    "index_select": gradient(lambda x, p: x.index_select(0, p)),
    "gather": gradient(lambda x, p: x.gather(0, p[:, None].expand(-1, 4))),
    "repeat_interleave": gradient(lambda x, p: x.repeat_interleave(COUNT, 0), rows=1),
    "repeat_interleave by a tensor": gradient(lambda x, p: x.repeat_interleave(p[:1] + COUNT, 0), rows=1),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", SUMS)
def test_sums_are_rounded_once(name: str, dtype: torch.dtype) -> None:
    source = torch.rand(COUNT, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    exact = source.double().sum(0)
    actual = SUMS[name](source.npu(), PLACES.npu()).cpu()
    assert actual.dtype == dtype
    assert ((actual.double() - exact).abs() <= torch.finfo(dtype).eps * exact).all(), (actual, exact)
