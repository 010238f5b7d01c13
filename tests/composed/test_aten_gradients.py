"""Gradients of ATen's operators under names of the plug-in (torch_npu/composed/aten_gradients.py)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])


def gradients(function, *inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
    """A gradient of the result, and those of the inputs, in float64 (or complex128)."""
    leaves = [t.to(torch.complex128 if t.is_complex() else torch.float64).requires_grad_() for t in inputs]
    out = function(*leaves)
    grad = torch.randn(out.shape).to(torch.complex64 if out.is_complex() else torch.float32)
    if grad.is_complex():
        grad = torch.complex(torch.randn(out.shape), torch.randn(out.shape))
    out.backward(grad.to(out.dtype))
    return grad, [leaf.grad for leaf in leaves]


@DEVICES
@pytest.mark.parametrize("mask", [[True, True, True], [False, True, False]])
@pytest.mark.parametrize("kind", ["dilated", "transposed", "depthwise"])
def test_convolutions(device, mask, kind):
    stride, padding, dilation, extra = [2, 1], [1, 2], [1, 2], [1, 0]
    x = torch.randn(2, 4, 7, 8)
    weight = torch.randn(*{"dilated": (5, 4), "transposed": (4, 5), "depthwise": (4, 1)}[kind], 3, 2)
    if kind == "transposed":
        grad, expected = gradients(
            lambda a, w, b: F.conv_transpose2d(a, w, b, stride, padding, extra, 1, dilation), x, weight, torch.randn(5)
        )
        given = ([3, 2], stride, padding, extra, dilation, mask)
        function = torch.ops.npu.slow_conv_transpose2d_backward
    else:
        groups = 4 if kind == "depthwise" else 1
        grad, expected = gradients(
            lambda a, w, b: F.conv2d(a, w, b, stride, padding, dilation, groups),
            x,
            weight,
            torch.randn(weight.shape[0]),
        )
        given = ([3, 2], stride, padding, dilation, mask[:2] if groups > 1 else mask)
        function = (
            torch.ops.npu._conv_depthwise2d_backward if groups > 1 else torch.ops.npu.slow_conv_dilated2d_backward
        )
    results = function(grad.to(device), x.to(device), weight.to(device), *given)
    for actual, reference, asked in zip(results, expected, mask, strict=False):
        if asked:
            assert_close(actual, reference, terms=256)
        else:
            assert actual is None


@DEVICES
@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("onesided", [True, False])
def test_spectra(device, size, onesided):
    x = torch.randn(3, 4, size)
    grad, (expected,) = gradients(lambda a: torch.ops.aten._fft_r2c(a, [1, 2], 1, onesided), x)
    actual = torch.ops.npu.fft_r2c_backward(grad.to(device), [1, 2], 1, onesided, size)
    assert_close(actual, expected, terms=64)
    half = torch.complex(torch.randn(3, 4, size // 2 + 1), torch.randn(3, 4, size // 2 + 1))
    grad, (expected,) = gradients(lambda a: torch.ops.aten._fft_c2r(a, [1, 2], 2, size), half)
    actual = torch.ops.npu.fft_c2r_backward(grad.to(device), [1, 2], 2)
    assert_close(actual, expected.to(torch.complex64), terms=64)


@DEVICES
def test_casts_in_place(device):
    x, y = torch.zeros(3, dtype=torch.int32, device=device), torch.tensor([1.7, -2.2, 3.0], device=device)
    assert torch_npu.npu_dtype_cast_(x, y) is x
    assert x.tolist() == [1, -2, 3]


@DEVICES
@pytest.mark.parametrize(("left", "right"), [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((4,), (4, 5)), ((2, 3, 4), (4,))])
@pytest.mark.parametrize("mask", [[True, True, True], [False, True, False]])
@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True)])
def test_gradients_of_gradients_of_products(device, left, right, mask, given):
    x, y = torch.randn(left).double().requires_grad_(), torch.randn(right).double().requires_grad_()
    grad = torch.randn(torch.matmul(x, y).shape).double().requires_grad_()
    firsts = torch.autograd.grad(torch.matmul(x, y), (x, y), grad, create_graph=True)
    by_firsts = [torch.randn(f.shape).double() if g else None for f, g in zip(firsts, given, strict=True)]
    wanted = [(f, g) for f, g in zip(firsts, by_firsts, strict=True) if g is not None]
    expected = torch.autograd.grad([f for f, _ in wanted], (grad, x, y), [g for _, g in wanted], allow_unused=True)
    arguments = [t if t is None else t.detach().float().to(device) for t in (*by_firsts, grad, x, y)]
    found = torch.ops.npu.matmul_double_backward(*arguments, mask)
    for actual, reference, asked in zip(found, expected, mask, strict=True):
        if asked and reference is not None:
            assert_close(actual, reference, terms=32)
        else:
            assert actual is None


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("shape", [(23,), (2, 23)])
@pytest.mark.parametrize("length", [None, 5])
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("onesided", [False, True])
@pytest.mark.parametrize("as_complex", [False, True])
def test_short_time_spectra(device, dtype, shape, length, windowed, normalized, onesided, as_complex):
    if dtype == torch.complex64 and onesided:
        pytest.skip("torch.stft has no one-sided spectrum of complex numbers")
    x = torch.randn(shape, dtype=dtype)
    window = torch.rand(length or 8) if windowed else None
    leaf = x.to(torch.complex128 if dtype.is_complex else torch.float64).requires_grad_()
    wide = torch.ones(length or 8).double() if window is None else window.double()
    options = {"hop_length": 3, "win_length": length, "normalized": normalized, "onesided": onesided}
    y = torch.stft(leaf, 8, window=wide, center=False, return_complex=True, **options)
    y = y if as_complex else torch.view_as_real(y)
    grad = torch.randn(y.shape, dtype=torch.complex64 if as_complex else torch.float32)
    y.backward(grad.to(y.dtype))
    found = torch.ops.npu.stft_backward(
        grad.to(device), x.to(device), 8, window=None if window is None else window.to(device),
        return_complex=as_complex, **options,
    )  # fmt: skip
    assert found.dtype == dtype
    assert_close(found, leaf.grad.to(dtype), terms=64)
