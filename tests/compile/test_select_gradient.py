"""Gradients of parts (``x[0]``, ``unbind``): zeros elsewhere, inside of the kernel that adds them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tolerance import assert_close
from torch import Tensor

from torchtitan_npu.compile import fallbacks, reports, reset


def products_of_three(x: Tensor) -> Tensor:
    return (x[0] * x[1] + x[-1].exp()).sum(-1)


def unbound(x: Tensor) -> Tensor:
    """Whose gradient is a stack."""
    q, k, v = x.unbind(0)
    return (q * k + v.exp()).sum(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (products_of_three, (3, 7, 33)),
        (unbound, (3, 7, 33)),
        (lambda x: x[:, 1] * 2 + x[:, 0].exp(), (3, 4, 5)),
        (lambda x: x.select(-1, -1) * 3, (2, 3, 4)),
        (lambda x: x[4], (5,)),
        (lambda x: x[2] + 1, (3, 0, 2)),
        (lambda x: x.t()[1], (4, 3)),
    ],
)
def test_gradients_of_parts(function: Callable[[Tensor], Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape).to(dtype).requires_grad_()
    there = x.detach().npu().requires_grad_()
    torch._dynamo.reset()
    function(x).abs().sum().backward()
    torch.compile(function, backend="npu")(there).abs().sum().backward()
    assert there.grad.stride() == x.grad.stride()
    assert_close(there.grad, x.grad)
    assert not fallbacks()


def test_zeros_are_in_no_memory() -> None:
    """Of the three parts one kernel makes the gradient; masks have as many elements as there are parts."""
    reset()
    torch._dynamo.reset()
    x = torch.randn(3, 64, 64, device="npu", requires_grad=True)
    torch.compile(products_of_three, backend="npu")(x).sum().backward()
    backward = reports()[-1]
    assert "aten.where.self aten.where.self aten.add.Tensor aten.where.self aten.add.Tensor" in str(backward)
    assert not backward.unfused
