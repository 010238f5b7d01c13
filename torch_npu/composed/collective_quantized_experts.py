"""Products of quantized tokens that ranks exchange with quantized experts: collective_experts.py in 8 and 4 bits.

The group is named by its ``get_hccl_comm_name``. All ranks call the operator. It has no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_npu.composed import groups
from torch_npu.composed.block_quantization import powers_of_two
from torch_npu.composed.collective_experts import by_expert, check_counts, of_ranks
from torch_npu.composed.registry import composed, dtype_numbered, refuse, refuse_options
from torch_npu.composed.small_floats import float4_values, hifloat8_values
from torch_npu.dtypes import NUMBERS

_OF_TENSORS, _MICROSCALED = 1, 6  # quant modes
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_POWERS = (torch.float8_e8m0fnu, torch.uint8, torch.int8)
_RESULTS = (torch.float16, torch.bfloat16, torch.float32)

_OPERANDS = (
    "Tensor gmm_x, Tensor gmm_weight, Tensor gmm_x_scale, Tensor gmm_weight_scale, str hcom, int ep_world_size, "
    "int[] send_counts, int[] recv_counts, int gmm_y_dtype, *, Tensor? send_counts_tensor=None, "
    "Tensor? recv_counts_tensor=None"
)
_SHARED = "Tensor? mm_x=None, Tensor? mm_weight=None, Tensor? mm_x_scale=None, Tensor? mm_weight_scale=None"
_MODES = (
    "int? gmm_x_quant_mode=None, int? gmm_weight_quant_mode=None, int? mm_x_quant_mode=None, "
    "int? mm_weight_quant_mode=None"
)
_KINDS = (
    "int? gmm_x_dtype=None, int? gmm_weight_dtype=None, int? gmm_x_scale_dtype=None, "
    "int? gmm_weight_scale_dtype=None, int? mm_x_dtype=None, int? mm_weight_dtype=None, "
    "int? mm_x_scale_dtype=None, int? mm_weight_scale_dtype=None"
)


def _columns(x: Tensor, kind: int | None) -> int:
    """How many columns x has: pairs in bytes lie along the dimension whose neighbours lie beside each other."""
    packed = kind == NUMBERS["float4_e2m1fn_x2"] and x.dtype == torch.uint8
    return x.shape[-1] * (2 if packed and not _is_turned(x) else 1)


def _is_turned(x: Tensor) -> bool:
    return x.stride(-2) == 1 and x.stride(-1) != 1


def _numbers(operator: str, name: str, x: Tensor, kind: int | None, mode: int | None) -> Tensor:
    """x in float32, without its scales."""
    if mode == _OF_TENSORS and kind == NUMBERS["hifloat8"] and x.dtype in (torch.uint8, torch.int8):
        return hifloat8_values(x)
    if mode == _MICROSCALED and x.dtype in _FLOAT8:
        return x.float()
    if mode == _MICROSCALED and kind == NUMBERS["float4_e2m1fn_x2"] and x.dtype == torch.uint8:
        return float4_values(x, -2 if _is_turned(x) else -1)
    raise NotImplementedError(
        f"{operator}: {name} must be hifloat8 in bytes (quant mode 1), or float8_e4m3fn, float8_e5m2 or float4_e2m1 in "
        f"uint8 (quant mode 6); got {x.dtype}, dtype {kind} and quant mode {mode}"
    )


def _decoded(operator: str, name: str, x: Tensor, scale: Tensor | None, options: dict[str, Any]) -> Tensor:
    """x in float32: its numbers times the scale [1], or times powers of two of blocks of 32.

    Of rows (``name`` ends in x) these are [rows, k / 64, 2], of matrices [.., k / 64, n, 2].
    """
    mode = options.get(f"{name}_quant_mode")
    numbers = _numbers(operator, name, x, options.get(f"{name}_dtype"), mode)
    of_tensors = mode == _OF_TENSORS
    along, n = (-1, ()) if name.endswith("x") else (-2, numbers.shape[-1:])
    blocks = (*numbers.shape[:along], -(-numbers.shape[along] // 64), *n, 2)
    shape, dtypes = ((1,), (torch.float32,)) if of_tensors else (blocks, _POWERS)
    if scale is None or scale.shape != shape or scale.dtype not in dtypes:
        seen = None if scale is None else [list(scale.shape), scale.dtype]
        refuse(operator, f"{name}_scale {list(shape)} in {dtypes[0]}", seen)
    if options.get(f"{name}_scale_dtype") is not None:
        dtype_numbered(operator, f"{name}_scale_dtype", options[f"{name}_scale_dtype"], dtypes[:1])
    if of_tensors:
        return numbers * scale
    powers = powers_of_two(scale.view(torch.uint8)).movedim(-1, along).flatten(along - 1, along)
    return numbers * powers.repeat_interleave(32, along).narrow(along, 0, numbers.shape[along])


def _refuse_others(operator: str, options: dict[str, Any]) -> None:
    """Refuses what none of the tables of arguments has and what does more than name a unit of the hardware."""
    arguments = f"{_SHARED}, {_MODES}, {_KINDS}, int? mm_y_dtype".split(", ")
    known = [argument.split()[1].partition("=")[0] for argument in arguments]
    rest = {name: value for name, value in options.items() if name not in known and value is not None}
    rest.pop("comm_mode", None)
    if not any(rest.get("group_size") or [0]):
        rest.pop("group_size", None)
    if rest.get("comm_quant_mode") == 0:
        del rest["comm_quant_mode"]
    refuse_options(operator, rest)


def _shared(operator: str, options: dict[str, Any]) -> Tensor | None:
    """mm_x @ mm_weight in mm_y_dtype, if both are there."""
    x, weight = options.get("mm_x"), options.get("mm_weight")
    if x is None and weight is None:
        return None
    if x is None or weight is None or options.get("mm_y_dtype") is None:
        seen = {name: options.get(name) is not None for name in ("mm_x", "mm_weight", "mm_y_dtype")}
        refuse(operator, "mm_x, mm_weight and mm_y_dtype together", seen)
    left = _decoded(operator, "mm_x", x, options.get("mm_x_scale"), options)
    right = _decoded(operator, "mm_weight", weight, options.get("mm_weight_scale"), options)
    return (left @ right).to(dtype_numbered(operator, "mm_y_dtype", options["mm_y_dtype"], _RESULTS))


def _product(rows: Tensor, experts: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows, sorted by experts, times each one's matrix."""
    parts = rows.split(lengths.tolist())
    return torch.cat([part @ matrix for part, matrix in zip(parts, experts, strict=True)]).to(dtype)


def _prepared(
    operator: str,
    x: Tensor,
    weight_and_scale: tuple[Tensor, Tensor],
    ranks: int,
    counts: tuple[list[int], list[int]],
    y_dtype: int,
    options: dict[str, Any],
) -> tuple[torch.dtype, Tensor]:
    """The dtype of the product and the experts' matrices in float32, where options, rows and counts fit together."""
    _refuse_others(operator, options)
    dtype = dtype_numbered(operator, "gmm_y_dtype", y_dtype, _RESULTS)
    weight = _decoded(operator, "gmm_weight", *weight_and_scale, options)
    rows = torch.empty(x.shape[0], _columns(x, options.get("gmm_x_dtype")), device="meta") if x.dim() == 2 else x
    check_counts(operator, rows, weight, ranks, *counts, sum(counts[0]))
    return dtype, weight


def _fake_returned(
    gmm_x: Tensor, gmm_weight: Tensor, gmm_x_scale: Tensor, gmm_weight_scale: Tensor, hcom: str, ep_world_size: int,
    send_counts: list[int], recv_counts: list[int], gmm_y_dtype: int, **options: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    kind = dtype_numbered("npu_quant_gmm_alltoallv", "gmm_y_dtype", gmm_y_dtype, _RESULTS)
    y = gmm_x.new_empty(sum(recv_counts), _columns(gmm_weight, options.get("gmm_weight_dtype")), dtype=kind)
    x, weight, number = options.get("mm_x"), options.get("mm_weight"), options.get("mm_y_dtype")
    if x is None or weight is None or number is None:
        return y, None
    kind = dtype_numbered("npu_quant_gmm_alltoallv", "mm_y_dtype", number, _RESULTS)
    return y, x.new_empty(x.shape[0], _columns(weight, options.get("mm_weight_dtype")), dtype=kind)


def _fake_exchanged(
    gmm_x: Tensor, *rest: Any, permute_out_flag: bool = False, **options: Any
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    y, shared = _fake_returned(gmm_x, *rest, **options)
    return y, shared, gmm_x.new_empty(y.shape[0], gmm_x.shape[1]) if permute_out_flag else None


@composed(
    f"npu_alltoallv_quant_gmm({_OPERANDS}, {_SHARED}, {_MODES}, bool permute_out_flag=False, int[]? group_size=None, "
    f"{_KINDS}, int? mm_y_dtype=None, str? comm_mode=None) -> (Tensor, Tensor, Tensor)",
    fake=_fake_exchanged,
)
def alltoallv_quant_gmm(
    gmm_x: Tensor,
    gmm_weight: Tensor,
    gmm_x_scale: Tensor,
    gmm_weight_scale: Tensor,
    hcom: str,
    ep_world_size: int,
    send_counts: list[int],
    recv_counts: list[int],
    gmm_y_dtype: int,
    *,
    permute_out_flag: bool = False,
    **options: Any,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """npu_alltoallv_gmm of quantized rows and experts, in gmm_y_dtype; mm_x @ mm_weight, in mm_y_dtype; the rows.

    Quant modes 1: hifloat8 in bytes with one float32 scale a tensor, this rank's for all rows that it gets; 6: float8,
    or float4_e2m1 in uint8, with powers of two of blocks of 32: x [rows, k / 64, 2], weights [e, k / 64, n, 2].
    Products are summed in float32.
    """
    name = "npu_alltoallv_quant_gmm"
    counts = (send_counts, recv_counts)
    dtype, weight = _prepared(name, gmm_x, (gmm_weight, gmm_weight_scale), ep_world_size, counts, gmm_y_dtype, options)
    group, experts = groups.group_named(name, hcom, ep_world_size), weight.shape[0]
    received, sent = of_ranks(recv_counts, experts), of_ranks(send_counts, experts)
    order, lengths = by_expert(recv_counts, experts, gmm_x.device)

    def arrived(x: Tensor) -> Tensor:
        return groups.exchange(x.view(torch.uint8), received, sent, group)[order].view(x.dtype)

    rows = arrived(gmm_x)
    scale = gmm_x_scale if options.get("gmm_x_quant_mode") == _OF_TENSORS else arrived(gmm_x_scale)
    product = _product(_decoded(name, "gmm_x", rows, scale, options), weight, lengths, dtype)
    return product, _shared(name, options), rows if permute_out_flag else None


@composed(
    f"npu_quant_gmm_alltoallv({_OPERANDS}, {_SHARED}, Tensor? comm_quant_scale=None, {_MODES}, "
    f"int? comm_quant_mode=None, int[]? group_size=None, {_KINDS}, int? comm_quant_dtype=None, int? mm_y_dtype=None, "
    "str? comm_mode=None) -> (Tensor, Tensor)",
    fake=_fake_returned,
)
def quant_gmm_alltoallv(
    gmm_x: Tensor,
    gmm_weight: Tensor,
    gmm_x_scale: Tensor,
    gmm_weight_scale: Tensor,
    hcom: str,
    ep_world_size: int,
    send_counts: list[int],
    recv_counts: list[int],
    gmm_y_dtype: int,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """npu_gmm_alltoallv of quantized rows and experts, whose product is sent in gmm_y_dtype; mm_x @ mm_weight.

    Quant modes and scales are those of npu_alltoallv_quant_gmm; what is sent is not quantized.
    """
    name = "npu_quant_gmm_alltoallv"
    counts = (send_counts, recv_counts)
    dtype, weight = _prepared(name, gmm_x, (gmm_weight, gmm_weight_scale), ep_world_size, counts, gmm_y_dtype, options)
    group, experts = groups.group_named(name, hcom, ep_world_size), weight.shape[0]
    order, lengths = by_expert(send_counts, experts, gmm_x.device)
    product = _product(_decoded(name, "gmm_x", gmm_x, gmm_x_scale, options), weight, lengths, dtype)
    by_rank = torch.empty_like(product).index_copy(0, order, product)
    rows = groups.exchange(by_rank, of_ranks(recv_counts, experts), of_ranks(send_counts, experts), group)
    return rows, _shared(name, options)
