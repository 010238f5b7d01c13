"""Matrices of float4_e2m1, two numbers in a byte, scaled by blocks of 512 and by powers of two of blocks of 32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_npu.composed.block_quantization import powers_of_two
from torch_npu.composed.registry import composed, dtype_numbered, refuse
from torch_npu.composed.small_floats import float4, float4_values
from torch_npu.dtypes import NUMBERS

_LARGEST, _LARGEST_EXPONENT = 6, 2  # of float4_e2m1
_LONG, _SHORT = 512, 32  # blocks


def _blocks(x: Tensor, size: int) -> Tensor:
    """The last dimension in blocks, the last one filled up with zeros."""
    return F.pad(x, (0, -x.shape[-1] % size)).unflatten(-1, (-1, size))


@composed(
    'npu_dynamic_dual_level_mx_quant(Tensor input, *, Tensor? smooth_scale=None, str round_mode="rint") -> '
    "(Tensor, Tensor, Tensor)"
)
def dynamic_dual_level_mx_quant(
    input: Tensor, *, smooth_scale: Tensor | None = None, round_mode: str = "rint"
) -> tuple[Tensor, Tensor, Tensor]:
    """input [.., K] in float4 [.., K / 2]; scales of 512 numbers [.., K / 512]; powers of 32, [.., K / 64, 2].

    A scale is the largest magnitude over 6; what is left, in the dtype of input (float16 or bfloat16), is divided by
    the power of two of its block of 32, bytes of float8_e8m0fnu, and rounded by round_mode: rint, round or floor.
    """
    name = "npu_dynamic_dual_level_mx_quant"
    if input.dtype not in (torch.float16, torch.bfloat16):
        raise TypeError(f"{name}: expected an input of float16 or bfloat16, got {input.dtype}")
    if smooth_scale is not None:
        raise NotImplementedError(f"{name}: smooth_scale is not supported; leave it out")
    if input.dim() < 1 or input.shape[-1] % 2 or not input.numel() or round_mode not in ("rint", "round", "floor"):
        seen = [list(input.shape), round_mode]
        refuse(name, "an input that is not empty, its last dimension even, and round_mode rint, round or floor", seen)
    size = input.shape[-1]
    blocks = _blocks(input.float(), _LONG)
    scale = blocks.abs().amax(-1) / _LARGEST
    first = (blocks / scale.where(scale > 0, 1).unsqueeze(-1)).flatten(-2)[..., :size].to(input.dtype).float()
    blocks = _blocks(first, _SHORT)
    shared = ((blocks.abs().amax(-1).view(torch.int32) >> 23) - _LARGEST_EXPONENT).clamp_min(0)
    numbers = (blocks / powers_of_two(shared).unsqueeze(-1)).flatten(-2)[..., :size]
    pairs = F.pad(shared, (0, shared.shape[-1] % 2)).unflatten(-1, (-1, 2))
    return float4(numbers, round_mode), scale, pairs.to(torch.uint8)


def _decoded(operator: str, name: str, x: Tensor, long: Tensor, short: Tensor) -> Tensor:
    """Rows of x [rows, K / 2] in float32, times scales [rows, K / 512] and powers [rows, K / 64, 2]."""
    if x.dim() != 2 or x.dtype not in (torch.int8, torch.uint8):
        refuse(operator, f"{name} [rows, K / 2] in int8 or uint8", [list(x.shape), x.dtype])
    rows, size = x.shape[0], 2 * x.shape[1]
    if long.shape != (rows, -(-size // _LONG)) or short.shape != (rows, -(-size // (2 * _SHORT)), 2):
        expected = f"scales of {name} for {rows} rows of {size} numbers, in blocks of 512 and pairs of blocks of 32"
        refuse(operator, expected, [list(long.shape), list(short.shape)])
    powers = powers_of_two(short.view(torch.uint8)).flatten(1).repeat_interleave(_SHORT, 1)[:, :size]
    return float4_values(x.view(torch.uint8)) * powers * long.float().repeat_interleave(_LONG, 1)[:, :size]


@composed(
    "npu_dual_level_quant_matmul(Tensor x1, Tensor x2, Tensor x1_level0_scale, Tensor x2_level0_scale, "
    "Tensor x1_level1_scale, Tensor x2_level1_scale, *, Tensor? bias=None, int output_dtype=15) -> Tensor"
)
def dual_level_quant_matmul(
    x1: Tensor,
    x2: Tensor,
    x1_level0_scale: Tensor,
    x2_level0_scale: Tensor,
    x1_level1_scale: Tensor,
    x2_level1_scale: Tensor,
    *,
    bias: Tensor | None = None,
    output_dtype: int = 15,
) -> Tensor:
    """x1 [M, K / 2] @ x2 [N, K / 2] transposed + bias [N], of results of npu_dynamic_dual_level_mx_quant.

    Scales are [M, K / 512] and, of x2, [K / 512, N]; powers of two [M, K / 64, 2] and [N, K / 64, 2]. Summed in
    float32, the result is in bfloat16 or (output_dtype) float16. x2 in FRACTAL_NZ is made plain first.
    """
    name = "npu_dual_level_quant_matmul"
    dtype = dtype_numbered(name, "output_dtype", output_dtype, (torch.bfloat16, torch.float16))
    left = _decoded(name, "x1", x1, x1_level0_scale, x1_level1_scale)
    right = _decoded(name, "x2", x2, x2_level0_scale.t(), x2_level1_scale)
    if left.shape[1] != right.shape[1] or (bias is not None and bias.shape != (right.shape[0],)):
        seen = [list(x1.shape), list(x2.shape), None if bias is None else list(bias.shape)]
        refuse(name, "as many columns of x1 as of x2, and bias [N]", seen)
    product = left @ right.t()
    return (product if bias is None else product + bias.float()).to(dtype)


@composed(
    "npu_weight_quant_preprocess(Tensor weight, Tensor weight_scale, int x_dtype, int weight_dtype, "
    "int weight_scale_dtype, Tensor? weight_offset=None, Tensor? bias=None, int? x_scale_dtype=None, "
    "int? k_group_size=0) -> (Tensor, Tensor, Tensor, Tensor)"
)
def weight_quant_preprocess(
    weight: Tensor,
    weight_scale: Tensor,
    x_dtype: int,
    weight_dtype: int,
    weight_scale_dtype: int,
    weight_offset: Tensor | None = None,
    bias: Tensor | None = None,
    x_scale_dtype: int | None = None,
    k_group_size: int | None = 0,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Copies of weight, weight_scale, weight_offset and bias (None where not given) for products with float8_e4m3fn.

    weight [.., K, N] is float4_e2m1 in bytes, weight_scale [.., K / 64, N, 2] its powers of two, both transposed views.
    Ascend's are laid out for the matrix unit (FRACTAL_NZ_C0_16); here they stay as they are.
    """
    name = "npu_weight_quant_preprocess"
    dtype_numbered(name, "x_dtype", x_dtype, (torch.float8_e4m3fn,))
    for argument, number in (("weight_scale_dtype", weight_scale_dtype), ("x_scale_dtype", x_scale_dtype)):
        dtype_numbered(name, argument, -1 if number is None else number, (torch.float8_e8m0fnu,))
    if weight_dtype != NUMBERS["float4_e2m1fn_x2"]:
        raise NotImplementedError(f"{name}: weight_dtype must be torch_npu.float4_e2m1fn_x2, got {weight_dtype}")
    turned = weight.dim() in (2, 3) and weight.mT.is_contiguous()
    if not turned or weight_scale.dim() != weight.dim() + 1 or not weight_scale.transpose(-3, -2).is_contiguous():
        shapes = [list(weight.shape), list(weight_scale.shape)]
        refuse(name, "transposed views weight [.., K, N] and weight_scale [.., K / 64, N, 2]", shapes)
    offset, added = (None if t is None else t.clone() for t in (weight_offset, bias))
    return weight.clone(), weight_scale.clone(), offset, added
