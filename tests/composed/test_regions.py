"""Pooling of regions (torch_npu/composed/regions.py)."""

import math

import numpy as np
import pytest
import torch

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])


def pooled(x: np.ndarray, rois: np.ndarray, scale: float, group: int, outputs: int) -> np.ndarray:
    batch, _, regions = rois.shape
    height, width = x.shape[2:]
    y = np.zeros((batch * regions, outputs, group, group))
    for r, (image, *corners) in enumerate(rois.transpose(0, 2, 1).reshape(-1, 5)):
        x1, y1, x2, y2 = np.round(corners)
        left, top = x1 * scale, y1 * scale
        across, down = max((x2 + 1) * scale - left, 0.1) / group, max((y2 + 1) * scale - top, 0.1) / group
        for o, i, j in np.ndindex(outputs, group, group):
            rows = range(max(math.floor(top + i * down), 0), min(math.ceil(top + (i + 1) * down), height))
            columns = range(max(math.floor(left + j * across), 0), min(math.ceil(left + (j + 1) * across), width))
            values = [x[int(image), (o * group + i) * group + j, h, w] for h in rows for w in columns]
            y[r, o, i, j] = np.mean(values) if values else 0
    return y


def regions(batch: int, count: int, size: int) -> torch.Tensor:
    start = torch.rand(batch, 2, count) * size
    return torch.cat([torch.randint(0, batch, (batch, 1, count)), start, start + torch.rand(batch, 2, count) * size], 1)


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("group", "outputs", "count"), [(1, 3, 4), (3, 2, 5), (2, 1, 0)])
def test_ps_roi_pooling(device, dtype, group, outputs, count):
    x = torch.randn(2, outputs * group * group, 7, 9).to(dtype)
    rois = regions(2, count, 20).to(dtype)
    expected = pooled(x.double().numpy(), rois.double().numpy(), 0.5, group, outputs)
    inputs = x.to(device).requires_grad_(), rois.to(device)
    y = torch_npu.npu_ps_roi_pooling(*inputs, 0.5, group, outputs)
    assert y.dtype == dtype
    assert_close(y.detach(), torch.from_numpy(expected), terms=63)
    grad = torch.randn_like(y)
    backward = torch_npu.npu_ps_roi_pooling_backward(grad, inputs[1], 0.5, group, outputs, [7, 9])
    y.backward(grad)
    assert_close(backward, inputs[0].grad.cpu(), terms=63)


@DEVICES
def test_gradient_of_ps_roi_pooling(device):
    x = torch.randn(1, 8, 5, 6, dtype=torch.float64, device=device, requires_grad=True)
    rois = regions(1, 3, 10).double().to(device)
    assert torch.autograd.gradcheck(lambda x: torch_npu.npu_ps_roi_pooling(x, rois, 0.5, 2, 2), (x,))


def test_regions_of_no_image_are_zero():
    x, rois = torch.ones(1, 4, 3, 3, device="npu"), torch.tensor([[[6.0], [0], [0], [3], [3]]], device="npu")
    assert (torch_npu.npu_ps_roi_pooling(x, rois, 1.0, 2, 1) == 0).all()


@DEVICES
@pytest.mark.parametrize("samples", [0, 1, 2])
@pytest.mark.parametrize("mode", [0, 1, 2, None])
@pytest.mark.parametrize("count", [0, 3, 70])
def test_roi_alignbk(device, samples, mode, count):
    """Against npu_roi_align of images that are 1 in one pixel: the gradient is what of it each output has."""
    height, width, down, across = 5, 6, 3, 2
    start = torch.rand(count, 2) * 20 - 4
    rois = torch.cat([torch.randint(0, 2, (count, 1)), start, start + torch.rand(count, 2) * 15], 1)
    pixels = torch.eye(height * width).view(1, height * width, height, width).repeat(2, 1, 1, 1)
    end = 1 if mode is None else mode
    weights = torch_npu.npu_roi_align(pixels.npu(), rois.npu(), 0.3, down, across, samples, end).cpu().double()
    grad = torch.randn(count, 4, down, across)
    expected = torch.zeros(2, 4, height * width, dtype=torch.float64)
    for r in range(count):
        expected[int(rois[r, 0])] += torch.einsum("cij,pij->cp", grad[r].double(), weights[r])
    y = torch_npu.npu_roi_alignbk(
        grad.to(device), rois.to(device), [2, 4, height, width], across, down, 0.3, samples, mode
    )
    assert_close(y.flatten(2), expected, terms=100)


X = torch.zeros(2, 5)
REFUSED = {
    "rois": (lambda: torch_npu.npu_ps_roi_pooling(X, X, 0.5, 1, 1), r"rois \[B, 5, R\], got \[2, 5\]"),
    "channels": (lambda: torch_npu.npu_ps_roi_pooling(X, X[None].mT, 0.5, 2, 3), r"self \[B, 12, H, W\], got \[2, 5\]"),
    "group": (lambda: torch_npu.npu_ps_roi_pooling(X, X[None].mT, 0.5, 0, 3), r"positive .* got \[0, 3\]"),
    "backward": (lambda: torch_npu.npu_ps_roi_pooling_backward(X, X[None].mT, 1, 1, 1, [2, 2]), r"\[2, 1, 1, 1\] and"),
    "align rois": (lambda: torch_npu.npu_roi_alignbk(X, X[:, :4], [1] * 4, 1, 1, 1.0, 1), r"rois \[R, 5\]"),
    "align grad": (lambda: torch_npu.npu_roi_alignbk(X, X, [1, 2, 3, 4], 1, 1, 1.0, 1), r"self \[2, 2, 1, 1\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()
