"""Mixture of experts whose experts are spread over the ranks of a group: sums of what experts made of tokens.

The group is named by its get_hccl_comm_name; all ranks call the operator, which has no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_npu.composed import groups
from torch_npu.composed.expert_layout import layout_of, places_of, refuse_parallel_options, returned
from torch_npu.composed.registry import composed, refuse

_WHERE = "str group_ep, int ep_world_size, int ep_rank_id, int moe_expert_num"
_TENSOR_PARALLEL = (
    'str group_tp="", int tp_world_size=0, int tp_rank_id=0, int expert_shard_type=0, int shared_expert_num=1, '
    "int shared_expert_rank_num=0, int global_bs=0"
)
_CONSTANTS = "Tensor? const_expert_alpha_1=None, Tensor? const_expert_alpha_2=None, Tensor? const_expert_v=None"
_SPECIAL = "int zero_expert_num=0, int copy_expert_num=0, int const_expert_num=0"
_RESERVED = "Tensor? activation_scale=None, Tensor? weight_scale=None, Tensor? group_list=None"


def _special(
    operator: str,
    ids: Tensor,
    first: int,
    numbers: tuple[int, int, int],
    ori_x: Tensor | None,
    constants: tuple[Tensor | None, Tensor | None, Tensor | None],
) -> Tensor | None:
    """What experts that do not compute make of each choice [BS, K, H]: nothing, the token, or a mix with a constant."""
    _, copies, constant = numbers
    if not copies and not constant:
        return None
    if ori_x is None:
        refuse(operator, "ori_x with copy_expert_num or const_expert_num", None)
    copying = first + numbers[0]
    x = ori_x.float().unsqueeze(1)
    result = x * ((ids >= copying) & (ids < copying + copies)).unsqueeze(2)
    if constant:
        alpha_1, alpha_2, v = constants
        if alpha_1 is None or alpha_2 is None or v is None:
            refuse(operator, "const_expert_alpha_1, const_expert_alpha_2 and const_expert_v", constants)
        number = (ids - copying - copies).clamp(0, constant - 1)
        mixed = alpha_1.float()[number] * x + alpha_2.float()[number] * v.float()[number]
        chosen = (ids >= copying + copies) & (ids < copying + copies + constant)
        result = mixed.where(chosen.unsqueeze(2), result)
    return result


def _combine(
    operator: str,
    expand_x: Tensor,
    expert_ids: Tensor,
    ep_send_counts: Tensor,
    expert_scales: Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    x_active_mask: Tensor | None = None,
    shared_expert_x: Tensor | None = None,
    ori_x: Tensor | None = None,
    const_expert_alpha_1: Tensor | None = None,
    const_expert_alpha_2: Tensor | None = None,
    const_expert_v: Tensor | None = None,
    shared_expert_num: int = 1,
    shared_expert_rank_num: int = 0,
    global_bs: int = 0,
    zero_expert_num: int = 0,
    copy_expert_num: int = 0,
    const_expert_num: int = 0,
    expand_scales: Tensor | None = None,  # those of expert_scales, where hardware needs them
    **options: Any,
) -> Tensor:
    """The sums in float32."""
    refuse_parallel_options(operator, options)
    layout = layout_of(
        operator, expert_ids, ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num, shared_expert_rank_num,
        global_bs,
    )  # fmt: skip
    group = groups.group_named(operator, group_ep, ep_world_size)
    if expand_x.dim() != 2 or ep_send_counts.shape != (layout.ranks * layout.here,):
        expected = f"expand_x [A, H] and ep_send_counts [{layout.ranks * layout.here}]"
        refuse(operator, expected, [list(expand_x.shape), list(ep_send_counts.shape)])
    if expert_scales.shape != expert_ids.shape:
        refuse(operator, f"expert_scales {list(expert_ids.shape)}", list(expert_scales.shape))
    places = places_of(layout, expert_ids, x_active_mask)
    counts = ep_send_counts.long().diff(prepend=ep_send_counts.new_zeros(1, dtype=torch.int64))
    counts = counts.view(layout.here, layout.ranks).t()
    back = returned(layout, expand_x, counts, places.slot, group).float()
    chosen = back[: expert_ids.numel()].unflatten(0, tuple(expert_ids.shape))
    special = _special(
        operator, expert_ids.long(), moe_expert_num, (zero_expert_num, copy_expert_num, const_expert_num), ori_x,
        (const_expert_alpha_1, const_expert_alpha_2, const_expert_v),
    )  # fmt: skip
    if special is not None:
        if x_active_mask is not None:
            active = x_active_mask if x_active_mask.dim() == 2 else x_active_mask.unsqueeze(1)
            special = special * active.unsqueeze(2)
        chosen = chosen + special
    total = (chosen * expert_scales.float().unsqueeze(2)).sum(1)
    shared = back[expert_ids.numel() :]
    if shared.shape[0]:
        total = total + shared.unflatten(0, (-1, expert_ids.shape[0])).sum(0)
    if shared_expert_x is not None:
        total = total + shared_expert_x.reshape(total.shape).float()
    return total


def _fake_combine(expand_x: Tensor, expert_ids: Tensor, *rest: Any, **options: Any) -> Tensor:
    return expand_x.new_empty(expert_ids.shape[0], expand_x.shape[1])


@composed(
    "npu_moe_distribute_combine(Tensor expand_x, Tensor expert_ids, Tensor expand_idx, Tensor ep_send_counts, "
    f"Tensor expert_scales, {_WHERE}, *, Tensor? tp_send_counts=None, Tensor? x_active_mask=None, {_RESERVED}, "
    f"Tensor? expand_scales=None, Tensor? shared_expert_x=None, {_TENSOR_PARALLEL}, int out_dtype=0, "
    "int comm_quant_mode=0, int group_list_type=0) -> Tensor",
    fake=_fake_combine,
)
def moe_distribute_combine(
    expand_x: Tensor,
    expert_ids: Tensor,
    expand_idx: Tensor,
    ep_send_counts: Tensor,
    expert_scales: Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    tp_send_counts: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """The way back of npu_moe_distribute_dispatch: sums of a token's rows, times expert_scales [BS, K].

    expand_x: what experts made of the rows, in their order; ep_send_counts: the fifth result. Rows of shared experts,
    and shared_expert_x, are added as they are. Sums are in float32.
    """
    where = (group_ep, ep_world_size, ep_rank_id, moe_expert_num)
    name = "npu_moe_distribute_combine"
    return _combine(name, expand_x, expert_ids, ep_send_counts, expert_scales, *where, **options).to(expand_x.dtype)


@composed(
    "npu_moe_distribute_combine_v2(Tensor expand_x, Tensor expert_ids, Tensor assist_info_for_combine, "
    f"Tensor ep_send_counts, Tensor expert_scales, {_WHERE}, *, Tensor? tp_send_counts=None, "
    "Tensor? x_active_mask=None, Tensor? expand_scales=None, Tensor? shared_expert_x=None, "
    f"Tensor? elastic_info=None, Tensor? ori_x=None, {_CONSTANTS}, Tensor? performance_info=None, "
    f'{_TENSOR_PARALLEL}, int comm_quant_mode=0, str comm_alg="", {_SPECIAL}) -> Tensor',
    fake=_fake_combine,
)
def moe_distribute_combine_v2(
    expand_x: Tensor,
    expert_ids: Tensor,
    assist_info_for_combine: Tensor,
    ep_send_counts: Tensor,
    expert_scales: Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    tp_send_counts: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """npu_moe_distribute_combine with experts that do not compute, numbered from moe_expert_num on.

    zero_expert_num of them give nothing, copy_expert_num the token ori_x [BS, H], const_expert_num const_expert_alpha_1
    * ori_x + const_expert_alpha_2 * const_expert_v of theirs [const_expert_num, H]. What x_active_mask [BS] or [BS, K]
    leaves out counts as zeros.
    """
    where = (group_ep, ep_world_size, ep_rank_id, moe_expert_num)
    name = "npu_moe_distribute_combine_v2"
    return _combine(name, expand_x, expert_ids, ep_send_counts, expert_scales, *where, **options).to(expand_x.dtype)


def _fake_normed(expand_x: Tensor, expert_ids: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    shape = (expert_ids.shape[0], 1)
    one = expand_x.new_empty(*shape, 1, dtype=torch.float32)
    return expand_x.new_empty(*shape, expand_x.shape[1]), one, expand_x.new_empty(*shape, expand_x.shape[1])


@composed(
    "npu_moe_distribute_combine_add_rms_norm(Tensor expand_x, Tensor expert_ids, Tensor expand_idx, "
    f"Tensor ep_send_counts, Tensor expert_scales, Tensor residual_x, Tensor gamma, {_WHERE}, *, "
    f"Tensor? tp_send_counts=None, Tensor? x_active_mask=None, {_RESERVED}, Tensor? expand_scales=None, "
    f"Tensor? shared_expert_x=None, Tensor? elastic_info=None, Tensor? ori_x=None, {_CONSTANTS}, {_TENSOR_PARALLEL}, "
    'int out_dtype=0, int comm_quant_mode=0, int group_list_type=0, str comm_alg="", float norm_eps=1e-06, '
    f"{_SPECIAL}) -> (Tensor, Tensor, Tensor)",
    fake=_fake_normed,
)
def moe_distribute_combine_add_rms_norm(
    expand_x: Tensor,
    expert_ids: Tensor,
    expand_idx: Tensor,
    ep_send_counts: Tensor,
    expert_scales: Tensor,
    residual_x: Tensor,
    gamma: Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    tp_send_counts: Tensor | None = None,
    norm_eps: float = 1e-6,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """RMSNorm, times gamma [H], of npu_moe_distribute_combine_v2 + residual_x [BS, 1, H]: result, 1 / RMS, the sum."""
    name = "npu_moe_distribute_combine_add_rms_norm"
    where = (group_ep, ep_world_size, ep_rank_id, moe_expert_num)
    total = _combine(name, expand_x, expert_ids, ep_send_counts, expert_scales, *where, **options).unsqueeze(1)
    if residual_x.shape != total.shape:
        refuse(name, f"residual_x {list(total.shape)}", list(residual_x.shape))
    total = total + residual_x.float()
    inverse = total.square().mean(-1, keepdim=True).add(norm_eps).rsqrt()
    return (total * inverse * gamma.float()).to(expand_x.dtype), inverse, total.to(expand_x.dtype)
