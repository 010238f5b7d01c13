"""Pooling of regions of images.

A bin of a region is a sum over rows and columns whose weights are products, so that pooling is two products of
matrices, and its gradient the same two the other way round.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse, wide

_SMALLEST_REGION = 0.1  # as R-FCN has it
_REGIONS_AT_ONCE = 64


def _bins_of(begin: Tensor, end: Tensor, bins: int, size: int) -> Tensor:
    """Weights [R, bins, size] of the mean of the pixels that each bin of the interval touches."""
    length = (end - begin).clamp_min(_SMALLEST_REGION).unsqueeze(1) / bins
    number, pixel = torch.arange(bins, device=begin.device), torch.arange(size, device=begin.device)
    first = (begin.unsqueeze(1) + number * length).floor().clamp(0, size)
    last = (begin.unsqueeze(1) + (number + 1) * length).ceil().clamp(0, size)
    inside = (pixel >= first.unsqueeze(2)) & (pixel < last.unsqueeze(2))
    return inside / (last - first).clamp_min(1).unsqueeze(2)


def _position_sensitive(rois: Tensor, scale: float, group: int, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Of rois [B, 5, R]: the numbers of their images [B * R], and the weights of their bins along y and x."""
    image, x1, y1, x2, y2 = wide(rois).permute(1, 0, 2).flatten(1).round().unbind()
    rows = _bins_of(y1 * scale, (y2 + 1) * scale, group, size[0])
    columns = _bins_of(x1 * scale, (x2 + 1) * scale, group, size[1])
    return image, rows, columns


def _check_position_sensitive(operator: str, rois: Tensor, group_size: int, output_dim: int) -> None:
    if rois.dim() != 3 or rois.shape[1] != 5:
        refuse(operator, "rois [B, 5, R]", list(rois.shape))
    if min(group_size, output_dim) < 1:
        refuse(operator, "positive group_size and output_dim", [group_size, output_dim])


@composed("npu_ps_roi_pooling(Tensor self, Tensor rois, float spatial_scale, int group_size, int output_dim) -> Tensor")
def ps_roi_pooling(self: Tensor, rois: Tensor, spatial_scale: float, group_size: int, output_dim: int) -> Tensor:
    """Means of G * G bins of each region, bin (i, j) of output o in channel (o * G + i) * G + j: [B * R, O, G, G].

    self is [B, O * G * G, H, W], rois [B, 5, R]: number of the image and corners, which are rounded; the last pixel
    belongs to the region. Bins without a pixel, and regions of images that are not there, are 0.
    """
    name = "npu_ps_roi_pooling"
    _check_position_sensitive(name, rois, group_size, output_dim)
    if self.dim() != 4 or self.shape[1] != output_dim * group_size**2:
        refuse(name, f"self [B, {output_dim * group_size**2}, H, W]", list(self.shape))
    image, rows, columns = _position_sensitive(rois, spatial_scale, group_size, (self.shape[2], self.shape[3]))
    planes = wide(self).unflatten(1, (output_dim, group_size, group_size))
    result = planes.new_zeros(len(image), output_dim, group_size, group_size)
    for number, plane in enumerate(planes.unbind()):
        rows_here = rows * (image == number).view(-1, 1, 1)
        result = result + torch.einsum("ogkhw,rgh,rkw->rogk", plane, rows_here, columns)
    return result.to(self.dtype)


@composed(
    "npu_ps_roi_pooling_backward(Tensor output_grad, Tensor rois, float spatial_scale, int group_size, "
    "int output_dim, SymInt[] input_size) -> Tensor"
)
def ps_roi_pooling_backward(
    output_grad: Tensor,
    rois: Tensor,
    spatial_scale: float,
    group_size: int,
    output_dim: int,
    input_size: list[int],
) -> Tensor:
    """Gradient of npu_ps_roi_pooling by self, whose height and width are input_size."""
    name = "npu_ps_roi_pooling_backward"
    _check_position_sensitive(name, rois, group_size, output_dim)
    expected = [rois.shape[0] * rois.shape[2], output_dim, group_size, group_size]
    if list(output_grad.shape) != expected or len(input_size) != 2:
        refuse(name, f"output_grad {expected} and input_size of two", [list(output_grad.shape), list(input_size)])
    image, rows, columns = _position_sensitive(rois, spatial_scale, group_size, (input_size[0], input_size[1]))
    planes = []
    for number in range(rois.shape[0]):
        rows_here = rows * (image == number).view(-1, 1, 1)
        planes.append(torch.einsum("rogk,rgh,rkw->ogkhw", wide(output_grad), rows_here, columns).flatten(0, 2))
    return torch.stack(planes).to(output_grad.dtype)


def _samples_of(begin: Tensor, length: Tensor, bins: int, points: int, size: int) -> Tensor:
    """Weights [R, bins, size] of the mean of points between pixels; ``points`` 0: as many as a bin has pixels."""
    bin_length = length / bins
    count = torch.full_like(bin_length, points) if points else bin_length.ceil()
    most = points or (int(count.max()) if len(count) else 0)
    number = torch.arange(most, device=begin.device)
    share = (number + 0.5) / count.clamp_min(1).unsqueeze(1)  # [R, points]
    step = torch.arange(bins, device=begin.device).view(1, -1, 1) + share.unsqueeze(1)
    at = begin.view(-1, 1, 1) + step * bin_length.view(-1, 1, 1)  # [R, bins, points]
    counts = (number < count.unsqueeze(1)).unsqueeze(1) & (at >= -1) & (at <= size)
    at = at.clamp(0, size - 1)
    pixel = torch.arange(size, device=begin.device)
    # The weight of a pixel falls from 1 to 0 at its neighbours.
    weight = (1 - (at.unsqueeze(-1) - pixel).abs()).clamp_min(0) * counts.unsqueeze(-1)
    return weight.sum(2) / count.clamp_min(1).view(-1, 1, 1)


@composed(
    "npu_roi_alignbk(Tensor self, Tensor rois, int[] xdiff_shape, int pooled_width, int pooled_height, "
    "float spatial_scale, int sample_num, int? roi_end_mode=None) -> Tensor"
)
def roi_alignbk(
    self: Tensor,
    rois: Tensor,
    xdiff_shape: list[int],
    pooled_width: int,
    pooled_height: int,
    spatial_scale: float,
    sample_num: int,
    roi_end_mode: int | None = None,
) -> Tensor:
    """Gradient of npu_roi_align by its input, of shape xdiff_shape; self is that of its output, rois are [R, 5].

    roi_end_mode None is 1. With sample_num 0 the host reads the largest region's size: a synchronization.
    """
    name, mode = "npu_roi_alignbk", 1 if roi_end_mode is None else roi_end_mode
    if rois.dim() != 2 or rois.shape[1] != 5 or len(xdiff_shape) != 4:
        refuse(name, "rois [R, 5] and xdiff_shape of four", [list(rois.shape), xdiff_shape])
    images, channels, height, width = xdiff_shape
    expected = [rois.shape[0], channels, pooled_height, pooled_width]
    if list(self.shape) != expected or not 0 <= mode <= 2:
        refuse(name, f"self {expected} and roi_end_mode 0, 1 or 2", [list(self.shape), mode])
    image, x1, y1, x2, y2 = wide(rois).unbind(1)
    extra, half = (1 if mode == 1 else 0), (0.5 if mode == 2 else 0)
    x, y = x1 * spatial_scale - half, y1 * spatial_scale - half
    across, down = (x2 + extra) * spatial_scale - half - x, (y2 + extra) * spatial_scale - half - y
    if mode != 2:
        across, down = across.clamp_min(1), down.clamp_min(1)
    rows = _samples_of(y, down, pooled_height, sample_num, height)
    columns = _samples_of(x, across, pooled_width, sample_num, width)
    grad, result = wide(self), []
    for number in range(images):
        plane = grad.new_zeros(channels, height, width)
        rows_here = rows * (image == number).view(-1, 1, 1)
        for part in zip(*(t.split(_REGIONS_AT_ONCE) for t in (grad, rows_here, columns)), strict=True):
            plane = plane + torch.einsum("rcij,rih,rjw->chw", *part)
        result.append(plane)
    return torch.stack(result).to(self.dtype)
