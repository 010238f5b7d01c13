"""Patterns that models spell out: each is one kernel after the matrix operators of CANN that it has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_close
from torch import Tensor

import torchtitan_npu.compile
from torchtitan_npu.compile.registered import detect_in_torch


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """As transformers writes it."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return weight * ((x - mean) / torch.sqrt(variance + 1e-5)) + bias


def layer_norm_by_std(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + bias


def swiglu(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(x @ gate) * (x @ up)


def packed_swiglu(x: Tensor, both: Tensor) -> Tensor:
    gate, up = (x @ both).chunk(2, -1)
    return F.silu(gate) * up


def linear_add_gelu(x: Tensor, weight: Tensor, bias: Tensor, y: Tensor) -> Tensor:
    return F.gelu(F.linear(x, weight, bias) + y)


def embedded_norm(index: Tensor, table: Tensor, positions: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(F.embedding(index, table) + positions, weight.shape, weight, bias)


ROWS, WEIGHT = (9, 33), (33,)
PATTERNS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]], list[str]]] = {
    "rms norm": (rms_norm, [ROWS, WEIGHT], []),
    "add + rms norm": (lambda x, y, w: rms_norm(x + y, w), [ROWS, ROWS, WEIGHT], []),
    "layer norm": (layer_norm, [ROWS, WEIGHT, WEIGHT], []),
    "layer norm by std": (layer_norm_by_std, [ROWS, WEIGHT, WEIGHT], []),
    "linear + silu": (lambda x, w, b: F.silu(F.linear(x, w, b)), [ROWS, (20, 33), (20,)], ["addmm"]),
    "linear + add + gelu": (linear_add_gelu, [ROWS, (20, 33), (20,), (9, 20)], ["addmm"]),
    "swiglu": (swiglu, [ROWS, (33, 20), (33, 20)], ["mm", "mm"]),
    "swiglu of one product": (packed_swiglu, [ROWS, (33, 40)], ["mm"]),
    "linear of one row + gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), [(1, 33), (20, 33), (20,)], []),
}


def check(function: Callable[..., Tensor], inputs: list[Tensor], alone: list[str]) -> None:
    torch._dynamo.reset()
    torchtitan_npu.compile.reset()
    compiled = torch.compile(function, backend="npu", dynamic=False)
    exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    assert_close(compiled(*(x.npu() for x in inputs)), exact, terms=256)
    (report,) = torchtitan_npu.compile.reports()
    assert len(report.kernels) == 1
    assert [u.operator for u in report.unfused] == [f"aten.{name}" for name in alone]


@pytest.mark.parametrize("name", PATTERNS)
def test_one_kernel(name: str) -> None:
    function, shapes, alone = PATTERNS[name]
    check(function, [torch.randn(shape) for shape in shapes], alone)


def test_cross_entropy() -> None:
    """The kernel is the logarithm of softmax; the loss picks one of each row."""
    check(F.cross_entropy, [torch.randn(9, 50), torch.randint(0, 50, (9,))], ["nll_loss_forward"])


def test_embedding_and_norm() -> None:
    inputs = [torch.randint(0, 30, (2, 7)), torch.randn(30, 16), torch.randn(7, 16), torch.randn(16), torch.randn(16)]
    check(embedded_norm, inputs, [])


def test_loops_follow_memory() -> None:
    """Dimensions in another order than the tensor's own are one loop all the same."""
    pattern = detect_in_torch(lambda x: x.permute(2, 0, 1).exp() + 1, torch.randn(3, 5, 7))
    assert pattern is not None
    assert len(pattern.program.axes) == 1
