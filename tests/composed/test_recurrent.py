"""LSTM and GRU (torch_npu/composed/recurrent.py) against torch.nn's on the CPU in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
T, B, WIDTH, H = 5, 3, 4, 6
OFF = (True, 1, 0.0, True, False, False)


def reference(kind: str, x: Tensor, weights: list[Tensor], state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The result of each step, and the leaves: x, weights of input and hidden, biases, first states."""
    leaves = [t.double().requires_grad_() for t in (x, *weights, *state)]
    layer = getattr(torch.nn, kind)(x.shape[2], H).double()
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    values = [leaves[1].T, leaves[2].T, leaves[3], leaves[4]]
    first = leaves[5] if kind == "GRU" else tuple(leaves[5:])
    call = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (leaves[0], first))
    return call[0], leaves


def sample(gates: int, dtype: torch.dtype, steps: int = T) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    sizes = [(WIDTH, gates * H), (H, gates * H), (gates * H,), (gates * H,)]
    weights = [(torch.randn(size) / 2).to(dtype) for size in sizes]
    states = [torch.randn(1, B, H).to(dtype) for _ in range(2 if gates == 4 else 1)]
    return torch.randn(steps, B, WIDTH).to(dtype), weights, states


def close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert actual.dtype == dtype
    assert_close(actual, expected.view(actual.shape), terms=64, atol=torch.finfo(dtype).eps * 32)


@DEVICES
@DTYPES
@pytest.mark.parametrize("turned", [False, True])
def test_lstm(device, dtype, turned):
    x, weights, states = sample(4, dtype)
    weights[3].zero_()
    expected, wide = reference("LSTM", x, weights, states)
    leaves = [t.to(device).requires_grad_() for t in (x, torch.cat(weights[:2]), weights[2], *states)]
    mask = torch.empty(0, device=device)
    results = torch_npu.npu_lstm(*leaves[:3], mask, *leaves[3:], *OFF, False, turned)
    close(results[0].detach(), expected.detach(), dtype)
    assert torch.equal(results[0], results[1])
    grad = torch.randn(T, B, H).to(dtype)
    expected.backward(grad.double())
    results[0].backward(grad.to(device))
    plain = [t.detach() for t in leaves]
    explicit = torch_npu.npu_lstm_backward(grad.to(device), None, None, *plain, *(t.detach() for t in results))
    gradients = [wide[0].grad, torch.cat((wide[1].grad, wide[2].grad)), wide[3].grad, wide[5].grad, wide[6].grad]
    for leaf, given, gradient in zip(leaves, explicit, gradients, strict=True):
        close(leaf.grad, gradient, dtype)
        close(given, gradient, dtype)


@DTYPES
def test_gradients_of_every_state(dtype):
    x, weights, states = sample(4, dtype)
    leaves = [t.npu().requires_grad_() for t in (x, torch.cat(weights[:2]), weights[2], *states)]
    results = torch_npu.npu_lstm(*leaves[:3], torch.empty(0).npu(), *leaves[3:], *OFF, False, False)
    grads = [torch.randn(T, B, H).to(dtype).npu() for _ in range(3)]
    torch.autograd.backward(results[:3], grads)
    explicit = torch_npu.npu_lstm_backward(*grads, *(t.detach() for t in leaves), *(t.detach() for t in results))
    for leaf, given in zip(leaves, explicit, strict=True):
        close(given, leaf.grad.double(), dtype)


@DEVICES
@DTYPES
@pytest.mark.parametrize("biased", [False, True])
def test_lstm_cell(device, dtype, biased):
    x, weights, states = sample(4, dtype, 1)
    if not biased:
        weights[2].zero_(), weights[3].zero_()
    expected, wide = reference("LSTM", x, weights, states)
    leaves = [t.to(device).requires_grad_() for t in (x[0], *weights[:2], states[0][0], states[1][0])]
    biases = [t.to(device) for t in weights[2:]] if biased else []
    results = torch_npu.npu_lstm_cell(*leaves, *biases)
    close(results[0].detach(), expected.detach(), dtype)
    assert [r.dim() for r in results] == [3, 2, 2, 3, 3, 3, 3, 3]
    grad = torch.randn(B, H).to(dtype)
    expected.backward(grad[None].double())
    results[1].backward(grad.to(device))
    explicit = torch_npu.npu_lstm_cell_backward(
        None, grad.to(device), None, *(t.detach() for t in leaves), *(t.detach() for t in results)
    )
    order = [wide[0], wide[1], wide[2], wide[3], wide[4], wide[5], wide[6]]
    for given, leaf in zip(explicit, order, strict=True):
        close(given, leaf.grad, dtype)
    for leaf, number in zip(leaves, (0, 1, 2, 5, 6), strict=True):
        close(leaf.grad, wide[number].grad, dtype)


@DEVICES
@DTYPES
def test_gru(device, dtype):
    x, weights, states = sample(3, dtype)
    expected, wide = reference("GRU", x, weights, states)
    leaves = [t.to(device).requires_grad_() for t in (x, states[0], *weights)]
    lengths = torch.full((B,), T, dtype=torch.int32, device=device)
    results = torch_npu.npu_gru(*leaves, lengths, *OFF)
    close(results[0].detach(), expected.detach(), dtype)
    grad = torch.randn(T, B, H).to(dtype)
    expected.backward(grad.double())
    results[0].backward(grad.to(device))
    plain = [t.detach() for t in leaves]
    explicit = torch_npu.npu_gru_backward(
        grad.to(device), None, plain[0], *plain[2:], lengths, plain[1], *(t.detach() for t in results)
    )
    for given, leaf, number in zip(explicit, (2, 3, 0, 4, 5, 1), (1, 2, 0, 3, 4, 5), strict=True):
        close(given, wide[number].grad, dtype)
        close(leaves[leaf].grad, wide[number].grad, dtype)


def test_no_steps():
    x, weights, states = sample(4, torch.float32, 0)
    given = [t.npu() for t in (x, torch.cat(weights[:2]), weights[2])]
    results = torch_npu.npu_lstm(*given, x.npu(), *(s.npu() for s in states), *OFF, False, False)
    assert [tuple(r.shape) for r in results] == [(0, B, H)] * 8
    x, weights, states = sample(3, torch.float32, 0)
    results = torch_npu.npu_gru(*(t.npu() for t in (x, states[0], *weights)), x.npu(), *OFF)
    assert [tuple(r.shape) for r in results] == [(0, B, H)] * 6


X, W, S = torch.zeros(2, 3, 4), torch.zeros(10, 24), torch.zeros(1, 3, 6)
REFUSED = {
    "layers": (NotImplementedError, lambda: torch_npu.npu_lstm(X, W, W[0], X, S, S, True, 2, *OFF[2:], False, False)),
    "packed": (NotImplementedError, lambda: torch_npu.npu_lstm(X, W, W[0], X, S, S, *OFF, True, False)),
    "weight": (ValueError, lambda: torch_npu.npu_lstm(X, W[1:], W[0], X, S, S, *OFF, False, False)),
    "cell": (ValueError, lambda: torch_npu.npu_lstm_cell(X[0], W, W, S[0], S[0])),
    "gru": (ValueError, lambda: torch_npu.npu_gru(X, S, W, W, W[0], W[0], X, *OFF)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    error, call = REFUSED[case]
    with pytest.raises(error, match="npu_"):
        call()
