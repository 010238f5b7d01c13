"""swiglu whose result is quantized: by blocks, or microscaled; and its gradient."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_npu.composed.block_quantization import exponents, microscaled, powers_of_two
from torch_npu.composed.grouped_quantization import microscaled_rows
from torch_npu.composed.registry import composed, dtype_numbered, refuse, refuse_options

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_LEAST = 1e-4  # magnitude that a block is divided for


def _clamped(x: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """Halves of x: what goes through silu, at most ``limit``, and its factor, within it; no limit is not positive."""
    gate, up = x.float().chunk(2, -1)
    return (gate.clamp_max(limit), up.clamp(-limit, limit)) if limit > 0 else (gate, up)


def _rows_in_use(operator: str, x: Tensor, weight: Tensor | None, group_index: Tensor | None) -> Tensor | None:
    """Which rows of x [.., D] the groups have, [.., 1]; None for all."""
    rows = x.shape[:-1]
    if x.dim() < 2 or x.shape[-1] % 2 or (weight is not None and weight.numel() != rows.numel()):
        shapes = [list(x.shape), None if weight is None else list(weight.shape)]
        refuse(operator, "x [.., D] with an even D, and a weight for each row", shapes)
    if group_index is None:
        return None
    return (torch.arange(rows.numel(), device=x.device) < group_index.sum()).view(*rows, 1)


@composed(
    "npu_swiglu_group_quant(Tensor x, *, Tensor? weight=None, Tensor? group_index=None, Tensor? scale=None, "
    "int dst_type=291, int quant_mode=0, int block_size=0, bool round_scale=False, float clamp_limit=-1.0, "
    "float dst_type_max=15.0, bool output_origin=False) -> (Tensor, Tensor, Tensor)"
)
def swiglu_group_quant(
    x: Tensor,
    *,
    weight: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: int = 291,
    quant_mode: int = 0,
    block_size: int = 0,
    round_scale: bool = False,
    clamp_limit: float = -1.0,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """silu(min(x0, limit)) * clamp(x1, -limit, limit) * weight of halves of x [.., D], in float8, and its scales.

    quant_mode 0: blocks of 128 with float32 scales [.., blocks] (powers of two if round_scale); 1: blocks of 32 with
    bytes of float8_e8m0fnu, [.., blocks / 2, 2]. group_index [g] counts the rows of groups; rows behind them are 0. The
    third result is empty: the vendor has one for hifloat8 only.
    """
    name = "npu_swiglu_group_quant"
    if quant_mode in (2, 3):
        raise NotImplementedError(f"{name}: quant_mode must be 0 or 1, as PyTorch has no hifloat8, got {quant_mode}")
    refuse_options(name, options)
    size = {0: 128, 1: 32}.get(quant_mode)
    if size is None or block_size not in (0, size) or (quant_mode == 1 and not round_scale):
        expected = "quant_mode 0 with block_size 128, or 1 with block_size 32 and round_scale"
        refuse(name, expected, [quant_mode, block_size, round_scale])
    dtype = dtype_numbered(name, "dst_type", dst_type, _FLOAT8)
    used = _rows_in_use(name, x, weight, group_index)
    gate, up = _clamped(x, clamp_limit)
    y = F.silu(gate) * up
    if weight is not None:
        y = y * weight.float().view(*x.shape[:-1], 1)
    width = y.shape[-1]
    blocks = F.pad(y, (0, -width % size)).unflatten(-1, (-1, size))
    magnitude = blocks.abs().where(blocks.isfinite(), 0) if quant_mode == 0 else blocks.abs()
    largest = magnitude.amax(-1).clamp_min(_LEAST)
    if round_scale:
        shared = exponents(largest.unsqueeze(-1), dtype, 1)
        scale = powers_of_two(shared)
        scaled = blocks * powers_of_two(254 - shared).unsqueeze(-1)
    else:
        scale = largest / torch.finfo(dtype).max
        scaled = blocks * (torch.finfo(dtype).max / largest).unsqueeze(-1)
    if quant_mode == 1:
        scale = F.pad(shared, (0, shared.shape[-1] % 2)).to(torch.uint8)
    numbers = scaled.flatten(-2)[..., :width]
    if used is not None:
        numbers, scale = numbers.where(used, 0), scale.where(used, 0)
    return (
        numbers.to(dtype).contiguous(),
        scale.unflatten(-1, (-1, 2)) if quant_mode == 1 else scale,
        x.new_empty(0),
    )


@composed(
    "npu_swiglu_group_quant_backward(Tensor grad_y, Tensor x, *, Tensor? weight=None, Tensor? y_origin=None, "
    "Tensor? group_index=None, float clamp_limit=0.0) -> (Tensor, Tensor)"
)
def swiglu_group_quant_backward(
    grad_y: Tensor,
    x: Tensor,
    *,
    weight: Tensor | None = None,
    y_origin: Tensor | None = None,
    group_index: Tensor | None = None,
    clamp_limit: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Gradients by x [.., 2 H] and weight of silu(min(x0, limit)) * clamp(x1, -limit, limit) * weight.

    That by weight is the sum of grad_y * y_origin in float32, empty without a weight. Rows behind those that
    group_index [g] counts have none. A limit that is not positive is none.
    """
    name = "npu_swiglu_group_quant_backward"
    used = _rows_in_use(name, x, weight, group_index)
    half = (*x.shape[:-1], x.shape[-1] // 2)
    if grad_y.shape != half or (weight is not None and (y_origin is None or y_origin.shape != half)):
        shapes = [list(grad_y.shape), None if y_origin is None else list(y_origin.shape)]
        refuse(name, f"grad_y, and y_origin with a weight, {list(half)}", shapes)
    grad = grad_y.float()
    d_weight = grad.new_empty(0)
    if weight is not None and y_origin is not None:
        sums = (grad * y_origin.float()).sum(-1, keepdim=True)
        d_weight = (sums if used is None else sums.where(used, 0)).view(weight.shape)
        grad = grad * weight.float().view(*x.shape[:-1], 1)
    gate, up = _clamped(x, clamp_limit)
    d_gate, d_up = torch.ops.aten.silu_backward(grad * up, gate), grad * F.silu(gate)
    if clamp_limit > 0:
        first, second = x.float().chunk(2, -1)
        d_gate, d_up = d_gate.where(first < clamp_limit, 0), d_up.where(second.abs() < clamp_limit, 0)
    dx = torch.cat((d_gate, d_up), -1)
    return (dx if used is None else dx.where(used, 0)).to(x.dtype), d_weight


def _activated(x: Tensor, axis: int, left: bool, limit: float, alpha: float, bias: float, mode: int) -> Tensor:
    """swiglu of float32 halves; mode 1: of the even and odd numbers, with a limit, a slope and a bias."""
    if mode == 1:
        gate, up = x[..., ::2].clamp_max(limit), x[..., 1::2].clamp(-limit, limit)
        return gate * (alpha * gate).sigmoid() * (up + bias)
    first, second = x.chunk(2, axis)
    return F.silu(first) * second if left else F.silu(second) * first


@composed(
    "npu_swiglu_mx_quant(Tensor x, *, Tensor? group_index=None, int activate_dim=-1, bool activate_left=False, "
    "int swiglu_mode=0, float clamp_limit=7.0, float glu_alpha=1.702, float glu_bias=1.0, int group_mode=0, "
    'int axis=-1, int dst_type=296, str round_mode="rint", int scale_alg=0, float max_dtype_value=0) -> '
    "(Tensor, Tensor)"
)
def swiglu_mx_quant(
    x: Tensor,
    *,
    group_index: Tensor | None = None,
    activate_dim: int = -1,
    activate_left: bool = False,
    swiglu_mode: int = 0,
    clamp_limit: float = 7.0,
    glu_alpha: float = 1.702,
    glu_bias: float = 1.0,
    group_mode: int = 0,
    axis: int = -1,
    dst_type: int = 296,
    scale_alg: int = 0,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """npu_dynamic_mx_quant along axis (-1 or -2) of swiglu of halves of x along activate_dim.

    activate_left: the first half goes through silu, else the second. swiglu_mode 1: of g = min(even numbers,
    clamp_limit) and the odd ones within clamp_limit it is g * sigmoid(glu_alpha * g) * (odd + glu_bias). group_index
    [g] counts the rows of groups (group_mode 1: has their ends): along axis -2 it is npu_grouped_dynamic_mx_quant, else
    rows behind all groups are 0.
    """
    name = "npu_swiglu_mx_quant"
    refuse_options(name, options)
    dtype = dtype_numbered(name, "dst_type", dst_type, _FLOAT8)
    split, along = (d - x.dim() if d >= 0 else d for d in (activate_dim, axis))
    if x.dim() < 2 or split not in (-1, -2) or along not in (-1, -2) or x.shape[split] % 2:
        refuse(name, "the last axes, and an even size along activate_dim", [list(x.shape), activate_dim, axis])
    if swiglu_mode not in (0, 1) or group_mode not in (0, 1) or (swiglu_mode and split != -1):
        refuse(name, "group_mode 0 or 1, swiglu_mode 0, or 1 along the last axis", [group_mode, swiglu_mode])
    y = _activated(x.float(), split, activate_left, clamp_limit, glu_alpha, glu_bias, swiglu_mode)
    if group_index is None:
        return microscaled(name, y, along, dtype, 32, scale_alg)
    if split != -1:
        raise NotImplementedError(f"{name}: activate_dim must be -1 with group_index, got {activate_dim}")
    ends = group_index if group_mode == 1 else group_index.cumsum(0)
    if along == -2:
        return microscaled_rows(name, y, ends, dtype, scale_alg)
    used = (torch.arange(y.shape[:-1].numel(), device=x.device) < ends[-1]).view(*y.shape[:-1], 1)
    return microscaled(name, y.where(used, 0), -1, dtype, 32, scale_alg)


_DUAL = 'Tensor? group_index=None, bool activate_left=True, str round_mode="rint", int scale_alg=1, int dst_type=24'


def _both_axes(
    operator: str, y: Tensor, group_index: Tensor | None, number: int, scale_alg: int, options: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    refuse_options(operator, options)
    dtype = dtype_numbered(operator, "dst_type", number, _FLOAT8)
    across = microscaled(operator, y, -1, dtype, 32, scale_alg)
    if group_index is None:
        return *across, *microscaled(operator, y, -2, dtype, 32, scale_alg)
    return *across, *microscaled_rows(operator, y, group_index, dtype, scale_alg)


@composed(
    f"npu_swiglu_mx_quant_with_dual_axis(Tensor x, *, {_DUAL}, float dst_type_max=0) -> "
    "(Tensor, Tensor, Tensor, Tensor)"
)
def swiglu_mx_quant_with_dual_axis(
    x: Tensor,
    *,
    group_index: Tensor | None = None,
    activate_left: bool = True,
    scale_alg: int = 1,
    dst_type: int = 24,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """npu_dynamic_mx_quant_with_dual_axis of swiglu of the halves of x [M, 2 N]; activate_left: silu of the first.

    With group_index [g], the ends of groups of rows, the second pair is that of npu_grouped_dynamic_mx_quant.
    """
    name = "npu_swiglu_mx_quant_with_dual_axis"
    if x.dim() != 2 or x.shape[1] % 2:
        refuse(name, "x [M, 2 N]", list(x.shape))
    y = _activated(x.float(), -1, activate_left, 0, 0, 0, 0)
    return _both_axes(name, y, group_index, dst_type, scale_alg, options)


@composed(
    f"_npu_swiglu_backward_mx_quant_with_dual_axis(Tensor x, Tensor y_grad, *, {_DUAL}, float dst_type_max=0) -> "
    "(Tensor, Tensor, Tensor, Tensor)"
)
def swiglu_backward_mx_quant_with_dual_axis(
    x: Tensor,
    y_grad: Tensor,
    *,
    group_index: Tensor | None = None,
    activate_left: bool = True,
    scale_alg: int = 1,
    dst_type: int = 24,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient of swiglu by its input x [M, 2 N], quantized as by npu_swiglu_mx_quant_with_dual_axis."""
    name = "_npu_swiglu_backward_mx_quant_with_dual_axis"
    if x.dim() != 2 or x.shape[1] % 2 or y_grad.shape != (x.shape[0], x.shape[1] // 2):
        refuse(name, "x [M, 2 N] and y_grad [M, N]", [list(x.shape), list(y_grad.shape)])
    halves = x.float().chunk(2, -1)
    gate, up = halves if activate_left else halves[::-1]
    grads = torch.ops.aten.silu_backward(y_grad.float() * up, gate), y_grad.float() * F.silu(gate)
    dx = torch.cat(grads if activate_left else grads[::-1], -1)
    return _both_axes(name, dx, group_index, dst_type, scale_alg, options)
