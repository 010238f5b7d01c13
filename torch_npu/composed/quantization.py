"""Search for the scale of a quantization, and quantization of what was rotated."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse

_LOWEST, _HIGHEST = -128, 127  # int8


@composed(
    "npu_ifmr(Tensor data, Tensor data_min, Tensor data_max, Tensor cumsum, float min_percentile, "
    "float max_percentile, float search_start, float search_end, float search_step, bool with_offset) -> "
    "(Tensor, Tensor)"
)
def ifmr(
    data: Tensor,
    data_min: Tensor,
    data_max: Tensor,
    cumsum: Tensor,
    min_percentile: float,
    max_percentile: float,
    search_start: float,
    search_end: float,
    search_step: float,
    with_offset: bool,
) -> tuple[Tensor, Tensor]:
    """Scale and offset [1] of int8 that reproduce data best (least squares), of those that a search tries.

    cumsum is the running sum of a histogram of data between data_min and data_max. It tells which range holds all but
    the outer percentiles; tried are search_start to search_end times its end. Without offset it is symmetric.
    """
    name = "npu_ifmr"
    if data_min.numel() != 1 or data_max.numel() != 1 or cumsum.dim() != 1:
        refuse(name, "data_min and data_max of one number, cumsum [bins]", [data_min.shape, data_max.shape])
    tries = math.ceil((search_end - search_start) / search_step) if search_step > 0 else 0
    if tries < 1:
        refuse(name, "a positive search_step and search_end > search_start", [search_step, search_start, search_end])
    x, low, high = data.float(), data_min.float(), data_max.float()
    share, bins = cumsum.float() / data.numel(), cumsum.numel()
    highest = (share < max_percentile).sum() / bins * (high - low) + low
    lowest = (share < 1 - min_percentile).sum() / bins * (high - low) + low
    step = search_start + search_step * torch.arange(tries, dtype=torch.float32, device=data.device)
    if with_offset:
        lowest = lowest.clamp_max(0)
        scales = (highest.clamp_min(0) * step - lowest) / (_HIGHEST - _LOWEST)
        scales = scales.masked_fill(scales < torch.finfo(torch.float32).eps, 1)
        offsets = _LOWEST - (lowest / scales).round()
    else:
        scales = torch.maximum(lowest.abs(), highest.abs()) * step / _HIGHEST
        offsets = torch.zeros_like(scales)
    losses = []
    for scale, offset in zip(scales.unbind(), offsets.unbind(), strict=True):
        near = ((x / scale).round() + offset).clamp(_LOWEST, _HIGHEST)
        losses.append(((near - offset) * scale - x).square().sum())
    best = torch.stack(losses).argmin().view(1)
    return scales[best].view_as(data_min), offsets[best].view_as(data_min)


@composed(
    "npu_kronecker_quant(Tensor x, Tensor kronecker_p1, Tensor kronecker_p2, float? clip_ratio=None, "
    "int? dst_dtype=None, float? dst_type_max=None) -> (Tensor out, Tensor quant_scale)"
)
def kronecker_quant(
    x: Tensor,
    kronecker_p1: Tensor,
    kronecker_p2: Tensor,
    clip_ratio: float | None = None,
    dst_dtype: int | None = None,
    dst_type_max: float | None = None,
) -> tuple[Tensor, Tensor]:
    """kronecker_p1 @ x @ kronecker_p2 of each matrix of x [K, M, N] in int4, eight in an int32, and its scale [K].

    The scale is the matrix's largest magnitude over 7 * clip_ratio (1 where not given).
    """
    name = "npu_kronecker_quant"
    if dst_dtype not in (None, 3) or dst_type_max:  # torch.int32
        refuse(name, "dst_dtype torch.int32 and no dst_type_max", [dst_dtype, dst_type_max])
    shapes = [tuple(t.shape) for t in (x, kronecker_p1, kronecker_p2)]
    if x.dim() != 3 or shapes[1:] != [(x.shape[1],) * 2, (x.shape[2],) * 2] or x.shape[2] % 8:
        refuse(name, "x [K, M, N] with N a multiple of 8, kronecker_p1 [M, M] and kronecker_p2 [N, N]", shapes)
    ratio = 1.0 if clip_ratio is None else clip_ratio
    if not 0 < ratio <= 1:
        refuse(name, "a clip_ratio above 0, 1 at most", ratio)
    turned = kronecker_p1.float() @ (x.float() @ kronecker_p2.float())
    scale = turned.abs().amax((1, 2)) / (7 * ratio)
    divisor = scale.where(scale > 0, 1).view(-1, 1, 1)
    numbers = (turned / divisor).round().clamp(-8, 7).int().unflatten(-1, (-1, 8)) & 15
    places = torch.arange(0, 32, 4, dtype=torch.int32, device=x.device)
    return (numbers << places).sum(-1, dtype=torch.int32), scale
