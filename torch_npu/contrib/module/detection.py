"""Pooling of regions, and deformable convolution, as layers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.utils import _pair

__all__ = ["DCNv2", "ModulatedDeformConv", "PSROIPool", "ROIAlign"]


class _Align(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, rois: Tensor, size: tuple[int, int], scale: float, samples: int, mode: int
    ) -> Tensor:
        ctx.save_for_backward(rois)
        ctx.options = (list(x.shape), size, scale, samples, mode)
        return torch.ops.npu.npu_roi_align(x, rois, scale, *size, samples, mode)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (rois,) = ctx.saved_tensors
        shape, (height, width), scale, samples, mode = ctx.options
        grad = torch.ops.npu.npu_roi_alignbk(grads[0], rois, shape, width, height, scale, samples, mode)
        return grad, None, None, None, None, None


class ROIAlign(nn.Module):
    """Means of samples between pixels in the bins of regions [image, x1, y1, x2, y2], in float32.

    Args:
        output_size: height and width of the result of a region.
        spatial_scale: what the corners of regions are multiplied by.
        sampling_ratio: points along each side of a bin; 0: as many as it has pixels.
        aligned: whether coordinates are counted from the edges of pixels (a pixel's centre being at 0.5), not from
            their centres.
    """

    def __init__(
        self, output_size: int | tuple[int, int], spatial_scale: float, sampling_ratio: int, aligned: bool = True
    ) -> None:
        super().__init__()
        self.output_size, self.spatial_scale = output_size, spatial_scale
        self.sampling_ratio, self.aligned = sampling_ratio, aligned

    def forward(self, input_tensor: Tensor, rois: Tensor) -> Tensor:
        """``input_tensor``: [N, C, H, W]; ``rois``: [R, 5]."""
        if rois.dim() != 2 or rois.shape[1] != 5:
            raise ValueError(f"ROIAlign: expected rois [R, 5], got {list(rois.shape)}")
        size, mode = _pair(self.output_size), 2 if self.aligned else 0
        return _Align.apply(input_tensor.float(), rois, size, self.spatial_scale, self.sampling_ratio, mode)


class PSROIPool(nn.Module):
    """``torch_npu.npu_ps_roi_pooling`` as a layer; heights, widths and ``group_size`` must be one number."""

    def __init__(
        self,
        pooled_height: int = 7,
        pooled_width: int = 7,
        spatial_scale: float = 1 / 16.0,
        group_size: int = 7,
        output_dim: int = 22,
    ) -> None:
        super().__init__()
        if not pooled_height == pooled_width == group_size:
            seen = (pooled_height, pooled_width, group_size)
            raise ValueError(f"PSROIPool: expected pooled_height, pooled_width and group_size to be equal, got {seen}")
        self.spatial_scale, self.group_size, self.output_dim = spatial_scale, group_size, output_dim

    def forward(self, features: Tensor, rois: Tensor) -> Tensor:
        """``features``: [B, output_dim * group_size², H, W]; ``rois``: [B, 5, R]."""
        return torch.ops.npu.npu_ps_roi_pooling(features, rois, self.spatial_scale, self.group_size, self.output_dim)


class ModulatedDeformConv(nn.Module):
    """A convolution whose taps read between pixels, moved by offsets and multiplied by factors, in float32.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias: as of ``torch.nn.Conv2d``.
        deformable_groups: in how many groups channels have offsets of their own.
        pack: whether the layer has a convolution ``conv_offset``, which makes offsets and factors of the input. It
            starts at zeros. Without, the input is a tuple of the input, offsets [N, 2 * deformable_groups * taps, H,
            W] (of y, then of x, for each tap) and factors [N, deformable_groups * taps, H, W].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
        deformable_groups: int = 1,
        bias: bool = True,
        pack: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = _pair(kernel_size)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.groups, self.deformable_groups, self.pack = groups, deformable_groups, pack
        taps = self.kernel_size[0] * self.kernel_size[1]
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels // groups, *self.kernel_size))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        bound = 1 / math.sqrt(in_channels * taps)
        nn.init.uniform_(self.weight, -bound, bound)
        self.offsets = 2 * deformable_groups * taps
        if pack:
            channels = 3 * deformable_groups * taps
            self.conv_offset = nn.Conv2d(in_channels, channels, self.kernel_size, stride, padding)
            nn.init.zeros_(self.conv_offset.weight)
            nn.init.zeros_(self.conv_offset.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor | tuple[Tensor, Tensor, Tensor]) -> Tensor:
        if isinstance(x, Tensor):
            if not self.pack:
                raise ValueError("ModulatedDeformConv: without pack it takes (input, offsets, factors), got one tensor")
            image, both = x, self.conv_offset(x)
            offset, mask = both[:, : self.offsets], both[:, self.offsets :].sigmoid()
        else:
            image, offset, mask = x
        # The operator has all offsets of x, then those of y, then the factors.
        everything = torch.cat((offset[:, 1::2], offset[:, ::2], mask), 1).float()
        return torch.ops.npu.npu_deformable_conv2d(
            image.float(),
            self.weight,
            everything,
            self.bias,
            kernel_size=self.kernel_size,
            stride=[1, 1, self.stride, self.stride],
            padding=[self.padding] * 4,
            dilation=[1, 1, self.dilation, self.dilation],
            groups=self.groups,
            deformable_groups=self.deformable_groups,
        )[0]


DCNv2 = ModulatedDeformConv
