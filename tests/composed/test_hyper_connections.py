"""Hyper-connections (torch_npu/composed/hyper_connections.py), against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
LEADING = pytest.mark.parametrize("leading", [(5,), (2, 3)], ids=str)


def leaves(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if t is None else t.detach().double().requires_grad_() for t in tensors]


def moved(device: str, *tensors: Tensor | None) -> list[Tensor | None]:
    return [None if t is None else t.detach().to(device).requires_grad_() for t in tensors]


@DEVICES
@LEADING
@pytest.mark.parametrize("iterations", [1, 20])
def test_sinkhorn(device, leading, iterations):
    (x,), (y,) = leaves(torch.randn(*leading, 4, 4)), [None]
    actual_x = x.detach().float().to(device).requires_grad_()
    y = x.softmax(-1) + 1e-6
    y = y / (y.sum(-2, keepdim=True) + 1e-6)
    for _ in range(iterations - 1):
        y = y / (y.sum(-1, keepdim=True) + 1e-6)
        y = y / (y.sum(-2, keepdim=True) + 1e-6)
    actual, norm, sums = torch_npu.npu_mhc_sinkhorn(actual_x, num_iters=iterations)
    assert norm is sums is None
    assert_close(actual, y.detach(), terms=4)
    grad = torch.randn(y.shape)
    y.backward(grad.double())
    actual.backward(grad.to(device))
    assert_close(actual_x.grad, x.grad, terms=16)


@DEVICES
@pytest.mark.parametrize("shape", [(5, 4, 4), (2, 3, 6, 6), (1, 8, 8), (0, 4, 4)], ids=str)
@pytest.mark.parametrize("iterations", [1, 3])
def test_sinkhorn_keeps_its_steps_for_the_gradient(device, shape, iterations):
    (x,) = leaves(torch.randn(shape).float())
    y = torch_npu.npu_mhc_sinkhorn(x, num_iters=iterations)[0]
    grad = torch.randn(shape)
    y.backward(grad.double())
    actual, norm, sums = torch_npu.npu_mhc_sinkhorn(x.detach().float().to(device), num_iters=iterations, out_flag=1)
    assert_close(actual, y.detach(), terms=shape[-1])
    assert norm.shape == (2 * iterations * 8 * grad.numel() // shape[-1],)
    assert sums.numel() * shape[-1] == norm.numel()
    assert_close(torch_npu.npu_mhc_sinkhorn_backward(grad.to(device), norm, sums), x.grad, terms=16 * iterations)


def post(x: Tensor, h_res: Tensor | None, h_out: Tensor, h_post: Tensor) -> Tensor:
    mixed = x if h_res is None else torch.einsum("...ij,...id->...jd", h_res, x)
    return mixed + torch.einsum("...n,...d->...nd", h_post, h_out)


@DEVICES
@LEADING
@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_post(device, leading, mixes, dtype):
    x, h_out = torch.randn(*leading, 4, 16).to(dtype), torch.randn(*leading, 16).to(dtype)
    h_res, h_post = torch.rand(*leading, 4, 4) if mixes else None, torch.rand(*leading, 4)
    reference, given = leaves(x, h_res, h_out, h_post), moved(device, x, h_res, h_out, h_post)
    expected, actual = post(*reference), torch_npu.npu_mhc_post(*given)
    assert actual.dtype == dtype
    assert_close(actual, expected.detach(), terms=4, atol=torch.finfo(dtype).eps * 4)
    grad = torch.randn(expected.shape).to(dtype)
    expected.backward(grad.double())
    actual.backward(grad.to(device))
    explicit = torch_npu.npu_mhc_post_backward(grad.to(device), *(None if t is None else t.detach() for t in given))
    for leaf, tensor, result in zip(reference, given, explicit, strict=True):
        if leaf is None:
            assert result is None
            continue
        assert result.dtype == tensor.dtype
        for gradient in (tensor.grad, result):
            assert_close(gradient, leaf.grad, terms=16, atol=torch.finfo(dtype).eps * 8)


def pre(x: Tensor, phi: Tensor, alpha: Tensor, bias: Tensor, gamma: Tensor | None) -> tuple[Tensor, ...]:
    n = x.shape[-2]
    inverse = 1 / (x.square().mean((-1, -2)) + 1e-6).sqrt()
    scaled = (x if gamma is None else x * gamma).flatten(-2)
    mix = scaled @ phi.T
    normal = mix * inverse[..., None]
    weights = (normal[..., :n] * alpha[0] + bias[:n]).sigmoid() + 1e-6
    write = 2 * (normal[..., n : 2 * n] * alpha[1] + bias[n : 2 * n]).sigmoid()
    h_in = torch.einsum("...n,...nd->...d", weights, x)
    if len(alpha) == 2:
        return h_in, write, None, inverse, mix, weights
    h_res = (normal[..., 2 * n :] * alpha[2] + bias[2 * n :]).unflatten(-1, (n, n))
    return h_in, write, h_res, inverse, mix, weights


@DEVICES
@LEADING
@pytest.mark.parametrize("gains", [False, True])
@pytest.mark.parametrize("mixes", [False, True])
def test_pre(device, leading, gains, mixes):
    n, size = 4, 8
    rows = 2 * n + (n * n if mixes else 0)
    parameters = torch.randn(rows, n * size) / 4, torch.rand(3 if mixes else 2) + 0.5, torch.randn(rows)
    inputs = (torch.randn(*leading, n, size), *parameters, torch.rand(n, size) + 0.5 if gains else None)
    reference, given = leaves(*inputs), moved(device, *inputs)
    expected = pre(*reference)
    actual = torch_npu.npu_mhc_pre(*given[:4], gamma=given[4], out_flag=1)
    for a, e in zip(actual, expected, strict=True):
        assert (a is None) == (e is None)
        if e is not None:
            assert_close(a, e.detach(), terms=32)
    assert torch_npu.npu_mhc_pre(*given[:4], gamma=given[4])[3:] == (None, None, None)
    used = [i for i in range(3) if expected[i] is not None]
    grads = [torch.randn(expected[i].shape) for i in used]
    torch.autograd.backward([expected[i] for i in used], [g.double() for g in grads])
    torch.autograd.backward([actual[i] for i in used], [g.to(device) for g in grads])
    more = torch.randn(*leading, n, size)
    h_res_grad = grads[2] if mixes else torch.zeros(0)
    kept = [t.detach() for t in (*actual[3:], actual[1])]
    explicit = torch_npu.npu_mhc_pre_backward(
        *(t.detach() for t in given[:3]), *(g.to(device) for g in (*grads[:2], h_res_grad)), *kept,
        gamma=None if given[4] is None else given[4].detach(), grad_x_post=more.to(device),
    )  # fmt: skip
    for leaf, tensor, result in zip(reference, given, explicit, strict=True):
        if leaf is None:
            assert result is None
            continue
        assert_close(tensor.grad, leaf.grad, terms=256)
        wanted = leaf.grad + more.double() if leaf is reference[0] else leaf.grad
        assert_close(result, wanted, terms=256)


X = torch.zeros(2, 4, 8)
REFUSED = {
    "sinkhorn": (lambda: torch_npu.npu_mhc_sinkhorn(X), "square matrices"),
    "flag": (lambda: torch_npu.npu_mhc_sinkhorn(X[..., :4], out_flag=2), "out_flag 0, or 1"),
    "too many rows": (lambda: torch_npu.npu_mhc_sinkhorn(torch.ones(1, 9, 9), out_flag=1), "at most 8 rows"),
    "steps": (lambda: torch_npu.npu_mhc_sinkhorn_backward(X[..., :4], X, X), "results of npu_mhc_sinkhorn"),
    "post": (lambda: torch_npu.npu_mhc_post(X, None, X, X[..., 0]), r"h_out \[..., D\]"),
    "rank": (lambda: torch_npu.npu_mhc_post(X[0], None, X[0], X[0]), r"x \[T, n, D\]"),
    "phi": (lambda: torch_npu.npu_mhc_pre(X, X[0], X[0, 0, :3], X[0, 0]), r"phi \[n² \+ 2n"),
    "bias": (lambda: torch_npu.npu_mhc_pre(X, torch.zeros(8, 32), X[0, 0, :2], X[0, 0, :3]), r"bias \[8\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()
