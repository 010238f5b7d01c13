"""Transforms of images (torch_npu/composed/images.py), pixel by pixel."""

from __future__ import annotations

import math

import pytest
import torch

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
MEAN, WIDTH = [0.5, 0.25, 0.1], [0.2, 0.3, 0.4]


@DEVICES
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("number", [0, 1])
def test_normalization(device, dtype, number):
    x = torch.randint(0, 9, (2, 3, 5, 7)).to(dtype)
    y = torch_npu.image_normalize(x.to(device), MEAN, WIDTH, number)
    assert y.dtype == (torch.float16 if number else torch.float32)
    moments = [torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (MEAN, WIDTH)]
    assert_close(y, (x.double() - moments[0]) / moments[1], terms=2)
    if dtype == y.dtype:
        z = x.to(device)
        assert torch_npu.image_normalize_(z, MEAN, WIDTH, number) is z
        assert torch.equal(z, y)
    else:
        with pytest.raises(TypeError, match="expected an image in"):
            torch_npu.image_normalize_(x.to(device), MEAN, WIDTH, number)


@DEVICES
def test_bytes(device):
    x = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8)
    assert_close(torch_npu.img_to_tensor(x.to(device)), x.double() / 255)
    with pytest.raises(TypeError, match="uint8"):
        torch_npu.img_to_tensor(x.float())


def pixel(image: torch.Tensor, y: float, x: float, nearest: bool) -> torch.Tensor:
    """Of [C, H, W] at a place within it."""
    if nearest:
        return image[:, math.floor(y + 0.5), math.floor(x + 0.5)]
    top, left = math.floor(y), math.floor(x)
    below, right = math.ceil(y), math.ceil(x)
    upper = image[:, top, left] * (1 - (x - left)) + image[:, top, right] * (x - left)
    lower = image[:, below, left] * (1 - (x - left)) + image[:, below, right] * (x - left)
    return upper * (1 - (y - top)) + lower * (y - top)


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(3, 4), (1, 5), (6, 1)])
def test_parts(device, dtype, method, size):
    images = torch.randn(2, 3, 6, 9).to(dtype)
    boxes = [0.13, 0.2, 0.8, 0.9, 0.93, 0.15, 0.3, 0.7, -0.23, 0.1, 1.3, 1.2]
    index = [1, 0, 1]
    found = torch_npu.crop_and_resize(images.to(device), boxes, index, list(size), -3.0, method)
    assert (found.dtype, found.shape) == (dtype, (3, 3, *size))
    expected = torch.full(found.shape, -3.0, dtype=torch.float64)
    for number, image in enumerate(index):
        y1, x1, y2, x2 = boxes[4 * number : 4 * number + 4]
        for i in range(size[0]):
            for j in range(size[1]):
                y = (y1 + y2) / 2 * 5 if size[0] == 1 else y1 * 5 + i * (y2 - y1) * 5 / (size[0] - 1)
                x = (x1 + x2) / 2 * 8 if size[1] == 1 else x1 * 8 + j * (x2 - x1) * 8 / (size[1] - 1)
                if 0 <= y <= 5 and 0 <= x <= 8:
                    expected[number, :, i, j] = pixel(images[image].double(), y, x, method == "nearest")
    assert_close(found, expected, terms=8, atol=1e-5 if dtype == torch.float32 else 1e-3)


X = torch.zeros(1, 3, 4, 4)
REFUSED = {
    "moments": ("mean and variance of C", lambda: torch_npu.image_normalize(X, MEAN[:2], WIDTH)),
    "none": ("mean and variance of C", lambda: torch_npu.image_normalize(X, None, WIDTH)),
    "dtype": ("dtype 0", lambda: torch_npu.image_normalize(X, MEAN, WIDTH, 2)),
    "boxes": ("four numbers", lambda: torch_npu.crop_and_resize(X, [0.0, 0.0, 1.0], [0], [2, 2])),
    "index": ("indices below 1", lambda: torch_npu.crop_and_resize(X, [0.0, 0.0, 1.0, 1.0], [1], [2, 2])),
    "method": ("bilinear", lambda: torch_npu.crop_and_resize(X, [0.0, 0.0, 1.0, 1.0], [0], [2, 2], 0, "bicubic")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    message, call = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()
