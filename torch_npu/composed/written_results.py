"""Operators that write their result to a tensor that is given, with one by which the plug-in's others are made."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse
from torch_npu.composed.shapes import indexing

_QUANTIZED = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}


@composed(
    "npu_indexing_trans_contiguous.out(Tensor self, int[] begin, int[] end, int[] strides, int begin_mask=0, "
    "int end_mask=0, int ellipsis_mask=0, int new_axis_mask=0, int shrink_axis_mask=0, *, Tensor(a!) out) -> Tensor(a!)"
)
def indexing_trans_contiguous_out(*arguments: Any, out: Tensor) -> Tensor:
    """npu_indexing into out, which has the result's shape."""
    result = indexing(*arguments)
    if result.shape != out.shape:
        refuse("npu_indexing_trans_contiguous", f"out of shape {list(result.shape)}", list(out.shape))
    return out.copy_(result)


@composed(
    "npu_transpose_trans_contiguous.out(Tensor self, int[] perm, bool require_contiguous=True, *, Tensor(a!) out) -> "
    "Tensor(a!)"
)
def transpose_trans_contiguous_out(
    self: Tensor, perm: list[int], require_contiguous: bool = True, *, out: Tensor
) -> Tensor:
    """self with its dimensions in the order perm, written to out, which has the result's shape.

    require_contiguous, by which Ascend's copies self before, makes no difference.
    """
    name = "npu_transpose_trans_contiguous"
    if sorted(d % self.dim() for d in perm) != list(range(self.dim())):
        refuse(name, f"the {self.dim()} dimensions in some order", list(perm))
    result = self.permute(list(perm))
    if result.shape != out.shape:
        refuse(name, f"out of shape {list(result.shape)}", list(out.shape))
    return out.copy_(result)


def _quantized(
    operator: str, inputs: Tensor, scales: Tensor, zeros: Tensor, dtype: torch.dtype, result: Tensor
) -> Tensor:
    """``scales`` and ``zeros`` are broadcast to inputs."""
    target = _QUANTIZED.get(dtype)
    if target is None or result.dtype != target or result.shape != inputs.shape:
        expected = f"dtype qint8, quint8 or qint32, and a result {list(inputs.shape)} in int8, uint8 or int32"
        refuse(operator, expected, [dtype, result.dtype, list(result.shape)])
    limits = torch.iinfo(target)
    rounded = (inputs.double() / scales.double()).round() + zeros.double()
    return result.copy_(rounded.clamp(limits.min, limits.max).to(target))


_RESULT = "ScalarType dtype, *, Tensor(a!) result) -> Tensor(a!)"


@composed(f"_quantize_per_tensor_impl.out(Tensor inputs, Tensor scales, Tensor zero_points, {_RESULT}")
def quantize_per_tensor_impl_out(
    inputs: Tensor, scales: Tensor, zero_points: Tensor, dtype: torch.dtype, *, result: Tensor
) -> Tensor:
    """round(inputs / scales) + zero_points, each [1], into result: int8, uint8 or int32 for a dtype qint8, quint8 or
    qint32.
    """
    name = "_quantize_per_tensor_impl"
    if scales.numel() != 1 or zero_points.numel() != 1:
        refuse(name, "scales and zero_points [1]", [list(scales.shape), list(zero_points.shape)])
    return _quantized(name, inputs, scales.reshape(()), zero_points.reshape(()), dtype, result)


@composed(f"_quantize_per_channel_impl.out(Tensor inputs, Tensor scales, Tensor zero_points, int axis, {_RESULT}")
def quantize_per_channel_impl_out(
    inputs: Tensor, scales: Tensor, zero_points: Tensor, axis: int, dtype: torch.dtype, *, result: Tensor
) -> Tensor:
    """_quantize_per_tensor_impl with a scale and a zero point for each place along axis."""
    name = "_quantize_per_channel_impl"
    if not -inputs.dim() <= axis < inputs.dim() or not scales.shape == zero_points.shape == (inputs.shape[axis],):
        shapes = [list(t.shape) for t in (inputs, scales, zero_points)]
        refuse(name, "an axis of inputs, and scales and zero_points of its size", [axis, *shapes])
    shape = [1] * inputs.dim()
    shape[axis] = -1
    return _quantized(name, inputs, scales.view(shape), zero_points.view(shape), dtype, result)


@composed("npu_scatter(Tensor self, Tensor indices, Tensor updates, int dim) -> Tensor")
def scatter(self: Tensor, indices: Tensor, updates: Tensor, dim: int) -> Tensor:
    """A copy of self with one of updates in each row along dim, where indices say: both have self's shape without dim.

    dim may also be there with size 1.
    """
    name = "npu_scatter"
    if not -self.dim() <= dim < self.dim() or indices.shape != updates.shape:
        refuse(name, "a dimension of self, and indices and updates of one shape", [dim, list(indices.shape)])
    if indices.dim() == self.dim() - 1:
        at = dim % self.dim()
        indices, updates = indices.unsqueeze(at), updates.unsqueeze(at)
    shape = list(self.shape)
    shape[dim] = 1
    if list(indices.shape) != shape:
        refuse(name, f"indices {shape}", list(indices.shape))
    return self.scatter(dim, indices.long(), updates.to(self.dtype))
