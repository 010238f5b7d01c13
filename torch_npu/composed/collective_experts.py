"""Mixture of experts whose experts are spread over the ranks of a group: products of tokens that ranks exchange.

The group is named by its ``get_hccl_comm_name``. All ranks call the operator. It has no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_npu.composed import groups
from torch_npu.composed.registry import composed, refuse, refuse_options

__all__ = ["by_expert", "check_counts", "of_ranks"]

_COUNTS = "int ep_world_size, int[] send_counts, int[] recv_counts"
_SHARED = (
    "*, Tensor? send_counts_tensor=None, Tensor? recv_counts_tensor=None, Tensor? mm_x=None, "
    "Tensor? mm_weight=None, bool trans_gmm_weight=False, bool trans_mm_weight=False"
)


def check_counts(
    operator: str, x: Tensor, weight: Tensor, ranks: int, sent: list[int], received: list[int], rows: int
) -> None:
    count = weight.shape[0] * ranks
    if x.dim() != 2 or weight.dim() != 3 or x.shape[1] != weight.shape[1]:
        refuse(operator, "gmm_x [rows, k] and gmm_weight [experts, k, n]", [list(x.shape), list(weight.shape)])
    if len(sent) != count or len(received) != count or min(*sent, *received, 0) < 0:
        refuse(operator, f"{count} send_counts and recv_counts, one for each expert of each rank", [sent, received])
    if rows != x.shape[0]:
        refuse(operator, f"counts whose sum is gmm_x's rows, {x.shape[0]}", rows)


def of_ranks(counts: list[int], experts: int) -> list[int]:
    return [sum(counts[i : i + experts]) for i in range(0, len(counts), experts)]


def by_expert(counts: list[int], experts: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where the rows, which come rank by rank, are when they are sorted by experts; and how many each expert has."""
    table = torch.tensor(counts, dtype=torch.int64).view(-1, experts)
    expert = torch.arange(experts).repeat(table.shape[0]).repeat_interleave(table.flatten())
    return expert.argsort(stable=True).to(device), table.sum(0).to(device)


def _grouped(x: Tensor, weight: Tensor, lengths: Tensor) -> Tensor:
    if x.shape[0] == 0:
        return x.new_empty(0, weight.shape[2])
    (product,) = torch.ops.npu.npu_grouped_matmul(
        [x], [weight], group_list=lengths, split_item=3, group_type=0, group_list_type=1
    )
    return product


def _shared(operator: str, x: Tensor | None, weight: Tensor | None, transposed: bool) -> Tensor | None:
    if (x is None) != (weight is None):
        refuse(operator, "mm_x with mm_weight", [x is not None, weight is not None])
    if x is None or weight is None:
        return None
    return torch.mm(x, weight.t() if transposed else weight)


def _fake_shared(x: Tensor | None, weight: Tensor | None, transposed: bool) -> Tensor | None:
    if x is None or weight is None:
        return None
    return x.new_empty(x.shape[0], weight.shape[0 if transposed else 1])


def _fake_exchanged(
    gmm_x: Tensor,
    gmm_weight: Tensor,
    hcom: str,
    ep_world_size: int,
    send_counts: list[int],
    recv_counts: list[int],
    *,
    mm_x: Tensor | None = None,
    mm_weight: Tensor | None = None,
    trans_gmm_weight: bool = False,
    trans_mm_weight: bool = False,
    permute_out_flag: bool = False,
    **options: Any,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    rows = sum(recv_counts)
    product = gmm_x.new_empty(rows, gmm_weight.shape[1 if trans_gmm_weight else 2])
    permuted = gmm_x.new_empty(rows, gmm_x.shape[1]) if permute_out_flag else None
    return product, _fake_shared(mm_x, mm_weight, trans_mm_weight), permuted


@composed(
    f"npu_alltoallv_gmm(Tensor gmm_x, Tensor gmm_weight, str hcom, {_COUNTS}, {_SHARED}, "
    "bool permute_out_flag=False, str? comm_mode=None) -> (Tensor, Tensor, Tensor)",
    fake=_fake_exchanged,
)
def alltoallv_gmm(
    gmm_x: Tensor,
    gmm_weight: Tensor,
    hcom: str,
    ep_world_size: int,
    send_counts: list[int],
    recv_counts: list[int],
    *,
    mm_x: Tensor | None = None,
    mm_weight: Tensor | None = None,
    trans_gmm_weight: bool = False,
    trans_mm_weight: bool = False,
    permute_out_flag: bool = False,
    comm_mode: str | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Rows of gmm_x go to their experts' ranks, are sorted by experts there, and multiplied by gmm_weight [e, k, n].

    send_counts and recv_counts [ranks * e]: how many rows go to (come from) each rank for each of its (of this rank's)
    e experts. Results: the product; mm_x @ mm_weight, of shared experts; the sorted rows. None for what is not asked
    for. comm_mode names a unit of the hardware.
    """
    name = "npu_alltoallv_gmm"
    refuse_options(name, options)
    weight = gmm_weight.transpose(1, 2) if trans_gmm_weight else gmm_weight
    check_counts(name, gmm_x, weight, ep_world_size, send_counts, recv_counts, sum(send_counts))
    group = groups.group_named(name, hcom, ep_world_size)
    experts = weight.shape[0]
    rows = groups.exchange(gmm_x, of_ranks(recv_counts, experts), of_ranks(send_counts, experts), group)
    order, lengths = by_expert(recv_counts, experts, rows.device)
    rows = rows[order]
    shared = _shared(name, mm_x, mm_weight, trans_mm_weight)
    return _grouped(rows, weight, lengths), shared, rows if permute_out_flag else None


def _fake_returned(
    gmm_x: Tensor,
    gmm_weight: Tensor,
    hcom: str,
    ep_world_size: int,
    send_counts: list[int],
    recv_counts: list[int],
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    return _fake_exchanged(gmm_x, gmm_weight, hcom, ep_world_size, send_counts, recv_counts, **options)[:2]


@composed(
    f"npu_gmm_alltoallv(Tensor gmm_x, Tensor gmm_weight, str hcom, {_COUNTS}, {_SHARED}, str? comm_mode=None) -> "
    "(Tensor, Tensor)",
    fake=_fake_returned,
)
def gmm_alltoallv(
    gmm_x: Tensor,
    gmm_weight: Tensor,
    hcom: str,
    ep_world_size: int,
    send_counts: list[int],
    recv_counts: list[int],
    *,
    mm_x: Tensor | None = None,
    mm_weight: Tensor | None = None,
    trans_gmm_weight: bool = False,
    trans_mm_weight: bool = False,
    comm_mode: str | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The way back of npu_alltoallv_gmm: gmm_x, sorted by experts, times gmm_weight, goes to the ranks it came from.

    send_counts and recv_counts [ranks * e]: how many rows go to (come from) each rank for each of this rank's (of its)
    e experts. Results: the rows that come, in the order of send_counts of npu_alltoallv_gmm; mm_x @ mm_weight, or None.
    """
    name = "npu_gmm_alltoallv"
    refuse_options(name, options)
    weight = gmm_weight.transpose(1, 2) if trans_gmm_weight else gmm_weight
    check_counts(name, gmm_x, weight, ep_world_size, send_counts, recv_counts, sum(send_counts))
    group = groups.group_named(name, hcom, ep_world_size)
    experts = weight.shape[0]
    order, lengths = by_expert(send_counts, experts, gmm_x.device)
    product = _grouped(gmm_x, weight, lengths)
    by_rank = torch.empty_like(product).index_copy(0, order, product)
    rows = groups.exchange(by_rank, of_ranks(recv_counts, experts), of_ranks(send_counts, experts), group)
    return rows, _shared(name, mm_x, mm_weight, trans_mm_weight)
