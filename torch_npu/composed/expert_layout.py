"""Which rank has which experts, and where the rows are that ranks send to experts and back.

Every rank sends every other one as many rows as could be meant for it, so that nothing waits for a count on the host
and captured graphs replay with other experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torch_npu.composed import groups
from torch_npu.composed.registry import refuse, refuse_options

__all__ = ["Layout", "Sent", "layout_of", "places_of", "received", "refuse_parallel_options", "returned", "sent"]


@dataclass(frozen=True)
class Layout:
    """Which rank has which experts: ``shared_ranks`` ranks those that all tokens go to, the others the chosen ones."""

    ranks: int
    rank: int
    experts: int  # that tokens choose among
    shared_experts: int
    shared_ranks: int
    tokens: int  # of each rank, at most
    choices: int  # of each token

    @property
    def of_each(self) -> int:
        """Experts of a rank that has no shared one."""
        return self.experts // (self.ranks - self.shared_ranks)

    @property
    def here(self) -> int:
        """Experts of this rank."""
        return 1 if self.rank < self.shared_ranks else self.of_each

    @property
    def rows(self) -> int:
        """What a rank sends another one at most."""
        return self.tokens * max(1, min(self.of_each, self.choices))

    @property
    def room(self) -> int:
        """What this rank receives at most."""
        if self.rank >= self.shared_ranks:
            return self.ranks * self.tokens * min(self.of_each, self.choices)
        copies = self.shared_ranks // self.shared_experts
        return self.tokens * (-(-self.ranks // copies))


def layout_of(
    operator: str,
    expert_ids: Tensor,
    ranks: int,
    rank: int,
    experts: int,
    shared_experts: int,
    shared_ranks: int,
    global_bs: int,
) -> Layout:
    """Checks what the operators' arguments say about experts and ranks."""
    if not 0 <= rank < ranks or not 0 <= shared_ranks < ranks:
        refuse(operator, f"ep_rank_id and shared_expert_rank_num from 0 to {ranks - 1}", [rank, shared_ranks])
    if experts < 1 or experts % (ranks - shared_ranks):
        refuse(operator, f"a moe_expert_num that {ranks - shared_ranks} ranks share evenly", experts)
    if shared_ranks and (shared_experts < 1 or shared_ranks % shared_experts):
        refuse(
            operator, "a shared_expert_rank_num that is a multiple of shared_expert_num", [shared_ranks, shared_experts]
        )
    if expert_ids.dim() != 2 or global_bs % ranks or 0 < global_bs < expert_ids.shape[0] * ranks:
        expected = "expert_ids [BS, K], global_bs 0 or ep_world_size times the largest BS"
        refuse(operator, expected, [list(expert_ids.shape), global_bs])
    tokens = global_bs // ranks or expert_ids.shape[0]
    return Layout(ranks, rank, experts, shared_experts, shared_ranks, tokens, expert_ids.shape[1])


def refuse_parallel_options(operator: str, options: dict[str, Any]) -> None:
    """A second group, of tensor parallelism, is refused; what is documented to be without effect is not."""
    options = {name: value for name, value in options.items() if name not in ("group_tp", "tp_rank_id", "comm_alg")}
    if options.get("tp_world_size") == 1:
        del options["tp_world_size"]
    refuse_options(operator, options)


@dataclass(frozen=True)
class Sent:
    """Where the copies of tokens, choice by choice and then shared, are in what this rank sends: [ranks * rows + 1]."""

    token: Tensor  # [copies]
    expert: Tensor  # [copies], shared ones after the chosen ones
    slot: Tensor  # [copies]; the last slot is for copies that are not sent
    counts: Tensor  # [ranks, experts of the rank that has most]
    nth: Tensor  # [copies] how many copies this rank sends to the same expert before


def places_of(layout: Layout, expert_ids: Tensor, active: Tensor | None) -> Sent:
    """Copies to one rank are sorted by expert, then by token."""
    device, (tokens, choices) = expert_ids.device, expert_ids.shape
    ids = expert_ids.long()
    real = (ids >= 0) & (ids < layout.experts)
    alive = torch.ones(tokens, dtype=torch.bool, device=device)
    if active is not None:
        real = real & (active if active.dim() == 2 else active.unsqueeze(1))
        alive = active.any(1) if active.dim() == 2 else active
    bins = layout.experts + layout.shared_experts * bool(layout.shared_ranks)
    expert = [ids.where(real, bins).flatten()]
    token = torch.arange(tokens, device=device)
    owners = [token.repeat_interleave(choices)]
    for shared_one in range(layout.experts, bins):
        expert.append(torch.full_like(token, shared_one).where(alive, bins))
        owners.append(token)
    copies = torch.cat(expert)
    # rank of each expert, and its number there
    copies_of_each = layout.shared_ranks // layout.shared_experts if layout.shared_ranks else 1
    chosen = torch.arange(layout.experts, device=device)
    shared = torch.arange(bins - layout.experts, device=device)
    rank = torch.cat(
        (chosen // layout.of_each + layout.shared_ranks, shared * copies_of_each + layout.rank % copies_of_each)
    )
    local = torch.cat((chosen % layout.of_each, torch.zeros_like(shared)))
    matches = copies.unsqueeze(1) == torch.arange(bins, device=device)
    lengths = matches.sum(0)
    nth = (matches.cumsum(0) - 1).gather(1, copies.clamp_max(bins - 1).unsqueeze(1)).squeeze(1)
    # experts of a rank follow one another, in the order of their numbers
    before = lengths.cumsum(0) - lengths
    start = before - before.gather(0, torch.arange(bins, device=device) - local)
    number = copies.clamp_max(bins - 1)
    slot = rank[number] * layout.rows + start[number] + nth
    slot = slot.where(copies < bins, layout.ranks * layout.rows)
    counts = lengths.new_zeros(layout.ranks, layout.of_each).index_put((rank, local), lengths)
    return Sent(torch.cat(owners), copies, slot, counts, nth)


def sent(layout: Layout, rows: Tensor, slot: Tensor, group: dist.ProcessGroup) -> Tensor:
    """What comes, [ranks, rows, ...], when each rank puts its rows to their slots."""
    buffer = rows.new_zeros(layout.ranks * layout.rows + 1, *rows.shape[1:])
    buffer = buffer.index_copy(0, slot, rows)[:-1].unflatten(0, (layout.ranks, layout.rows))
    return groups.all_to_all(buffer, group)


def received(layout: Layout, counts: Tensor) -> Tensor:
    """Where [ranks, rows] that came are when they are sorted by expert, then by rank; layout.room: nowhere.

    counts [ranks, experts here].
    """
    ends = counts.cumsum(1)
    position = torch.arange(layout.rows, device=counts.device).expand(layout.ranks, -1).contiguous()
    expert = torch.searchsorted(ends, position, right=True)
    real = expert < layout.here
    expert = expert.clamp_max(layout.here - 1)
    by_expert = counts.t().flatten()
    before = (by_expert.cumsum(0) - by_expert).view(layout.here, layout.ranks).t()
    place = before.gather(1, expert) + position - (ends - counts).gather(1, expert)
    return place.where(real, layout.room)


def returned(layout: Layout, rows: Tensor, counts: Tensor, slot: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The way back of rows [room, ...]: for each copy that this rank sent what its expert made of it, else zeros."""
    padded = torch.cat((rows, rows.new_zeros(1, *rows.shape[1:])))
    place = received(layout, counts).clamp_max(rows.shape[0])
    back = groups.all_to_all(padded[place], group).flatten(0, 1)
    return torch.cat((back, back.new_zeros(1, *back.shape[1:])))[slot]
