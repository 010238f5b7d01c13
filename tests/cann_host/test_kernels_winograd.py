"""Winograd's algorithm on each instruction set, against convolutions in float64."""

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
        ("padding", ctypes.c_int64 * 2),
        ("relu", ctypes.c_bool),
    ]


def convolve(
    x: Tensor, weight: Tensor, padding: tuple[int, int], bias: Tensor | None = None, residual: Tensor | None = None,
    relu: bool = False,
) -> Tensor:  # fmt: skip
    """x: [N, C, H, W], weight: [O, C, 3, 3]; the result is channels_last."""
    filters, channels = weight.shape[:2]
    kernels._library.winograd_numbers.restype = ctypes.c_int64
    numbers = kernels._library.winograd_numbers(ctypes.c_int64(filters), ctypes.c_int64(channels))
    packed = torch.full([numbers], math.nan)
    kernels._call("pack_winograd", weight.contiguous(), filters, channels, packed)
    size = [x.shape[0], filters, x.shape[2] + 2 * padding[0] - 2, x.shape[3] + 2 * padding[1] - 2]
    y = torch.full(size, math.nan).to(memory_format=CHANNELS_LAST)
    image = x.contiguous(memory_format=CHANNELS_LAST)
    added = None if residual is None else residual.contiguous(memory_format=CHANNELS_LAST)
    pointers = [None if t is None else t.data_ptr() for t in (image, packed, bias, added, y)]
    sizes = (x.shape[0], x.shape[2], x.shape[3], channels, filters)
    kernels._library.convolve_winograd(ctypes.byref(Arguments(*pointers, *sizes, (ctypes.c_int64 * 2)(*padding), relu)))
    return y


# batch, channels, filters, height, width, padding
SHAPES = [
    (1, 16, 32, 8, 8, (1, 1)),
    (2, 19, 37, 9, 7, (1, 1)),
    (1, 1, 1, 3, 3, (0, 0)),
    (3, 33, 5, 4, 11, (0, 2)),
    (1, 70, 64, 1, 1, (1, 1)),
    (1, 300, 33, 13, 30, (1, 1)),
    (0, 16, 16, 5, 5, (1, 1)),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_the_definition(shape: tuple) -> None:
    torch.manual_seed(0)
    batch, channels, filters, height, width, padding = shape
    x = torch.randn(batch, channels, height, width)
    weight = torch.randn(filters, channels, 3, 3) / (3 * channels**0.5)
    product = F.conv2d(x.double(), weight.double(), padding=padding)
    bias, residual = torch.randn(filters), torch.randn(product.shape)
    allowed = tolerance(torch.float32, terms=9 * channels)
    scale = float(product.abs().max()) if product.numel() else 1.0
    limits = {"rtol": allowed.relative, "atol": allowed.relative * scale}
    torch.testing.assert_close(convolve(x, weight, padding).double(), product, **limits)
    wanted = (product + bias.double().view(-1, 1, 1) + residual.double()).relu()
    torch.testing.assert_close(convolve(x, weight, padding, bias, residual, relu=True).double(), wanted, **limits)


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
