"""Norms and rotations whose result is quantized."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_npu.composed.block_quantization import microscaled, rounded
from torch_npu.composed.registry import composed, dtype_numbered, refuse, refuse_options

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_TARGET = 'float epsilon=1e-06, int scale_alg=0, str round_mode="rint", int dst_type=296'


def _normed(
    operator: str, x: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float, number: int, scale_alg: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Float8 numbers, their powers of two, and 1 / RMS, of a float32 x."""
    dtype = dtype_numbered(operator, "dst_type", number, _FLOAT8)
    if gamma.dim() < 1 or x.shape[x.dim() - gamma.dim() :] != gamma.shape:
        refuse(operator, "gamma of the last dimensions of x", [list(x.shape), list(gamma.shape)])
    axes = list(range(-gamma.dim(), 0))
    inverse = x.square().mean(axes, keepdim=True).add(epsilon).rsqrt()
    y = x * inverse * gamma.float()
    return *microscaled(operator, y if beta is None else y + beta.float(), -1, dtype, 32, scale_alg), inverse


@composed(
    f"npu_rms_norm_dynamic_mx_quant(Tensor x, Tensor gamma, *, Tensor? beta=None, {_TARGET}) -> "
    "(Tensor, Tensor, Tensor)"
)
def rms_norm_dynamic_mx_quant(
    x: Tensor,
    gamma: Tensor,
    *,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    scale_alg: int = 0,
    dst_type: int = 296,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """npu_dynamic_mx_quant along the last dimension of x / RMS * gamma + beta; its two results, and 1 / RMS."""
    name = "npu_rms_norm_dynamic_mx_quant"
    refuse_options(name, options)
    return _normed(name, x.float(), gamma, beta, epsilon, dst_type, scale_alg)


@composed(
    f"npu_add_rms_norm_dynamic_mx_quant(Tensor x1, Tensor x2, Tensor gamma, *, Tensor? beta=None, {_TARGET}) -> "
    "(Tensor, Tensor, Tensor, Tensor)"
)
def add_rms_norm_dynamic_mx_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    *,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    scale_alg: int = 0,
    dst_type: int = 296,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """npu_rms_norm_dynamic_mx_quant of x1 + x2: the numbers, the sum, the powers of two, and 1 / RMS."""
    name = "npu_add_rms_norm_dynamic_mx_quant"
    refuse_options(name, options)
    if x1.shape != x2.shape:
        refuse(name, "x1 and x2 of one shape", [list(x1.shape), list(x2.shape)])
    total = x1.float() + x2.float()
    y, powers, inverse = _normed(name, total, gamma, beta, epsilon, dst_type, scale_alg)
    return y, total.to(x1.dtype), powers, inverse


@composed(
    "npu_rotate_quant(Tensor x, Tensor rotation, *, Tensor? alpha=None, int? dst_dtype=None, int? axis=-1, "
    'str? round_mode="rint", int? scale_alg=0, float? dst_type_max=0.0, bool? transpose_y=False) -> (Tensor, Tensor)'
)
def rotate_quant(
    x: Tensor,
    rotation: Tensor,
    *,
    dst_dtype: int | None = None,
    axis: int | None = -1,
    scale_alg: int | None = 0,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Groups of k columns of x [.., n], times rotation [k, k], in int8 with the scale of each row, or microscaled.

    For float8_e4m3fn and float8_e5m2 the second result are the powers of two of npu_dynamic_mx_quant.
    """
    name = "npu_rotate_quant"
    refuse_options(name, options)
    if rotation.dim() != 2 or rotation.shape[0] != rotation.shape[1] or x.shape[-1] % rotation.shape[0]:
        refuse(name, "rotation [k, k], and columns of x that k divides", [list(x.shape), list(rotation.shape)])
    if axis not in (None, -1, x.dim() - 1):
        refuse(name, "the last axis", axis)
    dtype = dtype_numbered(name, "dst_dtype", 1 if dst_dtype is None else dst_dtype, (torch.int8, *_FLOAT8))
    turned = (x.float().unflatten(-1, (-1, rotation.shape[0])) @ rotation.float()).flatten(-2)
    if dtype != torch.int8:
        return microscaled(name, turned, -1, dtype, 32, scale_alg or 0)
    if x.dim() != 2 or scale_alg:
        refuse(name, "x [m, n] and scale_alg 0 with int8", [list(x.shape), scale_alg])
    scale = turned.abs().amax(-1) / 127
    return (turned / scale.where(scale > 0, 1).unsqueeze(-1)).round().to(torch.int8), scale


def _quantized(operator: str, y: Tensor, scale: Tensor, offset: Tensor | None, div_mode: bool, number: int) -> Tensor:
    """``y`` over (or times) the scale, plus the offset; int8 is rounded to the nearest and kept in its range."""
    dtype = dtype_numbered(operator, "dst_type", number, (torch.int8, *_FLOAT8))
    scaled = y / scale.float() if div_mode else y * scale.float()
    shifted = scaled if offset is None else scaled + offset.float()
    return shifted.round().clamp(-128, 127).to(dtype) if dtype == torch.int8 else rounded(shifted, dtype)


@composed(
    "npu_rms_norm_quant_v2(Tensor x, Tensor gamma, Tensor scale, *, Tensor? offset=None, Tensor? beta=None, "
    "float epsilon=1e-06, bool div_mode=True, int? dst_dtype=None) -> (Tensor, Tensor)"
)
def rms_norm_quant_v2(
    x: Tensor,
    gamma: Tensor,
    scale: Tensor,
    *,
    offset: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    div_mode: bool = True,
    dst_dtype: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(x / RMS * gamma + beta) / scale + offset in int8 (the default) or float8, and 1 / RMS.

    scale and offset are [1] or of the last dimension; div_mode False multiplies by scale.
    """
    name = "npu_rms_norm_quant_v2"
    if gamma.dim() < 1 or x.shape[x.dim() - gamma.dim() :] != gamma.shape:
        refuse(name, "gamma of the last dimensions of x", [list(x.shape), list(gamma.shape)])
    if scale.numel() not in (1, gamma.shape[-1]) or (offset is not None and offset.shape != scale.shape):
        shapes = [list(scale.shape), None if offset is None else list(offset.shape)]
        refuse(name, f"scale and offset of one shape, [1] or [{gamma.shape[-1]}]", shapes)
    inverse = x.float().square().mean(list(range(-gamma.dim(), 0)), keepdim=True).add(epsilon).rsqrt()
    y = x.float() * inverse * gamma.float()
    y = y if beta is None else y + beta.float()
    return _quantized(name, y, scale, offset, div_mode, 1 if dst_dtype is None else dst_dtype), inverse


@composed(
    "_npu_rms_norm_backward_quant(Tensor dy, Tensor x, Tensor rstd, Tensor gamma, Tensor scale_x, *, "
    'Tensor? offset_x=None, bool? div_mode=True, str quant_mode="static", int? dst_type=1) -> (Tensor, Tensor)'
)
def rms_norm_backward_quant(
    dy: Tensor,
    x: Tensor,
    rstd: Tensor,
    gamma: Tensor,
    scale_x: Tensor,
    *,
    offset_x: Tensor | None = None,
    div_mode: bool | None = True,
    dst_type: int | None = 1,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Gradients of npu_rms_norm: that by x, over scale_x [1] plus offset_x [1], in int8, and that by gamma in float32.

    rstd is 1 / RMS of each row. div_mode False multiplies by scale_x.
    """
    name = "_npu_rms_norm_backward_quant"
    refuse_options(name, options)
    if dst_type not in (None, 1):
        raise NotImplementedError(f"{name}: dst_type must be torch.int8 (1), got {dst_type}")
    if dy.shape != x.shape or gamma.dim() < 1 or x.shape[x.dim() - gamma.dim() :] != gamma.shape:
        shapes = [list(t.shape) for t in (dy, x, gamma)]
        refuse(name, "dy and x of one shape, and gamma of its last dimensions", shapes)
    axes = list(range(-gamma.dim(), 0))
    rows = x.shape[: x.dim() - gamma.dim()]
    if rstd.numel() != rows.numel():
        refuse(name, f"rstd {list(rows)}", list(rstd.shape))
    inverse = rstd.float().view(*rows, *[1] * gamma.dim())
    normal, grad = x.float() * inverse, dy.float()
    weighted = grad * gamma.float()
    dx = (weighted - normal * (weighted * normal).mean(axes, keepdim=True)) * inverse
    dgamma = (grad * normal).reshape(-1, *gamma.shape).sum(0)
    return _quantized(name, dx, scale_x, offset_x, div_mode is not False, 1), dgamma
