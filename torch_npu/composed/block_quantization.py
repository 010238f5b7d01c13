"""Quantization by blocks of rows and columns, and microscaling: float8 whose blocks of 32 share a power of two."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_npu.composed.registry import composed, dtype_numbered, refuse, refuse_options

__all__ = ["exponents", "microscaled", "powers_of_two", "rounded"]

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_LARGEST_EXPONENT = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 15}
_BLOCK = 32


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in an 8-bit dtype, to the nearest; what is too large becomes the largest number."""
    if dtype == torch.int8:
        return x.round().clamp(-127, 127).to(dtype)
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype)


@composed(
    'npu_dynamic_block_quant(Tensor x, *, float min_scale=0.0, str round_mode="rint", int dst_type=1, '
    "int row_block_size=1, int col_block_size=128, float dst_type_max=0.0) -> (Tensor y, Tensor scale)"
)
def dynamic_block_quant(
    x: Tensor,
    *,
    min_scale: float = 0.0,
    dst_type: int = 1,
    row_block_size: int = 1,
    col_block_size: int = 128,
    **options: str | float,
) -> tuple[Tensor, Tensor]:
    """x [M, N] or [B, M, N] over the scale of each block, in int8, float8_e4m3fn or float8_e5m2, and the scales.

    A scale is the block's largest magnitude over that of the dtype, at most 1 / min_scale. Blocks of zeros are zeros.
    """
    name = "npu_dynamic_block_quant"
    refuse_options(name, options)
    dtype = dtype_numbered(name, "dst_type", dst_type, (torch.int8, *_FLOAT8))
    if x.dim() not in (2, 3) or min(row_block_size, col_block_size) < 1 or min_scale < 0:
        refuse(name, "x [M, N] or [B, M, N], positive sizes of blocks and min_scale", list(x.shape))
    rows, columns = x.shape[-2:]
    wide = F.pad(x.float(), (0, -columns % col_block_size, 0, -rows % row_block_size))
    blocks = wide.unflatten(-1, (-1, col_block_size)).unflatten(-3, (-1, row_block_size))
    largest = torch.finfo(dtype).max if dtype.is_floating_point else 127
    scale = blocks.abs().amax((-3, -1)) / largest
    if min_scale:
        scale = scale.clamp_max(1 / min_scale)
    divisor = scale.where(scale > 0, 1)[..., None, :, None]
    y = rounded(blocks / divisor, dtype)
    return y.flatten(-4, -3).flatten(-2)[..., :rows, :columns].contiguous(), scale


def exponents(x: Tensor, dtype: torch.dtype, scale_alg: int) -> Tensor:
    """The biased exponents (0 to 254; 255 for what is not finite) of the powers of two by which blocks are divided.

    Args:
        x: blocks [.., 32] in float32.
        scale_alg: 0 for that of the block's largest magnitude less that of the dtype's; 1 for the least one with which
            nothing is too large.
    """
    bits = x.abs().amax(-1).view(torch.int32)
    if scale_alg == 0:
        shared = ((bits >> 23) - _LARGEST_EXPONENT[dtype]).clamp_min(0)
    else:
        scale = (bits.view(torch.float32) / torch.finfo(dtype).max).view(torch.int32)
        exponent, fraction = scale >> 23, scale & 0x7FFFFF
        more = torch.where(exponent == 0, fraction > 0x400000, (fraction > 0) & (exponent < 254))
        shared = exponent + more.int()
    return shared.where((bits >> 23) < 255, 255)


def microscaled(
    operator: str, x: Tensor, axis: int, dtype: torch.dtype, block: int, scale_alg: int
) -> tuple[Tensor, Tensor]:
    """``x`` in float8 and its scales, two of neighbouring blocks along ``axis`` together: [.., blocks / 2, .., 2]."""
    if scale_alg not in (0, 1):
        raise NotImplementedError(f"{operator}: scale_alg must be 0 or 1, got {scale_alg}")
    if not -x.dim() <= axis < x.dim() or block % _BLOCK or not 0 < block <= 1024:
        refuse(operator, "an axis of the input, and blocks of a multiple of 32 up to 1024", [axis, block])
    moved = x.movedim(axis, -1).float()
    size = moved.shape[-1]
    blocks = F.pad(moved, (0, -size % block)).unflatten(-1, (-1, block))
    shared = exponents(blocks, dtype, scale_alg)
    inverse = ((254 - shared) << 23).view(torch.float32).where(shared < 255, torch.nan)
    y = rounded(blocks * inverse.unsqueeze(-1), dtype).flatten(-2)[..., :size].movedim(-1, axis).contiguous()
    pairs = F.pad(shared, (0, shared.shape[-1] % 2)).unflatten(-1, (-1, 2)).to(torch.uint8)
    return y, pairs.movedim(-2, axis if axis >= 0 else axis - 1).contiguous()


def powers_of_two(exponents: Tensor) -> Tensor:
    """float32 powers of two of biased exponents, as float8_e8m0fnu has them; 255 is NaN."""
    shared = exponents.int()
    # 2^-127, of exponent 0, has no exponent of its own in float32.
    return (shared << 23).where(shared > 0, 1 << 22).view(torch.float32).where(shared < 255, torch.nan)


_MX = 'str round_mode="rint", int dst_type=296'


@composed(
    f"npu_dynamic_mx_quant(Tensor input, *, int axis=-1, {_MX}, int block_size=32, int? scale_alg=0, "
    "float dst_type_max=0.0, float max_low_bound=0.0) -> (Tensor, Tensor)"
)
def dynamic_mx_quant(
    input: Tensor,
    *,
    axis: int = -1,
    dst_type: int = 296,
    block_size: int = 32,
    scale_alg: int | None = 0,
    **options: str | float,
) -> tuple[Tensor, Tensor]:
    """input over a power of two of each block along axis, in float8_e4m3fn or float8_e5m2, and the powers.

    The powers are bytes of float8_e8m0fnu, [.., blocks / 2, .., 2] where axis is; a block without a partner has a 0.
    scale_alg 0: the largest power of the block less that of the dtype, and what is then too large becomes its largest
    number; 1: the least power with which nothing is too large.
    """
    name = "npu_dynamic_mx_quant"
    refuse_options(name, options)
    dtype = dtype_numbered(name, "dst_type", dst_type, _FLOAT8)
    return microscaled(name, input, axis, dtype, block_size, scale_alg or 0)


@composed(
    f"npu_dynamic_mx_quant_with_dual_axis(Tensor input, *, {_MX}, int scale_alg=0, float? dst_type_max=0.0) -> "
    "(Tensor, Tensor, Tensor, Tensor)"
)
def dynamic_mx_quant_with_dual_axis(
    input: Tensor, *, dst_type: int = 296, scale_alg: int = 0, **options: str | float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """npu_dynamic_mx_quant along the last axis, and along the one before it."""
    name = "npu_dynamic_mx_quant_with_dual_axis"
    refuse_options(name, options)
    if input.dim() < 2:
        refuse(name, "an input of two dimensions at least", list(input.shape))
    dtype = dtype_numbered(name, "dst_type", dst_type, _FLOAT8)
    last, other = (microscaled(name, input, axis, dtype, _BLOCK, scale_alg) for axis in (-1, -2))
    return *last, *other


@composed("npu_anti_mx_quant(Tensor x, Tensor mxscale, *, int? axis=-1, int? dst_type=15, int? src_type=292) -> Tensor")
def anti_mx_quant(
    x: Tensor, mxscale: Tensor, *, axis: int | None = -1, dst_type: int | None = 15, src_type: int | None = 292
) -> Tensor:
    """x in float8 times the powers of two of npu_dynamic_mx_quant (blocks of 32), in float16, bfloat16 or float32."""
    name = "npu_anti_mx_quant"
    if x.dtype not in _FLOAT8:
        raise NotImplementedError(f"{name}: x must be float8_e4m3fn or float8_e5m2, got {x.dtype}")
    where = -1 if axis is None else axis
    kinds = (torch.float16, torch.bfloat16, torch.float32)
    dtype = dtype_numbered(name, "dst_type", 15 if dst_type is None else dst_type, kinds)
    if not -x.dim() <= where < x.dim() or mxscale.dim() != x.dim() + 1 or mxscale.shape[-1] != 2:
        refuse(name, "an axis of x, and mxscale [.., blocks / 2, .., 2]", [where, list(mxscale.shape)])
    wide = x.movedim(where, -1).float()
    size = wide.shape[-1]
    shared = mxscale.view(torch.uint8).movedim(where if where >= 0 else where - 1, -2).flatten(-2).int()
    if shared.shape[:-1] != wide.shape[:-1] or shared.shape[-1] != 2 * -(-size // (2 * _BLOCK)):
        refuse(name, "mxscale of two powers for each 64 elements of x", [list(x.shape), list(mxscale.shape)])
    powers = powers_of_two(shared)
    blocks = F.pad(wide, (0, -size % (2 * _BLOCK))).unflatten(-1, (-1, _BLOCK))
    y = (blocks * powers.unsqueeze(-1)).flatten(-2)[..., :size]
    return y.movedim(-1, where).to(dtype)
