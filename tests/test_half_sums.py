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


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("index", [torch.tensor([1, -1, 1, 2]), torch.tensor([[0, 1], [1, -2]]), torch.tensor(1)])
def test_index_put_along_one_dimension(dim: int, index: Tensor) -> None:
    x = torch.randn(3, 3, 3, dtype=torch.bfloat16)
    where = (slice(None),) * dim + (index,)
    values = torch.randn(x[where].shape, dtype=torch.bfloat16)
    for given in (values, values[..., :1], torch.tensor(0.5, dtype=torch.bfloat16)):
        expected, actual = x.double(), x.npu()
        indices = [*[None] * dim, index]
        torch.ops.aten.index_put_(expected, indices, given.double(), True)
        torch.ops.aten.index_put_(actual, [*[None] * dim, index.npu()], given.npu(), True)
        assert torch.equal(actual.cpu(), expected.to(torch.bfloat16))
    with pytest.raises(RuntimeError, match="out of bounds for dimension"):
        torch.ops.aten.index_put_(x.npu(), [*[None] * dim, (index + 3).npu()], values.npu(), True)


@pytest.mark.parametrize("options", [{}, {"padding_idx": 3}, {"padding_idx": -1}, {"scale_grad_by_freq": True}])
def test_gradients_of_embeddings(options: dict[str, int]) -> None:
    words = torch.tensor([[3, 1, 3], [0, 6, 3]])
    wide = torch.randn(7, 5).half().double().requires_grad_()
    table = wide.detach().half().npu().requires_grad_()
    grad = torch.randn(2, 3, 5).half()
    F.embedding(words, wide, **options).backward(grad.double())
    F.embedding(words.npu(), table, **options).backward(grad.npu())
    assert table.grad is not None
    assert wide.grad is not None
    torch.testing.assert_close(table.grad.cpu().double(), wide.grad, rtol=2**-11, atol=1e-6)
