"""Mixture of experts, forms of operators that keep less for their gradients; low-rank adapters of each row."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse


@composed(
    "npu_moe_token_permute_grad_v2(Tensor grad_permuted_tokens, Tensor sorted_indices, int tokens_size_0, "
    "ScalarType tokens_dtype, int num_topK, bool padded_mode=False) -> Tensor"
)
def moe_token_permute_grad_v2(
    grad_permuted_tokens: Tensor,
    sorted_indices: Tensor,
    tokens_size_0: int,
    tokens_dtype: torch.dtype,
    num_topK: int,
    padded_mode: bool = False,
) -> Tensor:
    """npu_moe_token_permute_grad that takes the tokens' number and dtype instead of the tokens."""
    if sorted_indices.numel() != tokens_size_0 * num_topK:
        refuse("npu_moe_token_permute_grad_v2", f"{tokens_size_0 * num_topK} indices", sorted_indices.numel())
    tokens = grad_permuted_tokens.new_empty(tokens_size_0, grad_permuted_tokens.shape[1], dtype=tokens_dtype)
    indices = sorted_indices.view(tokens_size_0, num_topK)
    return torch.ops.npu.npu_moe_token_permute_grad(tokens, grad_permuted_tokens, indices, sorted_indices, padded_mode)


@composed(
    "_npu_moe_token_unpermute(Tensor permuted_tokens, Tensor sorted_indices, Tensor? probs=None, "
    "bool padded_mode=False, int[]? restore_shape=None) -> "
    "(Tensor unpermuted_tokens, Tensor permuted_tokens_for_backward)"
)
def moe_token_unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """npu_moe_token_unpermute, and what its gradient needs of permuted_tokens: all of them with probs, else None."""
    tokens = torch.ops.npu.npu_moe_token_unpermute(permuted_tokens, sorted_indices, probs, padded_mode, restore_shape)
    return tokens, None if probs is None else permuted_tokens.detach().clone()


@composed(
    "npu_moe_token_unpermute_grad_v2(Tensor grad_unpermuted_tokens, Tensor sorted_indices, "
    "int permuted_tokens_size_0, ScalarType permuted_tokens_dtype, Tensor? probs=None, bool padded_mode=False, "
    "int[]? restore_shape=None, Tensor? permuted_tokens=None) -> (Tensor, Tensor)"
)
def moe_token_unpermute_grad_v2(
    grad_unpermuted_tokens: Tensor,
    sorted_indices: Tensor,
    permuted_tokens_size_0: int,
    permuted_tokens_dtype: torch.dtype,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
    permuted_tokens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """npu_moe_token_unpermute_grad that needs permuted_tokens with probs only, else their number and dtype."""
    if permuted_tokens is None:
        if probs is not None:
            refuse("npu_moe_token_unpermute_grad_v2", "permuted_tokens with probs", None)
        width = grad_unpermuted_tokens.shape[1]
        permuted_tokens = grad_unpermuted_tokens.new_empty(permuted_tokens_size_0, width, dtype=permuted_tokens_dtype)
    return torch.ops.npu.npu_moe_token_unpermute_grad(
        permuted_tokens, grad_unpermuted_tokens, sorted_indices, probs, padded_mode, restore_shape
    )


def _adapted(
    operator: str,
    y: Tensor,
    x: Tensor,
    weight_b: Tensor,
    indices: Tensor,
    weight_a: Tensor | None,
    layer_idx: int,
    scale: float,
    y_offset: int,
    y_slice_size: int,
) -> Tensor:
    """``y`` with what each row's adapter adds to its columns; the number of adapters means none."""
    if weight_a is None:
        refuse(operator, "weight_a [adapters, layers, rank, in]", None)
    size = y.shape[-1] if y_slice_size == -1 else y_slice_size
    shapes = [list(t.shape) for t in (y, x, weight_a, weight_b, indices)]
    fits = y.dim() == x.dim() == 2 and weight_a.dim() == weight_b.dim() == 4 and indices.shape == x.shape[:1]
    if not fits or weight_b.shape[2] != size or weight_a.shape[3] != x.shape[1] or y_offset + size > y.shape[1]:
        refuse(operator, "y [B, out], x [B, in], weight_a [L, layers, r, in], weight_b [L, layers, slice, r]", shapes)
    count = weight_a.shape[0]
    number, real = indices.long().clamp(0, count - 1), (indices >= 0) & (indices < count)
    down, up = weight_a[number, layer_idx].float(), weight_b[number, layer_idx].float()
    added = (up @ (down @ x.float().unsqueeze(-1))).squeeze(-1) * scale
    part = y[:, y_offset : y_offset + size]
    changed = torch.where(real.unsqueeze(1), part + added, part).to(y.dtype)
    return torch.cat((y[:, :y_offset], changed, y[:, y_offset + size :]), 1)


_ADAPTER = (
    "Tensor x, Tensor weight_b, Tensor indices, Tensor? weight_a=None, int layer_idx=0, float scale=1e-3, "
    "int y_offset=0, int y_slice_size=-1"
)


@composed(f"npu_batch_gather_matmul(Tensor self, {_ADAPTER}) -> Tensor")
def batch_gather_matmul(
    self: Tensor,
    x: Tensor,
    weight_b: Tensor,
    indices: Tensor,
    weight_a: Tensor | None = None,
    layer_idx: int = 0,
    scale: float = 1e-3,
    y_offset: int = 0,
    y_slice_size: int = -1,
) -> Tensor:
    """self [B, out] plus scale * weight_b @ weight_a @ x of each row's adapter, in y_slice_size columns from y_offset.

    indices [B] names adapters of weight_a [adapters, layers, r, in] and weight_b [adapters, layers, columns, r]; a
    number that is none adds nothing.
    """
    given = (self, x, weight_b, indices, weight_a, layer_idx, scale, y_offset, y_slice_size)
    return _adapted("npu_batch_gather_matmul", *given)


@composed(f"npu_batch_gather_matmul_(Tensor(a!) self, {_ADAPTER}) -> Tensor(a!)")
def batch_gather_matmul_(
    self: Tensor,
    x: Tensor,
    weight_b: Tensor,
    indices: Tensor,
    weight_a: Tensor | None = None,
    layer_idx: int = 0,
    scale: float = 1e-3,
    y_offset: int = 0,
    y_slice_size: int = -1,
) -> Tensor:
    """npu_batch_gather_matmul in place."""
    given = (self, x, weight_b, indices, weight_a, layer_idx, scale, y_offset, y_slice_size)
    return self.copy_(_adapted("npu_batch_gather_matmul_", *given))


@composed(
    "npu_moe_update_expert(Tensor expert_ids, Tensor eplb_table, *, Tensor? expert_scales=None, "
    "Tensor? pruning_threshold=None, Tensor? active_mask=None, int local_rank_id=-1, int world_size=-1, "
    "int balance_mode=0) -> (Tensor, Tensor)"
)
def moe_update_expert(
    expert_ids: Tensor,
    eplb_table: Tensor,
    *,
    expert_scales: Tensor | None = None,
    pruning_threshold: Tensor | None = None,
    active_mask: Tensor | None = None,
    local_rank_id: int = -1,
    world_size: int = -1,
    balance_mode: int = 0,
) -> tuple[Tensor, Tensor]:
    """The place of each chosen expert expert_ids [BS, K] that has several, and which choices are worth it.

    A row of eplb_table [experts, F] has how many places there are, and then the places. balance_mode 0 gives each of
    world_size ranks one, 1 takes them in turn, token by token. Choices of active_mask [BS] stay whose expert_scales
    [BS, K] are at least pruning_threshold [K] times their sum; without these the second result is empty.
    """
    name = "npu_moe_update_expert"
    if expert_ids.dim() != 2 or eplb_table.dim() != 2 or eplb_table.shape[1] < 2:
        shapes = [list(expert_ids.shape), list(eplb_table.shape)]
        refuse(name, "expert_ids [BS, K] and eplb_table [experts, 1 + places]", shapes)
    if balance_mode not in (0, 1) or (balance_mode == 0 and not 0 <= local_rank_id < world_size):
        refuse(
            name, "balance_mode 0 with local_rank_id and world_size, or 1", [balance_mode, local_rank_id, world_size]
        )
    if (expert_scales is None) != (pruning_threshold is None) or (active_mask is not None and expert_scales is None):
        refuse(name, "expert_scales with pruning_threshold, and active_mask with both", None)
    rows = eplb_table.long()[expert_ids.long()]
    places = rows[..., 0]
    if balance_mode == 0:
        number = local_rank_id // ((world_size + places - 1) // places)
    else:
        number = torch.arange(expert_ids.shape[0], device=expert_ids.device).unsqueeze(1) % places
    found = rows.gather(2, (number + 1).unsqueeze(2)).squeeze(2).to(expert_ids.dtype)
    if expert_scales is None or pruning_threshold is None:
        return found, torch.empty(0, dtype=torch.bool, device=expert_ids.device)
    scales = expert_scales.float()
    worth = scales >= scales.sum(1, keepdim=True) * pruning_threshold.float().view(1, -1)
    return found, worth if active_mask is None else worth & active_mask.unsqueeze(1)


@composed(
    "npu_moe_init_routing_quant(Tensor x, Tensor expert_idx, *, Tensor? scale=None, Tensor? offset=None, "
    "int active_num=1024, int expert_capacity=0, int expert_num=256, int drop_pad_mode=0, "
    "int expert_tokens_num_mode=0, bool expert_tokens_before_capacity_flag=False, int quant_mode=1) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def moe_init_routing_quant(
    x: Tensor,
    expert_idx: Tensor,
    *,
    scale: Tensor | None = None,
    offset: Tensor | None = None,
    active_num: int = 1024,
    expert_capacity: int = 0,
    expert_num: int = 256,
    drop_pad_mode: int = 0,
    expert_tokens_num_mode: int = 0,
    expert_tokens_before_capacity_flag: bool = False,
    quant_mode: int = 1,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """npu_moe_init_routing_v2 that quantizes to int8: the rows, where each went, two counts of rows, and scales.

    Of the rows the first active_num come, if positive. Without drop_pad_mode the first counts are each expert's rows
    (expert_tokens_num_mode 2) or where they end (1), with it the second are each expert's rows before some are dropped
    (expert_tokens_before_capacity_flag). Scales are those of quant_mode 1. Else these results are None.
    """
    name = "npu_moe_init_routing_quant"
    if quant_mode not in (0, 1) or drop_pad_mode not in (0, 1) or expert_tokens_num_mode not in (0, 1, 2):
        seen = [quant_mode, drop_pad_mode, expert_tokens_num_mode]
        refuse(name, "quant_mode and drop_pad_mode 0 or 1, expert_tokens_num_mode 0, 1 or 2", seen)
    rows, places, counts, scales = torch.ops.npu.npu_moe_init_routing_v2(
        x,
        expert_idx,
        scale=scale,
        offset=offset,
        expert_capacity=expert_capacity,
        expert_num=expert_num,
        drop_pad_mode=drop_pad_mode,
        expert_tokens_num_type=0 if expert_tokens_num_mode == 1 and not drop_pad_mode else 1,
        expert_tokens_num_flag=True,
        quant_mode=quant_mode,
        active_expert_range=[0, expert_num],
        row_idx_type=0,
    )
    before = None
    if drop_pad_mode and expert_tokens_before_capacity_flag:
        before = (expert_idx.flatten() == torch.arange(expert_num, device=x.device).unsqueeze(1)).sum(1).int()
    if not drop_pad_mode and active_num > 0:
        rows, scales = rows[:active_num], scales[:active_num]
    listed = expert_tokens_num_mode > 0 and not drop_pad_mode
    return rows, places, counts.int() if listed else None, before, scales if quant_mode == 1 else None
