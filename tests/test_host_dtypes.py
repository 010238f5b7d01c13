"""32-bit indices and 16-bit numbers where PyTorch's CPU kernels, which the fallback runs, lack them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_close
from torch import Tensor

import torch_npu

INDEX = torch.tensor([3, 0, 2, 0], dtype=torch.int32)
TABLE = torch.arange(20.0).view(4, 5) / 7

INDEXED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "put_": lambda x, index: x.clone().put_(index, x[0, :4] * 2, accumulate=True),
    "take": torch.take,
    "index_copy": lambda x, index: x.index_copy(0, index[:2], x[:2] * 3),
    "index_copy_": lambda x, index: x.clone().index_copy_(0, index[:2], x[:2] * 3),
    "index_fill": lambda x, index: x.index_fill(1, index, 7),
    "index_fill_": lambda x, index: x.clone().index_fill_(1, index, x[1, 1]),
    "multi_margin_loss": F.multi_margin_loss,
    "multilabel_margin_loss": lambda x, index: F.multilabel_margin_loss(x[:, :4], index.expand(4, 4).contiguous()),
    "nll_loss": F.nll_loss,
    "nll_loss, each": lambda x, index: F.nll_loss(x, index, reduction="none", ignore_index=2),
    "nll_loss, one": lambda x, index: F.nll_loss(x[0], index[0], weight=x[1].detach()),
    "nll_loss, images": lambda x, index: F.nll_loss(x[None, :, :4, None], index[None, :, None]),
    "cross_entropy": lambda x, index: F.cross_entropy(x, index, weight=x[2].detach(), label_smoothing=0.1),
}


@pytest.mark.parametrize("name", INDEXED)
def test_indices_of_32_bits(name: str) -> None:
    call = INDEXED[name]
    expected = TABLE.clone().requires_grad_()
    actual = TABLE.npu().requires_grad_()
    want = call(expected, INDEX.long())
    got = call(actual, INDEX.npu())
    torch.testing.assert_close(got.cpu(), want)
    want.sum().backward()
    got.sum().backward()
    torch.testing.assert_close(actual.grad.cpu(), expected.grad)


HALVES: dict[str, Callable[[Tensor], Tensor]] = {
    "multi_margin_loss": lambda x: F.multi_margin_loss(x, INDEX.long().to(x.device)),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(x, torch.ones(4, 5, dtype=torch.int64).to(x.device)),
    "pdist": F.pdist,
    "inverse": lambda x: torch.inverse(x[:, :4]),
    "slow_conv_transpose2d": lambda x: torch._C._nn.slow_conv_transpose2d(x[None, None], x[None, None, :2, :2], 2),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", HALVES)
def test_halves_are_computed_in_float32_and_rounded_once(name: str, dtype: torch.dtype) -> None:
    call = HALVES[name]
    source = (torch.rand(4, 5, generator=torch.Generator().manual_seed(1)) * 2 - 1).to(dtype)
    wide = source.float().requires_grad_()
    half = source.npu().requires_grad_()
    want = call(wide)
    got = call(half)
    assert got.dtype == dtype
    assert torch.equal(got.cpu(), want.to(dtype))
    want.sum().backward()
    got.sum().backward()
    assert half.grad.dtype == dtype
    # Gradients read the rounded result.
    largest = wide.grad.abs().max().item()
    assert_close(
        half.grad.float(), wide.grad, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps * largest
    )


def test_given_outputs_keep_their_dtype() -> None:
    x = torch.eye(3, dtype=torch.float16).npu() * 4
    out, info = torch.empty(0, dtype=torch.float16).npu(), torch.empty(0, dtype=torch.int32).npu()
    result, code = torch.linalg.inv_ex(x, out=(out, info))
    assert result is out
    assert code is info
    assert torch.equal(out.cpu(), torch.eye(3, dtype=torch.float16) / 4)


def test_conversions_are_recorded() -> None:
    x, index = TABLE.npu(), INDEX.npu()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        taken = torch.take(x, index)
    x.copy_(TABLE * 2)
    index.copy_(INDEX.flip(0))
    graph.replay()
    torch.npu.synchronize()
    assert torch.equal(taken.cpu(), torch.take(TABLE * 2, INDEX.flip(0).long()))


def test_one_hot_of_32_bit_classes() -> None:
    assert torch.equal(F.one_hot(INDEX.npu()).cpu(), F.one_hot(INDEX.long()))
    assert torch.equal(F.one_hot(INDEX.long().npu(), 7).cpu(), F.one_hot(INDEX.long(), 7))
    with pytest.raises(RuntimeError, match="index tensor of type LongTensor"):
        F.one_hot(INDEX.short().npu())


def test_other_dtypes_stay_refused() -> None:
    with pytest.raises(RuntimeError, match="Expected a long tensor for index, but got Short"):
        torch.take(TABLE.npu(), INDEX.short().npu())


def test_the_report_names_the_operator() -> None:
    torch_npu.clear_fallback_report()
    torch.pdist(TABLE.npu().half())
    assert "aten::_pdist_forward" in {entry.op for entry in torch_npu.fallback_report()}
