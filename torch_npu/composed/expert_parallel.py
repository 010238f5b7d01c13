"""Mixture of experts whose experts are spread over the ranks of a group: tokens go to their experts, and back.

The group is named by its get_hccl_comm_name; all ranks call the operator, which has no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torch_npu.composed import groups
from torch_npu.composed.expert_layout import (
    Layout,
    layout_of,
    places_of,
    received,
    refuse_parallel_options,
    sent,
)
from torch_npu.composed.registry import composed, refuse, refuse_options

_WHERE = "str group_ep, int ep_world_size, int ep_rank_id, int moe_expert_num"
_TENSOR_PARALLEL = (
    'str group_tp="", int tp_world_size=0, int tp_rank_id=0, int expert_shard_type=0, int shared_expert_num=1, '
    "int shared_expert_rank_num=0"
)
_SPECIAL = "int zero_expert_num=0, int copy_expert_num=0, int const_expert_num=0"
_INT8 = 127


def _quantized(x: Tensor, token: Tensor, expert: Tensor, scales: Tensor | None) -> tuple[Tensor, Tensor]:
    """Copies of tokens in int8 and their scales; each times the scales of its expert first."""
    rows = x.float()[token]
    if scales is not None:
        rows = rows * scales.float()[expert.clamp_max(scales.shape[0] - 1)]
    largest = rows.abs().amax(1)
    scale = largest / _INT8
    numbers = (rows / scale.where(largest > 0, 1).unsqueeze(1)).round()
    return numbers.to(torch.int8), scale


def _dispatch(
    operator: str,
    layout: Layout,
    group: dist.ProcessGroup,
    x: Tensor,
    expert_ids: Tensor,
    scales: Tensor | None,
    active: Tensor | None,
    expert_scales: Tensor | None,
    quant_mode: int,
    expert_token_nums_type: int,
) -> tuple[Tensor, ...]:
    if x.dim() != 2 or x.shape[0] != expert_ids.shape[0]:
        refuse(operator, "x [BS, H] and expert_ids [BS, K]", [list(x.shape), list(expert_ids.shape)])
    if quant_mode not in (0, 2):
        raise NotImplementedError(
            f"{operator}: quant_mode must be 0 (none) or 2 (each token's scale), got {quant_mode}"
        )
    packed = x.dtype == torch.int32
    if quant_mode == 0 and (scales is not None) != packed:
        refuse(operator, "scales with quant_mode 2 or with packed int32 tokens", "quant_mode 0")
    if packed and (quant_mode or scales is None or scales.shape != x.shape[:1]):
        refuse(operator, "int32 tokens with quant_mode 0 and scales [BS]", quant_mode)
    if expert_token_nums_type not in (0, 1):
        refuse(operator, "expert_token_nums_type 0 (ends) or 1 (lengths)", expert_token_nums_type)
    places = places_of(layout, expert_ids, active)
    rows, scale = x[places.token], None
    if quant_mode:
        rows, scale = _quantized(x, places.token, places.expert, scales)
    elif scales is not None:
        scale = scales.float()[places.token]
    counts = groups.all_to_all(places.counts, group)[:, : layout.here].contiguous()
    place = received(layout, counts).flatten()

    def arrived(values: Tensor) -> Tensor:
        come = sent(layout, values, places.slot, group).flatten(0, 1)
        return come.new_zeros(layout.room + 1, *come.shape[1:]).index_copy(0, place, come)[:-1]

    dynamic_scales = x.new_zeros(layout.room, dtype=torch.float32) if scale is None else arrived(scale)
    lengths = counts.sum(0)
    chosen = expert_ids.numel()
    weights = x.new_empty(0, dtype=torch.float32)
    if expert_scales is not None:
        shared = expert_scales.new_ones(places.token.shape[0] - chosen)
        weights = arrived(torch.cat((expert_scales.flatten(), shared)).float())
    return (
        arrived(rows),
        dynamic_scales,
        places.nth[:chosen].int(),
        lengths.cumsum(0) if expert_token_nums_type == 0 else lengths,
        counts.t().flatten().cumsum(0).int(),
        x.new_empty(0, dtype=torch.int32),
        weights,
    )


def _fake_dispatch(
    x: Tensor,
    expert_ids: Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    expert_scales: Tensor | None = None,
    shared_expert_num: int = 1,
    shared_expert_rank_num: int = 0,
    quant_mode: int = 0,
    global_bs: int = 0,
    **options: Any,
) -> tuple[Tensor, ...]:
    layout = layout_of(
        "npu_moe_distribute_dispatch", expert_ids, ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num,
        shared_expert_rank_num, global_bs,
    )  # fmt: skip
    return (
        x.new_empty(layout.room, x.shape[1], dtype=torch.int8 if quant_mode else x.dtype),
        x.new_empty(layout.room, dtype=torch.float32),
        x.new_empty(expert_ids.numel(), dtype=torch.int32),
        x.new_empty(layout.here, dtype=torch.int64),
        x.new_empty(layout.ranks * layout.here, dtype=torch.int32),
        x.new_empty(0, dtype=torch.int32),
        x.new_empty(0 if expert_scales is None else layout.room, dtype=torch.float32),
    )


@composed(
    f"npu_moe_distribute_dispatch(Tensor x, Tensor expert_ids, {_WHERE}, *, Tensor? scales=None, "
    f"Tensor? x_active_mask=None, Tensor? expert_scales=None, {_TENSOR_PARALLEL}, int quant_mode=0, "
    "int global_bs=0, int expert_token_nums_type=1) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    fake=_fake_dispatch,
)
def moe_distribute_dispatch(
    x: Tensor,
    expert_ids: Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    scales: Tensor | None = None,
    x_active_mask: Tensor | None = None,
    expert_scales: Tensor | None = None,
    shared_expert_num: int = 1,
    shared_expert_rank_num: int = 0,
    quant_mode: int = 0,
    global_bs: int = 0,
    expert_token_nums_type: int = 1,
    **options: Any,
) -> tuple[Tensor, ...]:
    """Tokens x [BS, H] go to the ranks of their experts expert_ids [BS, K]: rows sorted by expert, then by rank.

    The first shared_expert_rank_num ranks have shared experts, which get all tokens of some ranks; the others have
    moe_expert_num experts in order. global_bs: ranks * the largest BS, 0 where all are equal. Results: the rows, as
    many as could come (zeros behind the last); scales of int8 rows (quant_mode 2, amax / 127 of the token times scales
    [experts, H]); how many copies went to the same expert before, for each choice; how many rows each expert of this
    rank has (expert_token_nums_type 0: where they end); where the rows of each rank for each expert end; nothing; the
    expert_scales [BS, K] of the rows.
    """
    name = "npu_moe_distribute_dispatch"
    refuse_parallel_options(name, options)
    layout = layout_of(
        name,
        expert_ids,
        ep_world_size,
        ep_rank_id,
        moe_expert_num,
        shared_expert_num,
        shared_expert_rank_num,
        global_bs,
    )
    group = groups.group_named(name, group_ep, ep_world_size)
    return _dispatch(
        name, layout, group, x, expert_ids, scales, x_active_mask, expert_scales, quant_mode, expert_token_nums_type
    )


def _fake_dispatch_v2(x: Tensor, expert_ids: Tensor, *where: Any, **options: Any) -> tuple[Tensor, ...]:
    rows, scales, _, *rest = _fake_dispatch(x, expert_ids, *where, **options)
    return rows, scales, x.new_empty(max(expert_ids.numel(), rows.shape[0] * 128), dtype=torch.int32), *rest


@composed(
    f"npu_moe_distribute_dispatch_v2(Tensor x, Tensor expert_ids, {_WHERE}, *, Tensor? scales=None, "
    "Tensor? x_active_mask=None, Tensor? expert_scales=None, Tensor? elastic_info=None, "
    f"Tensor? performance_info=None, {_TENSOR_PARALLEL}, int quant_mode=0, int global_bs=0, "
    f'int expert_token_nums_type=1, str comm_alg="", {_SPECIAL}, int? y_dtype=None, int? x_dtype=None, '
    "int? scales_dtype=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    fake=_fake_dispatch_v2,
)
def moe_distribute_dispatch_v2(
    x: Tensor,
    expert_ids: Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    zero_expert_num: int = 0,
    copy_expert_num: int = 0,
    const_expert_num: int = 0,
    **options: Any,
) -> tuple[Tensor, ...]:
    """npu_moe_distribute_dispatch that leaves out tokens (x_active_mask) and choices of experts that do not compute.

    Experts from moe_expert_num on are those of npu_moe_distribute_combine_v2. The third result, which is for that
    operator on hardware, begins with what npu_moe_distribute_dispatch gives; zeros follow.
    """
    rows, scales, nth, *rest = _dispatch_v2(
        x, expert_ids, group_ep, ep_world_size, ep_rank_id, moe_expert_num, **options
    )
    assist = nth.new_zeros(max(expert_ids.numel(), rows.shape[0] * 128))
    assist[: nth.shape[0]] = nth
    return rows, scales, assist, *rest


def _dispatch_v2(
    x: Tensor,
    expert_ids: Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    scales: Tensor | None = None,
    x_active_mask: Tensor | None = None,
    expert_scales: Tensor | None = None,
    shared_expert_num: int = 1,
    shared_expert_rank_num: int = 0,
    quant_mode: int = 0,
    global_bs: int = 0,
    expert_token_nums_type: int = 1,
    **options: Any,
) -> tuple[Tensor, ...]:
    name = "npu_moe_distribute_dispatch_v2"
    refuse_parallel_options(name, options)
    layout = layout_of(
        name,
        expert_ids,
        ep_world_size,
        ep_rank_id,
        moe_expert_num,
        shared_expert_num,
        shared_expert_rank_num,
        global_bs,
    )
    group = groups.group_named(name, group_ep, ep_world_size)
    return _dispatch(
        name, layout, group, x, expert_ids, scales, x_active_mask, expert_scales, quant_mode, expert_token_nums_type
    )


@composed(
    "_npu_distribute_barrier(Tensor x_ref, str group, int world_size, *, Tensor? time_out=None, "
    "Tensor? elastic_info=None) -> Tensor",
    fake=lambda x_ref, group, world_size, **options: torch.empty_like(x_ref),
)
def distribute_barrier(x_ref: Tensor, group: str, world_size: int, **options: Any) -> Tensor:
    """A copy of x_ref, made when all ranks of the group have come here."""
    refuse_options("_npu_distribute_barrier", options)
    ranks = groups.group_named("_npu_distribute_barrier", group, world_size)
    groups.all_reduce(torch.zeros(1, dtype=torch.int32, device=x_ref.device), ranks)
    return x_ref.clone()
