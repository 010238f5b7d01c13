"""Products whose operands or results are spread over the ranks of a group: tensor parallelism.

The group is named by its ``get_hccl_comm_name``. All ranks call the operator. It has no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from torch_npu.composed import groups
from torch_npu.composed.registry import composed, refuse, refuse_options

_HALVES = (torch.float16, torch.bfloat16)


def _check_product(operator: str, x1: Tensor, x2: Tensor, dims: tuple[int, ...] = (2,)) -> None:
    if x1.dim() not in dims or x2.dim() != 2 or x1.shape[-1] != x2.shape[0]:
        expected = "x1 [m, k] or [b, s, k]" if 3 in dims else "x1 [m, k]"
        refuse(operator, f"{expected} and x2 [k, n]", [list(x1.shape), list(x2.shape)])


def _check_engine(operator: str, comm_mode: str | None) -> None:
    """Which unit of the hardware communicates; the results are the same."""
    if comm_mode not in (None, "", "ai_cpu", "aiv", "ccu"):
        refuse(operator, "comm_mode ai_cpu, aiv or ccu", repr(comm_mode))


def _product(x1: Tensor, x2: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x1, x2.t(), None if bias is None else bias.to(x1.dtype))


def _int8_product(
    operator: str,
    x1: Tensor,
    x2: Tensor,
    bias: Tensor | None,
    rows: Tensor | None,
    columns: Tensor | None,
    dtype: torch.dtype | None,
) -> Tensor:
    """(x1 @ x2 + bias) * rows * columns of int8 matrices, in float16 or bfloat16."""
    if columns is None:
        refuse(operator, "a scale of x2 with int8", None)
    if bias is not None and bias.dtype != torch.int32:
        refuse(operator, "an int32 bias with int8", bias.dtype)
    fixed_point = columns.dtype == torch.int64
    dtype = dtype or (torch.float16 if fixed_point else torch.bfloat16)
    if dtype not in _HALVES:
        refuse(operator, "a result in float16 or bfloat16", dtype)
    columns = columns.flatten()
    rows = None if rows is None else rows.flatten()
    return torch.ops.npu.npu_quant_matmul(x1, x2, columns, pertoken_scale=rows, bias=bias, output_dtype=dtype)


def _all_reduce_dtype(x1: Tensor, dequant_scale: Tensor | None) -> torch.dtype:
    if dequant_scale is None:
        return x1.dtype
    return torch.bfloat16 if dequant_scale.dtype == torch.bfloat16 else torch.float16


def _fake_all_reduce(x1: Tensor, x2: Tensor, hcom: str, **options: Any) -> Tensor:
    return x1.new_empty(*x1.shape[:-1], x2.shape[1], dtype=_all_reduce_dtype(x1, options.get("dequant_scale")))


@composed(
    "npu_mm_all_reduce_base(Tensor x1, Tensor x2, str hcom, *, str reduce_op='sum', Tensor? bias=None, "
    "Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, Tensor? x3=None, Tensor? dequant_scale=None, "
    "Tensor? pertoken_scale=None, Tensor? comm_quant_scale_1=None, Tensor? comm_quant_scale_2=None, "
    "int antiquant_group_size=0, int comm_turn=0, int[]? group_sizes=None, int? y_dtype=None, int? x1_dtype=None, "
    "int? x2_dtype=None, int? dequant_scale_dtype=None, int? pertoken_scale_dtype=None, int comm_quant_mode=0, "
    "str? comm_mode=None) -> Tensor",
    fake=_fake_all_reduce,
)
def mm_all_reduce_base(
    x1: Tensor,
    x2: Tensor,
    hcom: str,
    *,
    bias: Tensor | None = None,
    antiquant_scale: Tensor | None = None,
    antiquant_offset: Tensor | None = None,
    x3: Tensor | None = None,
    dequant_scale: Tensor | None = None,
    pertoken_scale: Tensor | None = None,
    antiquant_group_size: int = 0,
    comm_mode: str | None = None,
    **options: Any,
) -> Tensor:
    """Sum over the ranks of x1 [.., m, k] @ x2 [k, n] + bias + x3.

    An int8 x2 with a floating x1 is (x2 + antiquant_offset) * antiquant_scale; int8 x1 and x2 with an int32 bias give
    (x1 @ x2 + bias) * dequant_scale * pertoken_scale, in bfloat16 if dequant_scale is, else in float16.
    """
    name = "npu_mm_all_reduce_base"
    refuse_options(name, options)
    _check_engine(name, comm_mode)
    _check_product(name, x1, x2, (2, 3))
    group = groups.group_named(name, hcom)
    if dequant_scale is not None:
        dtype = _all_reduce_dtype(x1, dequant_scale)
        rows = x1.flatten(0, -2)
        product = _int8_product(name, rows, x2, bias, pertoken_scale, dequant_scale, dtype)
        product = product.unflatten(0, x1.shape[:-1])
    elif antiquant_scale is not None:
        product = torch.ops.npu.npu_weight_quant_batchmatmul(
            x1, x2, antiquant_scale, antiquant_offset, bias=bias, antiquant_group_size=antiquant_group_size
        )
    else:
        product = _product(x1, x2, bias)
    if x3 is not None:
        if x3.shape != product.shape:
            refuse(name, f"x3 {list(product.shape)}", list(x3.shape))
        product = product + x3
    return groups.all_reduce(product, group)


def _fake_all_gather(
    self: Tensor, x2: Tensor, hcom: str, world_size: int, *, gather_output: bool = True, **options: Any
) -> tuple[Tensor, Tensor]:
    rows, (k, n) = self.shape[0] * world_size, x2.shape
    dtype = _scattered_dtype(self, options.get("x2_scale"), options.get("output_dtype"))
    return self.new_empty(rows, n, dtype=dtype), self.new_empty(rows, k) if gather_output else self.new_empty(0)


def _scattered_dtype(x1: Tensor, x2_scale: Tensor | None, dtype: torch.dtype | None) -> torch.dtype:
    if x1.dtype != torch.int8:
        return x1.dtype
    return dtype or (torch.float16 if x2_scale is not None and x2_scale.dtype == torch.int64 else torch.bfloat16)


def _check_scales(operator: str, x1: Tensor, options: dict[str, Any]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if x1.dtype != torch.int8 and given:
        refuse(operator, "x1_scale, x2_scale and output_dtype with int8 only", given)


@composed(
    "npu_all_gather_base_mm(Tensor self, Tensor x2, str hcom, int world_size, *, Tensor? bias=None, "
    "Tensor? x1_scale=None, Tensor? x2_scale=None, int gather_index=0, bool gather_output=True, int comm_turn=0, "
    "ScalarType? output_dtype=None, str? comm_mode=None) -> (Tensor, Tensor)",
    fake=_fake_all_gather,
)
def all_gather_base_mm(
    self: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    *,
    bias: Tensor | None = None,
    x1_scale: Tensor | None = None,
    x2_scale: Tensor | None = None,
    gather_output: bool = True,
    output_dtype: torch.dtype | None = None,
    comm_mode: str | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """The rows of all ranks' self [m, k], @ x2 [k, n] + bias; and the rows themselves, or nothing.

    Of int8 matrices (rows @ x2 + bias) * x1_scale * x2_scale, in float16 for an int64 x2_scale, else in output_dtype
    (bfloat16). x1_scale [m, 1] is gathered, too.
    """
    name = "npu_all_gather_base_mm"
    refuse_options(name, options)
    _check_engine(name, comm_mode)
    _check_product(name, self, x2)
    _check_scales(name, self, {"x1_scale": x1_scale, "x2_scale": x2_scale, "output_dtype": output_dtype})
    group = groups.group_named(name, hcom, world_size)
    rows = groups.all_gather(self, group)
    if self.dtype == torch.int8:
        scales = None if x1_scale is None else groups.all_gather(x1_scale.flatten(), group)
        product = _int8_product(name, rows, x2, bias, scales, x2_scale, output_dtype)
    else:
        product = _product(rows, x2, bias)
    return product, rows if gather_output else rows.new_empty(0)


def _fake_reduce_scatter(self: Tensor, x2: Tensor, hcom: str, world_size: int, **options: Any) -> Tensor:
    dtype = _scattered_dtype(self, options.get("x2_scale"), options.get("output_dtype"))
    return self.new_empty(self.shape[0] // world_size, x2.shape[1], dtype=dtype)


@composed(
    "npu_mm_reduce_scatter_base(Tensor self, Tensor x2, str hcom, int world_size, *, str reduce_op='sum', "
    "Tensor? bias=None, Tensor? x1_scale=None, Tensor? x2_scale=None, int comm_turn=0, "
    "ScalarType? output_dtype=None, str? comm_mode=None) -> Tensor",
    fake=_fake_reduce_scatter,
)
def mm_reduce_scatter_base(
    self: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    *,
    bias: Tensor | None = None,
    x1_scale: Tensor | None = None,
    x2_scale: Tensor | None = None,
    output_dtype: torch.dtype | None = None,
    comm_mode: str | None = None,
    **options: Any,
) -> Tensor:
    """This rank's m / world_size rows of the sum over the ranks of self [m, k] @ x2 [k, n] + bias.

    Of int8 matrices (self @ x2 + bias) * x1_scale * x2_scale, in float16 for an int64 x2_scale, else in output_dtype
    (bfloat16).
    """
    name = "npu_mm_reduce_scatter_base"
    refuse_options(name, options)
    _check_engine(name, comm_mode)
    _check_product(name, self, x2)
    _check_scales(name, self, {"x1_scale": x1_scale, "x2_scale": x2_scale, "output_dtype": output_dtype})
    group = groups.group_named(name, hcom, world_size)
    if self.shape[0] % world_size:
        refuse(name, f"rows that {world_size} ranks share evenly", self.shape[0])
    if self.dtype == torch.int8:
        product = _int8_product(name, self, x2, bias, x1_scale, x2_scale, output_dtype)
    else:
        product = _product(self, x2, bias)
    return groups.reduce_scatter(product, group)


def _check_axes(operator: str, axes: list[int] | None, expected: list[int]) -> None:
    if axes and list(axes) != expected:
        refuse(operator, f"all2all_axes None or {expected}", axes)


def _fake_to_all(x1: Tensor, x2: Tensor, hcom: str, world_size: int, *options: Any, **named: Any) -> Tensor:
    return x1.new_empty(x1.shape[0] * world_size, x2.shape[1] // world_size)


@composed(
    "npu_matmul_all_to_all(Tensor x1, Tensor x2, str hcom, int world_size, Tensor? bias=None, "
    "int[]? all2all_axes=None, str? comm_mode=None) -> Tensor",
    fake=_fake_to_all,
)
def matmul_all_to_all(
    x1: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    bias: Tensor | None = None,
    all2all_axes: list[int] | None = None,
    comm_mode: str | None = None,
) -> Tensor:
    """x1 [m, k] @ x2 [k, n] + bias, whose columns go to the ranks: [world_size * m, n / world_size]."""
    name = "npu_matmul_all_to_all"
    _check_engine(name, comm_mode)
    _check_axes(name, all2all_axes, [-1, -2])
    _check_product(name, x1, x2)
    group = groups.group_named(name, hcom, world_size)
    return columns_to_all(name, _product(x1, x2, bias), group)


def columns_to_all(operator: str, product: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Sends each rank its columns of the product: [ranks * m, n / ranks]."""
    if product.shape[1] % group.size():
        refuse(operator, f"columns that {group.size()} ranks share evenly", product.shape[1])
    parts = product.unflatten(1, (group.size(), -1)).transpose(0, 1)
    return groups.all_to_all(parts, group).flatten(0, 1)


def rows_to_all(operator: str, x1: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Sends each rank its rows of x1, and sets those that come beside each other: [m / ranks, ranks * k]."""
    if x1.shape[0] % group.size():
        refuse(operator, f"rows that {group.size()} ranks share evenly", x1.shape[0])
    parts = x1.unflatten(0, (group.size(), -1))
    return groups.all_to_all(parts, group).transpose(0, 1).flatten(1)


def _fake_of_all(
    x1: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    bias: Tensor | None = None,
    all2all_axes: list[int] | None = None,
    all2all_out_flag: bool = True,
    comm_mode: str | None = None,
) -> tuple[Tensor, Tensor]:
    rows, width = x1.shape[0] // world_size, x1.shape[1] * world_size
    gathered = x1.new_empty(rows, width) if all2all_out_flag else x1.new_empty(0)
    return x1.new_empty(rows, x2.shape[1]), gathered


@composed(
    "npu_all_to_all_matmul(Tensor x1, Tensor x2, str hcom, int world_size, Tensor? bias=None, "
    "int[]? all2all_axes=None, bool all2all_out_flag=True, str? comm_mode=None) -> (Tensor, Tensor)",
    fake=_fake_of_all,
)
def all_to_all_matmul(
    x1: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    bias: Tensor | None = None,
    all2all_axes: list[int] | None = None,
    all2all_out_flag: bool = True,
    comm_mode: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Rows of x1 [m, k] go to the ranks; [m / world_size, world_size * k] @ x2 + bias, and its left operand."""
    name = "npu_all_to_all_matmul"
    _check_engine(name, comm_mode)
    _check_axes(name, all2all_axes, [-2, -1])
    if x1.dim() != 2 or x2.dim() != 2 or x1.shape[1] * world_size != x2.shape[0]:
        refuse(name, "x1 [m, k] and x2 [world_size * k, n]", [list(x1.shape), list(x2.shape), world_size])
    group = groups.group_named(name, hcom, world_size)
    rows = rows_to_all(name, x1, group)
    return _product(rows, x2, bias), rows if all2all_out_flag else rows.new_empty(0)
