"""Convolutions with packed weights on each instruction set, against float64."""

from __future__ import annotations

import ctypes
import math

import kernels_library as kernels
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.tolerance import tolerance

pytestmark = pytest.mark.usefixtures("isa")

CHANNELS_LAST = torch.channels_last


class Arguments(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "weight", "bias", "residual", "y")),
        *((name, ctypes.c_int64) for name in ("batch", "height", "width", "channels", "filters")),
        *((name, ctypes.c_int64) for name in ("result_height", "result_width")),
        *((name, ctypes.c_int64 * 2) for name in ("padding", "stride")),
        ("relu", ctypes.c_bool),
    ]


def convolve(
    x: Tensor, weight: Tensor, padding: tuple[int, int] = (0, 0), stride: tuple[int, int] = (1, 1),
    bias: Tensor | None = None, residual: Tensor | None = None, relu: bool = False,
) -> Tensor:  # fmt: skip
    """x: [N, C, H, W], weight: [O, C, 3, 3] or [O, C, 1, 1]; the result is channels_last."""
    filters, channels, size, _ = weight.shape
    kernel = ctypes.c_int(size)
    kernels._library.packed_numbers.restype = ctypes.c_int64
    numbers = kernels._library.packed_numbers(kernel, ctypes.c_int64(filters), ctypes.c_int64(channels))
    packed = torch.full([numbers], math.nan)
    kernels._call("pack_convolution", kernel, weight.contiguous(), filters, channels, packed)
    places = [(n + 2 * p - size) // s + 1 for n, p, s in zip(x.shape[2:], padding, stride, strict=True)]
    y = torch.full([x.shape[0], filters, *places], math.nan).to(memory_format=CHANNELS_LAST)
    image = x.contiguous(memory_format=CHANNELS_LAST)
    added = None if residual is None else residual.contiguous(memory_format=CHANNELS_LAST)
    pointers = [None if t is None else t.data_ptr() for t in (image, packed, bias, added, y)]
    sizes = (x.shape[0], x.shape[2], x.shape[3], channels, filters, *places)
    pairs = [(ctypes.c_int64 * 2)(*pair) for pair in (padding, stride)]
    kernels._library.convolve(kernel, ctypes.byref(Arguments(*pointers, *sizes, *pairs, relu)))
    return y


# batch, channels, filters, kernel, height, width, padding, stride
SHAPES = [
    (1, 16, 32, 3, 8, 8, (1, 1), (1, 1)),
    (2, 19, 37, 3, 9, 7, (1, 1), (1, 1)),
    (1, 1, 1, 3, 3, 3, (0, 0), (1, 1)),
    (3, 33, 5, 3, 4, 11, (0, 2), (1, 1)),
    (1, 70, 64, 3, 1, 1, (1, 1), (1, 1)),
    (1, 300, 33, 3, 13, 30, (1, 1), (1, 1)),
    (0, 16, 16, 3, 5, 5, (1, 1), (1, 1)),
    (1, 16, 32, 1, 14, 14, (0, 0), (1, 1)),
    (3, 19, 37, 1, 9, 7, (0, 0), (2, 3)),
    (1, 1, 1, 1, 1, 1, (0, 0), (1, 1)),
    (2, 700, 70, 1, 9, 13, (0, 0), (1, 2)),
    (0, 16, 16, 1, 5, 5, (0, 0), (1, 1)),
]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_the_definition(shape: tuple, threads: int) -> None:
    torch.manual_seed(0)
    batch, channels, filters, kernel, height, width, padding, stride = shape
    x = torch.randn(batch, channels, height, width)
    weight = torch.randn(filters, channels, kernel, kernel) / (kernel * channels**0.5)
    product = F.conv2d(x.double(), weight.double(), None, stride, padding)
    bias, residual = torch.randn(filters), torch.randn(product.shape)
    allowed = tolerance(torch.float32, terms=kernel * kernel * channels)
    scale = float(product.abs().max()) if product.numel() else 1.0
    limits = {"rtol": allowed.relative, "atol": allowed.relative * scale}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.testing.assert_close(convolve(x, weight, padding, stride).double(), product, **limits)
        wanted = (product + bias.double().view(-1, 1, 1) + residual.double()).relu()
        y = convolve(x, weight, padding, stride, bias, residual, relu=True)
        torch.testing.assert_close(y.double(), wanted, **limits)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_reach_only_their_results(value: float) -> None:
    """In differences of pixels they would reach all results of a tile."""
    torch.manual_seed(0)
    x, weight = torch.randn(1, 18, 9, 10), torch.rand(35, 18, 3, 3) / 256
    x[0, 3, 4, 5] = value
    wanted, y = F.conv2d(x.double(), weight.double(), padding=1), convolve(x, weight, (1, 1))
    assert torch.equal(y.isnan(), wanted.isnan())
    assert torch.equal(y.isinf(), wanted.isinf())
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_sums_that_overflow_only_on_the_way_are_right() -> None:
    x, weight = torch.full((1, 16, 4, 4), 2e38), torch.full((16, 16, 3, 3), 1 / 256)
    torch.testing.assert_close(convolve(x, weight, (1, 1)), F.conv2d(x, weight, padding=1))


def test_errors_are_of_the_size_of_those_of_sums() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(1, 256, 14, 14), torch.randn(64, 256, 3, 3) / 48
    exact = F.conv2d(x.double(), weight.double(), padding=1)
    ours = (convolve(x, weight, (1, 1)).double() - exact).square().mean().sqrt()
    theirs = (F.conv2d(x, weight, padding=1).double() - exact).square().mean().sqrt()
    assert ours < 4 * theirs
