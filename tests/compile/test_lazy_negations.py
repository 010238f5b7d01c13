"""Compiled graphs of complex numbers and of lazily conjugated and negated tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tolerance import assert_close
from torch import Tensor

from torchtitan_npu.compile import reports

CALLS = 4  # the first runs the plan, later ones replay it


def conjugated(device: str, grad: bool) -> Tensor:
    return torch.randn(5, 8, dtype=torch.complex64).conj_physical().to(device).requires_grad_(grad).conj()


def negated(device: str, grad: bool) -> Tensor:
    real = torch.randn(5, 8).to(device).requires_grad_(grad)
    tensor = torch._neg_view(real)
    assert tensor.is_neg()
    return tensor


def plain(device: str, grad: bool) -> Tensor:
    return torch.randn(5, 8, dtype=torch.complex64).to(device).requires_grad_(grad)


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[str, bool], Tensor]]] = {
    "filter": (lambda z: torch.fft.irfft(torch.fft.rfft(z, dim=-1) * torch.fft.rfft(z[0])), negated),
    "kernel of a negated input": (lambda y: (y * 2 + 1).relu(), negated),
    "concatenation of a negated input": (lambda y: torch.cat([y, y * 2]).softmax(-1), negated),
    "product of a negated input": (lambda y: (y @ y.t()).relu(), negated),
    "view of a negated input": (lambda y: y.t()[1:] * 3 + y.t()[:-1], negated),
    "conjugated input": (lambda z: z * 2 + 1, conjugated),
    "conjugated operand of a product": (lambda z: (z @ z.mH).abs() + 1, plain),
    "conjugated and multiplied": (lambda z: (z @ z.mT.conj()).abs() + 1, conjugated),
    "negated inside": (lambda z: ((z * 2).conj().imag * 3).sum(0), plain),
    "conjugated result": (lambda z: z.conj(), plain),
    "conjugated result of its own": (lambda z: (z * 2).conj(), plain),
    "negated result": (lambda z: z.conj().imag, plain),
    "negated result of its own": (lambda z: (z * 2).conj().imag, plain),
    "copied before it is seen as real": (lambda z: torch.view_as_real(z.conj().resolve_conj()) * 2, plain),
}


def leaf_gradient(tensor: Tensor) -> Tensor:
    while not tensor.is_leaf:
        tensor = tensor._base if tensor._base is not None else tensor
    assert tensor.grad is not None
    return tensor.grad


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_values_and_gradients_of_every_call(name: str, grad: bool) -> None:
    function, make = FUNCTIONS[name]
    compiled = torch.compile(function, backend="npu", dynamic=False)
    held = []  # so that each call's input lies elsewhere
    for seed in range(CALLS):
        torch.manual_seed(seed)
        x = make("cpu", grad)
        torch.manual_seed(seed)
        y = make("npu", grad)
        held.append(y)
        expected, result = function(x), compiled(y)
        assert result.dtype == expected.dtype
        assert_close(result.detach(), expected.detach(), terms=64)
        if grad:
            expected.abs().square().sum().backward()
            result.abs().square().sum().backward()
            assert_close(leaf_gradient(y), leaf_gradient(x), terms=512)


def test_the_same_input_is_replayed() -> None:
    z = torch.randn(3, 8, dtype=torch.complex64)
    x, y = z.clone().requires_grad_(), z.npu().requires_grad_()
    compiled = torch.compile(lambda z: z.mH @ z, backend="npu", dynamic=False)
    for _ in range(CALLS):
        x.grad = y.grad = None
        (x.mH @ x).abs().square().sum().backward()
        compiled(y).abs().square().sum().backward()
        assert_close(leaf_gradient(y), leaf_gradient(x), terms=512)
    assert all(r.sinking is not None and r.sinking.replays for r in reports())


def test_negated_input_changed_in_place() -> None:
    x, y = torch._neg_view(torch.randn(4, 6)), None
    y = torch._neg_view((-x.resolve_neg()).npu())
    compiled = torch.compile(lambda t: t.add_(1) * 2, backend="npu", dynamic=False)
    for _ in range(CALLS):
        assert_close(compiled(y), x.add_(1) * 2)
        assert_close(y.resolve_neg(), x.resolve_neg())


def test_gradients_that_come_negated() -> None:
    x = torch.randn(4, 6)
    y = x.npu().requires_grad_()
    gradient = torch.randn(4, 6)
    compiled = torch.compile(lambda t: t.sin() * 2, backend="npu", dynamic=False)
    for number in range(CALLS):
        y.grad = None
        given = torch._neg_view(gradient.npu()) if number % 2 else gradient.npu()
        compiled(y).backward(given)
        assert_close(leaf_gradient(y), x.cos() * 2 * (-gradient if number % 2 else gradient))
