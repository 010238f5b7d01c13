"""Quantization of groups of rows that lie one behind the other, as the experts' rows do.

Groups are given by the row behind each one's last. A block of rows has no rows of two groups; the blocks of group g
begin at start // size + g, so that results have a shape that no value decides. Scales of no block are 0.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_npu.composed.block_quantization import exponents, microscaled, rounded
from torch_npu.composed.registry import composed, dtype_numbered, refuse, refuse_options

__all__ = ["group_of_rows", "microscaled_rows"]

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def group_of_rows(ends: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The group of each row, and the row's number in it; rows behind all groups count as the last group's."""
    row = torch.arange(rows, device=ends.device)
    wide = ends.long()
    group = torch.searchsorted(wide, row, right=True).clamp_max(ends.shape[0] - 1)
    return group, row - F.pad(wide, (1, -1))[group]


def _check_ends(operator: str, ends: Tensor) -> None:
    if ends.dim() != 1 or not ends.shape[0] or ends.dtype not in (torch.int32, torch.int64):
        refuse(operator, "ends of groups [g] in int32 or int64", [ends.dtype, list(ends.shape)])


def microscaled_rows(
    operator: str, x: Tensor, ends: Tensor, dtype: torch.dtype, scale_alg: int
) -> tuple[Tensor, Tensor]:
    """``x`` [m, n] in float8, 32 rows of a column with one power of two, and the powers [m // 64 + g, n, 2]."""
    _check_ends(operator, ends)
    if x.dim() != 2 or scale_alg not in (0, 1):
        refuse(operator, "x [m, n] and scale_alg 0 or 1", [list(x.shape), scale_alg])
    wide, (m, n) = x.float(), x.shape
    group, place = group_of_rows(ends, m)
    block = 2 * ((torch.arange(m, device=x.device) - place) // 64 + group) + place // 32
    index = block.unsqueeze(1).expand(m, n)
    blocks = wide.new_zeros(2 * (m // 64 + ends.shape[0]), n).scatter_reduce(0, index, wide.abs(), "amax")
    shared = exponents(blocks.unsqueeze(-1), dtype, scale_alg)
    inverse = ((254 - shared) << 23).view(torch.float32).where(shared < 255, torch.nan)
    y = rounded(wide * inverse[block], dtype)
    return y, shared.unflatten(0, (-1, 2)).movedim(1, 2).to(torch.uint8).contiguous()


@composed(
    'npu_grouped_dynamic_mx_quant(Tensor x, Tensor group_index, *, str round_mode="rint", int dst_type=23, '
    "int blocksize=32, int? scale_alg=0, float? dst_type_max=0.0) -> (Tensor, Tensor)"
)
def grouped_dynamic_mx_quant(
    x: Tensor, group_index: Tensor, *, dst_type: int = 23, scale_alg: int | None = 0, **options: Any
) -> tuple[Tensor, Tensor]:
    """npu_dynamic_mx_quant of x [m, n] along its rows, group by group: float8 and powers of two [m // 64 + g, n, 2].

    group_index [g] has the ends of the groups, the last is m. Powers of group i begin at start // 64 + i.
    """
    name = "npu_grouped_dynamic_mx_quant"
    refuse_options(name, options)
    return microscaled_rows(name, x, group_index, dtype_numbered(name, "dst_type", dst_type, _FLOAT8), scale_alg or 0)


@composed(
    "npu_grouped_dynamic_block_quant(Tensor x, Tensor group_list, *, float min_scale=0.0, "
    'str round_mode="rint", int dst_type=291, int row_block_size=1, int col_block_size=128, int group_list_type=0, '
    "float dst_type_max=0.0) -> (Tensor, Tensor)"
)
def grouped_dynamic_block_quant(
    x: Tensor,
    group_list: Tensor,
    *,
    min_scale: float = 0.0,
    dst_type: int = 291,
    row_block_size: int = 1,
    col_block_size: int = 128,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """npu_dynamic_block_quant of x [M, N] or [B, M, N] to float8, group by group of its M rows.

    group_list [g] has the ends of the groups, the last is M. Scales are [.., M // row_block_size + g, blocks]; those of
    group i begin at start // row_block_size + i.
    """
    name = "npu_grouped_dynamic_block_quant"
    refuse_options(name, options)
    _check_ends(name, group_list)
    dtype = dtype_numbered(name, "dst_type", dst_type, _FLOAT8)
    if x.dim() not in (2, 3) or min(row_block_size, col_block_size) < 1 or min_scale < 0:
        refuse(name, "x [M, N] or [B, M, N], positive sizes of blocks and min_scale", list(x.shape))
    rows, columns = x.shape[-2:]
    wide = F.pad(x.float(), (0, -columns % col_block_size)).unflatten(-1, (-1, col_block_size))
    largest = wide.abs().amax(-1)
    group, place = group_of_rows(group_list, rows)
    block = (torch.arange(rows, device=x.device) - place) // row_block_size + group + place // row_block_size
    index = block.unsqueeze(1).expand_as(largest)
    shape = (*x.shape[:-2], rows // row_block_size + group_list.shape[0], largest.shape[-1])
    scale = largest.new_zeros(shape).scatter_reduce(-2, index, largest, "amax") / torch.finfo(dtype).max
    if min_scale:
        scale = scale.clamp_max(1 / min_scale)
    divisor = scale.where(scale > 0, 1).index_select(-2, block).unsqueeze(-1)
    return rounded(wide / divisor, dtype).flatten(-2)[..., :columns].contiguous(), scale


@composed(
    'npu_dynamic_block_mx_quant(Tensor input, *, str round_mode="rint", int dst_type=296, int scale_alg=0, '
    "float dst_type_max=0.0) -> (Tensor, Tensor, Tensor)"
)
def dynamic_block_mx_quant(input: Tensor, *, dst_type: int = 296, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """input [.., M, N] in float8, 32 by 32 numbers with one power of two, and the powers as along either axis.

    They are those of npu_dynamic_mx_quant_with_dual_axis: [.., M, N / 64, 2] and [.., M / 64, N, 2].
    """
    name = "npu_dynamic_block_mx_quant"
    refuse_options(name, options)
    dtype = dtype_numbered(name, "dst_type", dst_type, _FLOAT8)
    if input.dim() not in (2, 3):
        refuse(name, "an input [M, N] or [B, M, N]", list(input.shape))
    m, n = input.shape[-2:]
    blocks = F.pad(input.float(), (0, -n % 32, 0, -m % 32)).unflatten(-1, (-1, 32)).unflatten(-3, (-1, 32))
    largest = blocks.abs().amax((-3, -1), keepdim=True)
    # As a whole block has one magnitude, microscaling of it along an axis finds the block's power.
    magnitudes = largest.expand_as(blocks).flatten(-4, -3).flatten(-2)[..., :m, :n]
    powers = [microscaled(name, magnitudes, axis, dtype, 32, 0)[1] for axis in (-1, -2)]
    shared = exponents(largest, dtype, 0).unsqueeze(-1)
    inverse = ((254 - shared) << 23).view(torch.float32).where(shared < 255, torch.nan)
    y = rounded(blocks * inverse, dtype).flatten(-4, -3).flatten(-2)[..., :m, :n].contiguous()
    return y, powers[0], powers[1]


@composed(
    'npu_quant_max(Tensor x, Tensor scale, *, str round_mode="rint", int dst_dtype=291, '
    "Tensor? group_list=None) -> (Tensor, Tensor)"
)
def quant_max(
    x: Tensor,
    scale: Tensor,
    *,
    round_mode: str = "rint",
    dst_dtype: int = 291,
    group_list: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x * scale in float8_e4m3fn or float8_e5m2, and the largest magnitude of x [1], or of each group of rows [g].

    group_list [g] has the ends of the groups, each with its scale [g]. What is too large becomes the largest number.
    """
    name = "npu_quant_max"
    dtype = dtype_numbered(name, "dst_dtype", dst_dtype, _FLOAT8)
    if round_mode != "rint":
        raise NotImplementedError(f"{name}: round_mode must be rint, got {round_mode!r}")
    count = 1 if group_list is None else group_list.shape[0]
    if not x.dim() or scale.shape != (count,):
        refuse(name, f"x of a dimension at least and scale [{count}]", [list(x.shape), list(scale.shape)])
    if group_list is None:
        return rounded(x.float() * scale, dtype), x.abs().amax().reshape(1)
    _check_ends(name, group_list)
    group = group_of_rows(group_list, x.shape[0])[0]
    rows = x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)
    largest = rows.float().abs().amax(1)
    maxima = largest.new_zeros(count).scatter_reduce(0, group, largest, "amax")
    return rounded(rows.float() * scale[group].unsqueeze(1), dtype).view(x.shape), maxima.to(x.dtype)
