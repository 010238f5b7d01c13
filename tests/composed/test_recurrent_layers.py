"""Recurrent layers (torch_npu/composed/recurrent_layers.py) against torch.nn's on the CPU in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
KINDS = pytest.mark.parametrize("kind", ["LSTM", "GRU"])
T, B, WIDTH, H = 5, 3, 4, 6
LENGTHS = [5, 3, 2]
BATCH_SIZES = torch.tensor([3, 3, 2, 1, 1])


def layers(kind: str, layers: int, bias: bool, both: bool) -> torch.nn.RNNBase:
    return getattr(torch.nn, kind)(WIDTH, H, layers, bias=bias, bidirectional=both).double()


def states(kind: str, count: int) -> list[Tensor]:
    return [torch.randn(count, B, H, dtype=torch.float64) for _ in range(2 if kind == "LSTM" else 1)]


def reference(model: torch.nn.RNNBase, x: Tensor, first: list[Tensor], packed: bool) -> list[Tensor]:
    """y and the last states."""
    given = first[0] if len(first) == 1 else tuple(first)
    if not packed:
        y, last = model(x, given)
    else:
        y, last = model(pack_padded_sequence(x, LENGTHS), given)
        y, _ = pad_packed_sequence(y)
    return [y, *(last if isinstance(last, tuple) else (last,))]


@DEVICES
@KINDS
@pytest.mark.parametrize("shape", [(1, True, False), (2, False, True), (3, True, True)], ids=str)
@pytest.mark.parametrize("form", ["time first", "batch first", "packed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_layers(device, kind, shape, form, dtype):
    count, bias, both = shape
    model = layers(kind, *shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))
    x = torch.randn(T, B, WIDTH).to(dtype).double()
    first = [t.to(dtype).double().requires_grad_() for t in states(kind, count * (1 + both))]
    x.requires_grad_()
    expected = reference(model, x, first, form == "packed")
    given = {"time first": x, "batch first": x.transpose(0, 1), "packed": x.flatten(0, 1)}[form]
    given = given.detach().to(dtype).to(device).requires_grad_()
    start = [t.detach().to(dtype).to(device).requires_grad_() for t in first]
    params = [p.detach().to(dtype).to(device).requires_grad_() for p in model.parameters()]
    hx = start if kind == "LSTM" else start[0]
    layout = (bias, count, 0.0, True, both)
    options = {"batch_first": form == "batch first", "batch_sizes": BATCH_SIZES if form == "packed" else None}
    results = getattr(torch_npu, f"_{kind.lower()}_npu")(given, hx, params, *layout, **options)
    eps = torch.finfo(dtype).eps
    for actual, wide in zip(results, expected, strict=False):
        assert actual.dtype == dtype
        wide = wide.detach().transpose(0, 1) if form == "batch first" and wide is expected[0] else wide.detach()
        assert_close(actual.detach(), wide, terms=16, atol=eps * 8)
    assert {tuple(t.shape) for t in results[len(expected) :]} == {(count * (1 + both), T, B, H)}

    grads = [torch.randn(t.shape).to(dtype) for t in expected]
    torch.autograd.backward(expected, [g.double() for g in grads])
    grads[0] = grads[0].transpose(0, 1) if form == "batch first" else grads[0]
    grads = [g.to(device) for g in grads]
    torch.autograd.backward(results[: len(expected)], grads)
    kept = [t.detach() for t in results[len(expected) :]]
    plain = [t.detach() for t in params]
    state = [t.detach() for t in start] if kind == "LSTM" else start[0].detach()
    explicit = getattr(torch_npu, f"_{kind.lower()}_npu_backward")(
        *grads, given.detach(), state, plain, *kept, *layout, **options
    )
    flat = [t for part in explicit for t in ([part] if isinstance(part, Tensor) else part)]
    wide = x.grad.transpose(0, 1) if form == "batch first" else x.grad.view(given.shape)
    references = [wide, *(t.grad for t in first), *(p.grad for p in model.parameters())]
    for leaf, gradient, wide in zip([given, *start, *params], flat, references, strict=True):
        assert_close(leaf.grad, wide, terms=64, atol=eps * 64)
        assert_close(gradient, wide, terms=64, atol=eps * 64)


@DEVICES
@pytest.mark.parametrize("backwards", [False, True])
def test_lstm_of_several_lengths(device, backwards):
    model = layers("LSTM", 1, True, backwards)
    x, first = torch.randn(T, B, WIDTH).double().requires_grad_(), states("LSTM", 1 + backwards)
    y, h, c = reference(model, x, first, packed=True)
    names = [f"{p}_l0{'_reverse' if backwards else ''}" for p in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    w_x, w_h, b_x, b_h = (getattr(model, name) for name in names)
    weight, bias = torch.cat((w_x, w_h), 1).T, b_x + b_h
    mask = (torch.arange(B) < BATCH_SIZES[:, None])[..., None].expand(T, B, H).half()
    given = [t.detach().float().to(device).requires_grad_() for t in (x, weight, bias, first[0][-1:], first[1][-1:])]
    results = torch_npu.npu_lstm_data(
        given[0],
        BATCH_SIZES,
        *given[1:3],
        mask.to(device),
        *given[3:],
        True,
        1,
        0.0,
        True,
        False,
        False,
        True,
        backwards,
    )
    expected = y[..., -H:]
    assert_close(results[0].detach(), expected.detach(), terms=16)
    end = 0 if backwards else -1
    assert_close(results[1][end].detach(), h[-1].detach(), terms=16)
    assert_close(results[2][end].detach(), c[-1].detach(), terms=16)
    grad = torch.randn(T, B, H)
    (by_x,) = torch.autograd.grad(expected, x, grad.double())
    results[0].backward(grad.to(device))
    explicit = torch_npu.npu_lstm_data_backward(
        grad.to(device), None, None, given[0].detach(), BATCH_SIZES, *(t.detach() for t in given[1:]),
        *(t.detach() for t in results), backwards,
    )  # fmt: skip
    assert_close(explicit[0], by_x, terms=64)
    for leaf, gradient in zip(given, explicit, strict=True):
        assert_close(gradient, leaf.grad, terms=64)


X, H0, W = torch.zeros(2, 3, 4), torch.zeros(1, 3, 6), [torch.zeros(24, 4), torch.zeros(24, 6)]
REFUSED = {
    "dropout": (NotImplementedError, "dropout", (X, [H0, H0], W, False, 2, 0.5, True, False)),
    "params": (ValueError, "4 params", (X, [H0, H0], W, True, 1, 0.0, True, False)),
    "states": (ValueError, "first states", (X, [H0, H0[:, :2]], W, False, 1, 0.0, True, False)),
    "one state": (ValueError, "h and c", (X, [H0], W, False, 1, 0.0, True, False)),
    "weights": (ValueError, "weights", (X[..., :3], [H0, H0], W, False, 1, 0.0, True, False)),
    "rank": (ValueError, "input", (X[0], [H0, H0], W, False, 1, 0.0, True, False)),
    "no steps": (ValueError, "one step", (X[:0], [H0, H0], W, False, 1, 0.0, True, False)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    error, message, given = REFUSED[case]
    with pytest.raises(error, match=message):
        torch_npu._lstm_npu(*given)


def test_batch_sizes_must_fit():
    with pytest.raises(ValueError, match="with 4 batch_sizes"):
        torch_npu._lstm_npu(X[0], [H0, H0], W, False, 1, 0.0, True, False, batch_sizes=torch.tensor([1, 1, 1, 1]))
