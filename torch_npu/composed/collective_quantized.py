"""Products of quantized matrices whose operands or results are spread over the ranks of a group.

The group is named by its get_hccl_comm_name. All ranks call the operator. It has no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_npu.composed import groups
from torch_npu.composed.block_quantization import powers_of_two
from torch_npu.composed.collective_products import columns_to_all, rows_to_all
from torch_npu.composed.registry import composed, dtype_numbered, refuse, refuse_options

_QUANTIZED = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)
_FLOAT8 = _QUANTIZED[1:]
_RESULTS = (torch.float16, torch.bfloat16, torch.float32)
_E8M0 = (torch.float8_e8m0fnu, torch.uint8)
_DTYPES = (
    "int? y_dtype=None, int? x1_dtype=None, int? x2_dtype=None, int? x1_scale_dtype=None, int? x2_scale_dtype=None"
)


def _result_dtype(operator: str, x1: Tensor, y_dtype: int | None) -> torch.dtype:
    if y_dtype is not None:
        return dtype_numbered(operator, "y_dtype", y_dtype, _RESULTS)
    if x1.dtype not in _RESULTS:
        refuse(operator, "y_dtype with quantized matrices", None)
    return x1.dtype


def _product(
    operator: str, x1: Tensor, x2: Tensor, bias: Tensor | None, x1_scale: Tensor | None, x2_scale: Tensor | None
) -> Tensor:
    """In float32: (x1 @ x2 + bias) * x1_scale * x2_scale; powers of two of blocks of 32 are those of the operands."""
    if x1.dim() != 2 or x2.dim() != 2 or x1.shape[1] != x2.shape[0]:
        refuse(operator, "x1 [m, k] and x2 [k, n]", [list(x1.shape), list(x2.shape)])
    scaled = [x1_scale is not None, x2_scale is not None]
    if scaled != [x1.dtype in _QUANTIZED] * 2:
        refuse(operator, "x1_scale and x2_scale with quantized matrices only", [x1.dtype, *scaled])
    left, right = x1.float(), x2.float()
    added = 0 if bias is None else bias.float()
    if x1_scale is None or x2_scale is None:
        return left @ right + added
    (m, k), n = x1.shape, x2.shape[1]
    if x1_scale.dtype in _E8M0 and x2_scale.dtype in _E8M0:
        pairs = -(-k // 64)
        if x1_scale.shape != (m, pairs, 2) or x2_scale.shape != (pairs, n, 2):
            seen = [list(x1_scale.shape), list(x2_scale.shape)]
            refuse(operator, f"powers of two {[m, pairs, 2]} and {[pairs, n, 2]}", seen)
        rows = powers_of_two(x1_scale.view(torch.uint8)).flatten(1).repeat_interleave(32, 1)[:, :k]
        columns = powers_of_two(x2_scale.view(torch.uint8)).transpose(1, 2).flatten(0, 1)
        return (left * rows) @ (right * columns.repeat_interleave(32, 0)[:k]) + added
    if x1_scale.numel() not in (1, m) or x2_scale.numel() not in (1, n):
        refuse(operator, f"scales of 1 or {m} and of 1 or {n} numbers", [x1_scale.numel(), x2_scale.numel()])
    return (left @ right + added) * x1_scale.float().view(-1, 1) * x2_scale.float().view(1, -1)


def _own_options(operator: str, options: dict[str, Any]) -> None:
    """What says again what the tensors say, and the unit of the hardware that communicates."""
    options.pop("comm_mode", None)
    for name in ("x1_scale_dtype", "x2_scale_dtype"):
        number = options.pop(name, None)
        if number is not None:
            dtype_numbered(operator, name, number, (torch.float8_e8m0fnu,))
    refuse_options(operator, options)


def _fake_gathered(
    self: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    *,
    gather_output: bool = True,
    y_dtype: int | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = self.shape[0] * world_size
    dtype = _result_dtype("npu_all_gather_quant_mm", self, y_dtype)
    gathered = self.new_empty(rows, self.shape[1]) if gather_output else self.new_empty(0)
    return self.new_empty(rows, x2.shape[1], dtype=dtype), gathered, self.new_empty(0, dtype=torch.float32)


@composed(
    "npu_all_gather_quant_mm(Tensor self, Tensor x2, str hcom, int world_size, *, Tensor? bias=None, "
    "Tensor? x1_scale=None, Tensor? x2_scale=None, Tensor? quant_scale=None, int block_size=0, int gather_index=0, "
    f"bool gather_output=True, int comm_turn=0, int[]? group_sizes=None, bool amax_output=False, {_DTYPES}, "
    "str? comm_mode=None) -> (Tensor, Tensor, Tensor)",
    fake=_fake_gathered,
)
def all_gather_quant_mm(
    self: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    *,
    bias: Tensor | None = None,
    x1_scale: Tensor | None = None,
    x2_scale: Tensor | None = None,
    gather_output: bool = True,
    y_dtype: int | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of all ranks' self [m, k], and their scales, for (rows @ x2 + bias) * x1_scale * x2_scale.

    int8 or float8 with float32 scales, x1_scale [1] or [m] and x2_scale [1] or [n]; float8 with powers of two of blocks
    of 32, [m, k / 64, 2] and [k / 64, n, 2]; or floating ones without scales. Results: the product in y_dtype; the
    rows, or nothing; nothing.
    """
    name = "npu_all_gather_quant_mm"
    _own_options(name, options)
    dtype = _result_dtype(name, self, y_dtype)
    group = groups.group_named(name, hcom, world_size)
    rows = groups.all_gather(self.view(torch.int8) if self.dtype in _FLOAT8 else self, group).view(self.dtype)
    scales = x1_scale
    if x1_scale is not None:
        if x1_scale.dtype not in _E8M0:
            per_row = x1_scale.flatten()
            scales = groups.all_gather(per_row.expand(self.shape[0]) if per_row.numel() == 1 else per_row, group)
        else:
            scales = groups.all_gather(x1_scale.view(torch.uint8), group)
    product = _product(name, rows, x2, bias, scales, x2_scale).to(dtype)
    nothing = product.new_empty(0, dtype=torch.float32)
    return product, rows if gather_output else rows.new_empty(0), nothing


def _fake_scattered(
    self: Tensor, x2: Tensor, hcom: str, world_size: int, *, y_dtype: int | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    dtype = _result_dtype("npu_quant_mm_reduce_scatter", self, y_dtype)
    rows = self.new_empty(self.shape[0] // world_size, x2.shape[1], dtype=dtype)
    return rows, self.new_empty(0, dtype=torch.float32)


@composed(
    "npu_quant_mm_reduce_scatter(Tensor self, Tensor x2, str hcom, int world_size, *, str reduce_op='sum', "
    "Tensor? bias=None, Tensor? x1_scale=None, Tensor? x2_scale=None, Tensor? quant_scale=None, int block_size=0, "
    f"int comm_turn=0, int[]? group_sizes=None, bool amax_output=False, {_DTYPES}, str? comm_mode=None) -> "
    "(Tensor, Tensor)",
    fake=_fake_scattered,
)
def quant_mm_reduce_scatter(
    self: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    *,
    bias: Tensor | None = None,
    x1_scale: Tensor | None = None,
    x2_scale: Tensor | None = None,
    y_dtype: int | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """This rank's rows of the sum over the ranks of (self @ x2 + bias) * x1_scale * x2_scale, in y_dtype; nothing.

    Dtypes and scales are those of npu_all_gather_quant_mm. Products are rounded before they are summed.
    """
    name = "npu_quant_mm_reduce_scatter"
    _own_options(name, options)
    dtype = _result_dtype(name, self, y_dtype)
    group = groups.group_named(name, hcom, world_size)
    if self.shape[0] % world_size:
        refuse(name, f"rows that {world_size} ranks share evenly", self.shape[0])
    product = _product(name, self, x2, bias, x1_scale, x2_scale).to(dtype)
    return groups.reduce_scatter(product, group), product.new_empty(0, dtype=torch.float32)


_MODES = (
    "Tensor? common_scale=None, Tensor? x1_offset=None, Tensor? x2_offset=None, int? x1_quant_mode=None, "
    "int? x2_quant_mode=None, int? common_quant_mode=None, int[]? group_sizes=None, int[]? all2all_axes=None, "
    "int? comm_quant_dtype=None"
)
_KINDS = (
    "int? x1_dtype=None, int? x2_dtype=None, int? x1_scale_dtype=None, int? x2_scale_dtype=None, "
    "int? output_scale_dtype=None, int? comm_scale_dtype=None, int? y_dtype=None, str? comm_mode=None"
)


def _exchange_options(operator: str, axes: list[int], options: dict[str, Any]) -> None:
    """What may be given to say that nothing more happens."""
    if list(options.pop("all2all_axes", None) or axes) != axes:
        refuse(operator, f"all2all_axes None or {axes}", "others")
    for name, neutral in (("common_quant_mode", 0), ("comm_quant_dtype", -1)):
        if options.get(name) == neutral:
            del options[name]
    if not any(options.get("group_sizes") or [0]):
        options.pop("group_sizes", None)
    options.pop("comm_mode", None)
    refuse_options(operator, options)


def _fake_to_all(
    x1: Tensor, x2: Tensor, hcom: str, world_size: int, *rest: Any, y_dtype: int | None = None, **options: Any
) -> Tensor:
    number = rest[18] if len(rest) > 18 else y_dtype
    kind = (
        torch.float32 if number is None else dtype_numbered("npu_quant_matmul_all_to_all", "y_dtype", number, _RESULTS)
    )
    return x1.new_empty(x1.shape[0] * world_size, x2.shape[1] // world_size, dtype=kind)


@composed(
    "npu_quant_matmul_all_to_all(Tensor x1, Tensor x2, str hcom, int world_size, Tensor? bias=None, "
    f"Tensor? x1_scale=None, Tensor? x2_scale=None, {_MODES}, {_KINDS}) -> Tensor",
    fake=_fake_to_all,
)
def quant_matmul_all_to_all(
    x1: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    bias: Tensor | None = None,
    x1_scale: Tensor | None = None,
    x2_scale: Tensor | None = None,
    common_scale: Tensor | None = None,
    x1_offset: Tensor | None = None,
    x2_offset: Tensor | None = None,
    x1_quant_mode: int | None = None,
    x2_quant_mode: int | None = None,
    common_quant_mode: int | None = None,
    group_sizes: list[int] | None = None,
    all2all_axes: list[int] | None = None,
    comm_quant_dtype: int | None = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
    x1_scale_dtype: int | None = None,
    x2_scale_dtype: int | None = None,
    output_scale_dtype: int | None = None,
    comm_scale_dtype: int | None = None,
    y_dtype: int | None = None,
    comm_mode: str | None = None,
) -> Tensor:
    """(x1 [m, k] @ x2 [k, n] + bias) * x1_scale [m] * x2_scale [n], whose columns go to the ranks.

    It is in y_dtype (float32), [world_size * m, n / world_size]. Matrices are int8 or float8: quant modes 3 (x1, by
    rows) and 2 (x2, by columns).
    """
    name = "npu_quant_matmul_all_to_all"
    given = {
        "common_scale": common_scale, "x1_offset": x1_offset, "x2_offset": x2_offset, "x1_dtype": x1_dtype,
        "common_quant_mode": common_quant_mode, "group_sizes": group_sizes, "all2all_axes": all2all_axes,
        "comm_quant_dtype": comm_quant_dtype, "x2_dtype": x2_dtype, "x1_scale_dtype": x1_scale_dtype,
        "x2_scale_dtype": x2_scale_dtype, "output_scale_dtype": output_scale_dtype,
        "comm_scale_dtype": comm_scale_dtype,
    }  # fmt: skip
    _exchange_options(name, [-1, -2], {n: v for n, v in given.items() if v is not None})
    if (x1_quant_mode, x2_quant_mode) != (3, 2) or x1_scale is None or x1_scale.dtype in _E8M0:
        raise NotImplementedError(f"{name}: quant modes must be 3 and 2, got {[x1_quant_mode, x2_quant_mode]}")
    dtype = torch.float32 if y_dtype is None else dtype_numbered(name, "y_dtype", y_dtype, _RESULTS)
    group = groups.group_named(name, hcom, world_size)
    return columns_to_all(name, _product(name, x1, x2, bias, x1_scale, x2_scale).to(dtype), group)


def _fake_of_all(
    x1: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    *,
    all2all_out_flag: bool = True,
    y_dtype: int | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    rows, width = x1.shape[0] // world_size, x1.shape[1] * world_size
    name = "npu_all_to_all_quant_matmul"
    dtype = torch.float32 if y_dtype is None else dtype_numbered(name, "y_dtype", y_dtype, _RESULTS)
    gathered = x1.new_empty(rows, width) if all2all_out_flag else x1.new_empty(0)
    return x1.new_empty(rows, x2.shape[1], dtype=dtype), gathered


@composed(
    "npu_all_to_all_quant_matmul(Tensor x1, Tensor x2, str hcom, int world_size, *, bool all2all_out_flag=True, "
    f"Tensor? bias=None, Tensor? x1_scale=None, Tensor? x2_scale=None, {_MODES}, int? x1_quant_dtype=None, {_KINDS}) "
    "-> (Tensor, Tensor)",
    fake=_fake_of_all,
)
def all_to_all_quant_matmul(
    x1: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    *,
    all2all_out_flag: bool = True,
    bias: Tensor | None = None,
    x2_scale: Tensor | None = None,
    x1_quant_mode: int | None = None,
    x2_quant_mode: int | None = None,
    x1_quant_dtype: int | None = None,
    y_dtype: int | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Rows of a floating x1 [m, k] go to the ranks; [m / world_size, world_size * k], made float8 by rows, times x2.

    (rows @ x2 + bias) * the rows' scale * x2_scale [n], in y_dtype (float32): quant modes 7 (x1, by each row's largest
    magnitude, to x1_quant_dtype) and 2 (x2, in float8, by columns). The second result are the rows before, or nothing.
    """
    name = "npu_all_to_all_quant_matmul"
    _exchange_options(name, [-2, -1], options)
    if (x1_quant_mode, x2_quant_mode) != (7, 2) or x1_quant_dtype is None or x2_scale is None:
        raise NotImplementedError(
            f"{name}: expected quant modes 7 and 2, x1_quant_dtype and x2_scale, got {[x1_quant_mode, x2_quant_mode]}"
        )
    kind = dtype_numbered(name, "x1_quant_dtype", x1_quant_dtype, _FLOAT8)
    if x1.dtype not in _RESULTS or x2.dtype not in _FLOAT8 or x1.dim() != 2:
        raise TypeError(f"{name}: expected floating x1 [m, k] and x2 in float8, got {[x1.dtype, x2.dtype]}")
    dtype = torch.float32 if y_dtype is None else dtype_numbered(name, "y_dtype", y_dtype, _RESULTS)
    group = groups.group_named(name, hcom, world_size)
    rows = rows_to_all(name, x1, group)
    largest = torch.finfo(kind).max
    scale = rows.float().abs().amax(1, keepdim=True) / largest
    numbers = (rows.float() / scale.where(scale > 0, 1)).clamp(-largest, largest).to(kind)
    product = _product(name, numbers, x2, bias, scale, x2_scale).to(dtype)
    return product, rows if all2all_out_flag else rows.new_empty(0)
