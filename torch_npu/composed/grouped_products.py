"""Products of quantized matrices whose inner dimension is in groups: gradients of the weights of experts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_npu.composed.block_quantization import powers_of_two
from torch_npu.composed.grouped_quantization import group_of_rows
from torch_npu.composed.registry import composed, dtype_numbered, refuse, refuse_options

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_E8M0 = (torch.float8_e8m0fnu, torch.uint8)
_ARGUMENTS = (
    "Tensor x1, Tensor x2, Tensor x2_scale, Tensor group_list, *, Tensor? x1_scale=None, int? group_list_type=0, "
    "int[]? group_sizes=None, int? x1_dtype=None, int? x2_dtype=None, int? x1_scale_dtype=None, "
    "int? x2_scale_dtype=None"
)


def _powers(operator: str, scale: Tensor, columns: int, ends: Tensor, rows: int) -> Tensor:
    """The power of two of each element [rows, columns], of bytes [rows // 64 + g, columns, 2]."""
    expected = (rows // 64 + ends.shape[0], columns, 2)
    if scale.shape != expected:
        refuse(operator, f"powers of two {list(expected)}", list(scale.shape))
    group, place = group_of_rows(ends, rows)
    block = 2 * ((torch.arange(rows, device=ends.device) - place) // 64 + group) + place // 32
    return powers_of_two(scale.view(torch.uint8)).transpose(1, 2).flatten(0, 1)[block]


def _factors(operator: str, scale: Tensor, groups: int, columns: int) -> Tensor:
    """float32 [groups, 1 or columns] of scales [groups], [groups, 1] or [groups, columns]."""
    if scale.dtype != torch.float32 or scale.shape not in ((groups,), (groups, 1), (groups, columns)):
        expected = f"float32 scales {[groups]}, {[groups, 1]} or {[groups, columns]}"
        refuse(operator, expected, [scale.dtype, list(scale.shape)])
    return scale.view(groups, -1)


def _added(
    operator: str,
    self: Tensor,
    x1: Tensor,
    x2: Tensor,
    x2_scale: Tensor,
    group_list: Tensor,
    x1_scale: Tensor | None = None,
    group_list_type: int | None = 0,
    **options: Any,
) -> Tensor:
    for name in ("x1_scale_dtype", "x2_scale_dtype"):
        number = options.pop(name, None)
        if number is not None:
            dtype_numbered(operator, name, number, (torch.float8_e8m0fnu,))
    refuse_options(operator, options)
    if x1.dtype not in _FLOAT8 or x2.dtype not in _FLOAT8 or x1_scale is None:
        raise TypeError(
            f"{operator}: expected x1 and x2 in float8_e4m3fn or float8_e5m2, and x1_scale, got {[x1.dtype, x2.dtype]}"
        )
    groups = group_list.shape[0]
    fits = x1.dim() == x2.dim() == 2 and x1.shape[1] == x2.shape[0] and group_list.dim() == 1
    if not fits or self.shape != (groups, x1.shape[0], x2.shape[1]) or group_list_type not in (0, 1, None):
        shapes = [list(t.shape) for t in (self, x1, x2, group_list)]
        refuse(operator, "self [g, m, n], x1 [m, k], x2 [k, n], group_list [g] and group_list_type 0 or 1", shapes)
    ends = group_list if not group_list_type else group_list.cumsum(0)
    inner = x2.shape[0]
    left, right = x1.float().t(), x2.float()
    if x1_scale.dtype in _E8M0 and x2_scale.dtype in _E8M0:
        left = left * _powers(operator, x1_scale, x1.shape[0], ends, inner)
        right = right * _powers(operator, x2_scale, x2.shape[1], ends, inner)
        factors = left.new_ones(groups, 1)
    else:
        factors = _factors(operator, x1_scale, groups, 1) * _factors(operator, x2_scale, groups, x2.shape[1])
    group, _ = group_of_rows(ends, inner)
    group = group.where(torch.arange(inner, device=ends.device) < ends[-1:], groups)
    # The host does not read where groups end: each product has the others' rows as zeros.
    products = [left.where((group == g).unsqueeze(1), 0).t() @ right for g in range(groups)]
    return self + (torch.stack(products) * factors.unsqueeze(1)).to(self.dtype) if groups else self.clone()


@composed(f"npu_add_quant_gmm(Tensor self, {_ARGUMENTS}) -> Tensor")
def add_quant_gmm(self: Tensor, x1: Tensor, x2: Tensor, x2_scale: Tensor, group_list: Tensor, **options: Any) -> Tensor:
    """self [g, m, n] + x1 @ x2 of each group of the inner dimension of float8 matrices [m, k] and [k, n].

    group_list [g] has the ends of the groups (group_list_type 1: their sizes). Scales are float32, x1_scale [g] and
    x2_scale [g] or [g, n], or the powers of two that npu_grouped_dynamic_mx_quant makes of x1 transposed and of x2: [k
    // 64 + g, m, 2] and [k // 64 + g, n, 2]. The time grows with the number of groups.
    """
    return _added("npu_add_quant_gmm", self, x1, x2, x2_scale, group_list, **options)


@composed(f"npu_add_quant_gmm_(Tensor(a!) self, {_ARGUMENTS}) -> Tensor(a!)")
def add_quant_gmm_(
    self: Tensor, x1: Tensor, x2: Tensor, x2_scale: Tensor, group_list: Tensor, **options: Any
) -> Tensor:
    """npu_add_quant_gmm in place."""
    return self.copy_(_added("npu_add_quant_gmm_", self, x1, x2, x2_scale, group_list, **options))
