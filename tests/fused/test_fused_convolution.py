"""Convolutions with what follows them, with plain and with packed weights."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_npu
from tests.tolerance import tolerance

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# N, C, O, groups, kernel, stride, padding, dilation, H, W
SHAPES = [
    (1, 3, 64, 1, 7, 2, 3, 1, 20, 22),
    (2, 4, 6, 2, 3, 2, 1, 1, 9, 7),
    (1, 16, 16, 16, 3, 1, 1, 1, 5, 5),
    (3, 5, 7, 1, 1, 1, 0, 1, 1, 1),
    (1, 1, 1, 1, 3, 1, 1, 2, 8, 8),
    (2, 40, 40, 4, 3, 1, 1, 1, 6, 6),
    (0, 3, 4, 1, 3, 1, 1, 1, 5, 5),
    (2, 20, 35, 1, 3, 1, 1, 1, 9, 8),  # by Winograd's algorithm, as the next one
    (1, 64, 32, 1, 3, 1, 2, 1, 7, 9),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_convolution_with_what_follows(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    n, c, o, groups, k, stride, padding, dilation, h, w = shape
    x, bias = torch.randn(n, c, h, w).to(dtype), torch.randn(o).to(dtype)
    weight = (torch.randn(o, c // groups, k, k) / (c // groups) ** 0.5 / k).to(dtype)
    options = (stride, padding, dilation, groups)
    product = F.conv2d(x.double(), weight.double(), bias.double(), *options)
    residual = torch.randn(product.shape).to(dtype)
    packed = torch_npu.npu_conv2d_pack_weight(weight.npu(), x.shape, *options)
    assert packed.dtype is torch.uint8
    relative = tolerance(dtype, terms=c // groups * k * k).relative
    for extra, activation in ((None, ""), (None, "relu"), (residual, ""), (residual, "relu")):
        wanted = product if extra is None else product + extra.double()
        wanted = wanted.relu() if activation else wanted
        for given in (packed, weight.npu()):
            more = {} if extra is None else {"residual": extra.npu()}
            y = torch_npu.npu_conv2d_packed(
                x.npu(), given, weight.shape, bias.npu(), *options, activation=activation, **more
            )
            assert y.dtype is dtype
            assert y.is_contiguous(memory_format=torch.channels_last)
            scale = float(product.abs().max()) if product.numel() else 1.0  # sums cancel; errors are of the terms
            torch.testing.assert_close(y.cpu().double(), wanted, rtol=relative, atol=relative * scale)


def test_images_of_any_layout_and_without_numbers() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(9, 2, 8, 7).permute(1, 2, 3, 0), torch.randn(6, 8, 3, 3)
    x[0, 0, 0, 0], x[1, 3, 4, 5] = float("nan"), float("inf")
    residual = torch.randn(2, 6, 5, 14)[:, :, :, ::2]
    wanted = (F.conv2d(x, weight) + residual).relu()
    packed = torch_npu.npu_conv2d_pack_weight(weight.npu(), [2, 8, 7, 9])
    for image in (x.npu(), x.npu().contiguous(), x.npu().contiguous(memory_format=torch.channels_last)):
        y = torch_npu.npu_conv2d_packed(image, packed, weight.shape, residual=residual.npu(), activation="relu")
        torch.testing.assert_close(y.cpu(), wanted, rtol=1e-5, atol=1e-4, equal_nan=True)


def test_packed_weights_fit_other_images() -> None:
    """The layout for another size is slower, and right."""
    torch.manual_seed(0)
    weight = torch.randn(96, 64, 1, 1)
    packed = torch_npu.npu_conv2d_pack_weight(weight.npu(), [1, 64, 32, 32])
    for size in ((1, 64, 7, 7), (3, 64, 1, 1), (2, 64, 56, 3)):
        x = torch.randn(size)
        y = torch_npu.npu_conv2d_packed(x.npu(), packed, weight.shape)
        torch.testing.assert_close(y.cpu(), F.conv2d(x, weight), rtol=1e-5, atol=1e-4)


def test_weights_for_winograd() -> None:
    torch.manual_seed(0)
    weight = torch.randn(40, 24, 3, 3)
    packed = torch_npu.npu_conv2d_pack_weight(weight.npu(), [1, 24, 8, 8], padding=1)
    assert packed.numel() == 1024 + 4 * 16 * 24 * 64
    for size in ((1, 24, 8, 8), (2, 24, 5, 30), (0, 24, 8, 8)):
        x = torch.randn(size)
        for image in (x.npu(), x.npu().transpose(2, 3).contiguous().transpose(2, 3)):
            y = torch_npu.npu_conv2d_packed(image, packed, weight.shape, padding=1)
            torch.testing.assert_close(y.cpu(), F.conv2d(x, weight, padding=1), rtol=1e-5, atol=1e-4)
    with pytest.raises(ValueError, match="weight must have weight_size"):  # another layout needs other memory
        torch_npu.npu_conv2d_packed(torch.randn(1, 24, 8, 8).npu(), packed, weight.shape, stride=2)
    weight[3, 4, 1, 1] = float("inf")  # numbers that the algorithm does not take stay with oneDNN
    packed = torch_npu.npu_conv2d_pack_weight(weight.npu(), [1, 24, 8, 8], padding=1)
    x = torch.randn(1, 24, 8, 8)
    y = torch_npu.npu_conv2d_packed(x.npu(), packed, weight.shape, padding=1)
    torch.testing.assert_close(y.cpu(), F.conv2d(x, weight, padding=1), rtol=1e-5, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(("setting", "layout"), [("1", 2), ("0", 1)])
def test_winograd_can_be_switched_off(setting: str, layout: int) -> None:
    program = """
import torch, torch_npu
packed = torch_npu.npu_conv2d_pack_weight(torch.randn(32, 32, 3, 3).npu(), [1, 32, 16, 16], padding=1)
print(int(packed[8:12].cpu().view(torch.int32)))
"""
    environment = {**os.environ, "CANN_HOST_WINOGRAD": setting}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert int(ran.stdout) == layout


def test_packed_convolution_refuses() -> None:
    x, weight, bias = (torch.randn(s, device="npu") for s in ((1, 4, 5, 5), (6, 4, 3, 3), (6,)))
    packed = torch_npu.npu_conv2d_pack_weight(weight, x.shape)
    size = weight.shape
    with pytest.raises(ValueError, match="activation must be empty or relu; got 'tanh'"):
        torch_npu.npu_conv2d_packed(x, packed, size, activation="tanh")
    with pytest.raises(ValueError, match=r"input must be \[N, C, H, W\]"):
        torch_npu.npu_conv2d_packed(x[:, :3], packed, size)
    with pytest.raises(ValueError, match="weight must have weight_size, or be what npu_conv2d_pack_weight made"):
        torch_npu.npu_conv2d_packed(x, packed, (6, 4, 5, 5))
    with pytest.raises(ValueError, match="weight must have weight_size, or be what npu_conv2d_pack_weight made"):
        torch_npu.npu_conv2d_packed(x.half(), packed, size)
    with pytest.raises(RuntimeError, match="the weight was packed from Half, the input is BFloat16"):
        torch_npu.npu_conv2d_packed(x.bfloat16(), torch_npu.npu_conv2d_pack_weight(weight.half(), x.shape), size)
    with pytest.raises(TypeError, match="weight must have input's dtype"):
        torch_npu.npu_conv2d_packed(x, weight.half(), size)
    with pytest.raises(ValueError, match="bias must have a number for each of 6 channels"):
        torch_npu.npu_conv2d_packed(x, packed, size, bias[:5])
    with pytest.raises(ValueError, match="does not fit into an input"):
        torch_npu.npu_conv2d_packed(x, packed, size, dilation=[3, 3])
    with pytest.raises(ValueError, match="residual must have the shape and the dtype of the result"):
        torch_npu.npu_conv2d_packed(x, packed, size, residual=x)
    with pytest.raises(ValueError, match="input_size must be"):
        torch_npu.npu_conv2d_pack_weight(weight, [1, 5, 5, 5])
    with pytest.raises(ValueError, match="groups must divide"):
        torch_npu.npu_conv2d_pack_weight(weight, [1, 16, 5, 5], groups=4)


@pytest.mark.parametrize("activation", ["", "relu"])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolution_with_batch_norm(groups: int, activation: str) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 6, 3, 2, 1, groups=groups).double()
    norm = nn.BatchNorm2d(6).double().eval()
    nn.init.normal_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x, residual = torch.randn(2, 4, 9, 7).double(), torch.randn(2, 6, 5, 4).double()
    values = (x, conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.weight, norm.bias)
    for extra in (None, residual):
        leaf = x.clone().requires_grad_()
        wanted = norm(conv(leaf)) + (0 if extra is None else extra)
        wanted = wanted.relu() if activation else wanted
        arguments = [t.detach().float().npu().requires_grad_(i < 2) for i, t in enumerate(values)]
        more = {} if extra is None else {"residual": extra.float().npu()}
        y = torch_npu.npu_conv2d_batch_norm(*arguments, norm.eps, 2, 1, groups=groups, activation=activation, **more)
        torch.testing.assert_close(y.detach().cpu(), wanted.detach().float(), rtol=1e-5, atol=1e-5)
        gradients = torch.autograd.grad(y.sum(), arguments[:2])
        for a, b in zip(gradients, torch.autograd.grad(wanted.sum(), (leaf, conv.weight)), strict=True):
            torch.testing.assert_close(a.cpu(), b.float(), rtol=1e-4, atol=1e-4)


def test_convolution_with_batch_norm_refuses() -> None:
    x, weight, ones = (torch.randn(s, device="npu") for s in ((1, 4, 5, 5), (6, 4, 3, 3), (6,)))
    with pytest.raises(ValueError, match="activation must be empty or relu"):
        torch_npu.npu_conv2d_batch_norm(x, weight, None, ones, ones, activation="tanh")
    with pytest.raises(ValueError, match="running_mean and running_var"):
        torch_npu.npu_conv2d_batch_norm(x, weight, None, ones[:5], ones[:5])
