"""Norms and rotations whose result is quantized."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_npu.composed.block_quantization import microscaled
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
