"""Where queries and keys of batches, joined sequences and pages are, and attention over some of the keys."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Places", "attend", "of_ends", "places", "shown_keys"]


class Places(NamedTuple):
    """Of each query [groups, queries]: where its sequence of keys starts in the group, how long it is, its place."""

    start: Tensor
    length: Tensor
    place: Tensor  # among the keys: the last one that a causal mask shows
    counts: Tensor  # whether there is a query


def of_ends(ends: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The sequence of each token, and where each sequence starts and how long it is."""
    ends = ends.long()
    starts = torch.cat((ends.new_zeros(1), ends[:-1]))
    return torch.searchsorted(ends, torch.arange(count, device=ends.device), right=True), starts, ends - starts


def places(
    query: Tensor, lengths_q: Tensor | None, lengths: Tensor | None, layout: str, layout_kv: str, keys: int
) -> Places:
    """``keys``: how many each sequence has room for; in layout TND they all follow one another."""
    device = query.device
    if layout == "TND":
        assert lengths_q is not None
        sequence, starts_q, counts_q = of_ends(lengths_q, query.shape[0])
        real = sequence < counts_q.shape[0]
        sequence = sequence.clamp_max(counts_q.shape[0] - 1)
        assert lengths is not None
        if layout_kv == "TND":
            _, starts, counts = of_ends(lengths, 0)
        else:
            counts = lengths.long()
            starts = torch.arange(counts.shape[0], device=device) * keys
        own = torch.arange(query.shape[0], device=device) - starts_q[sequence]
        place = counts[sequence] - counts_q[sequence] + own
        return Places(*(t[None] for t in (starts[sequence], counts[sequence], place, real)))
    batch, queries = query.shape[:2]
    rows = torch.arange(queries, device=device)[None]
    counts_q = torch.full((batch,), queries, device=device) if lengths_q is None else lengths_q.long()
    counts = torch.full((batch,), keys, device=device) if lengths is None else lengths.long()
    place = (counts - counts_q)[:, None] + rows
    length = counts[:, None].expand_as(place)
    return Places(torch.zeros_like(place), length, place, rows < counts_q[:, None])


def shown_keys(indices: Tensor, block: int, at: Places, keys: int, causal: bool) -> Tensor:
    """Which keys each query sees, [groups, queries, keys]: blocks of the indices up to the first negative one."""
    chosen = indices.long()
    used = (chosen >= 0).cumprod(-1).bool()
    inner = torch.arange(block, device=indices.device)
    tokens = (chosen.unsqueeze(-1) * block + inner).flatten(-2)
    limit = torch.minimum(at.length, at.place + 1) if causal else at.length
    used = used.repeat_interleave(block, -1) & (tokens < limit.unsqueeze(-1)) & at.counts.unsqueeze(-1)
    places = (tokens + at.start.unsqueeze(-1)).where(used, keys)  # what is not used goes behind the last key
    shown = torch.zeros(*indices.shape[:-1], keys + 1, dtype=torch.bool, device=indices.device)
    return shown.scatter(-1, places, True)[..., :keys]


def attend(
    query: Tensor, key: Tensor, value: Tensor, shown: Tensor, scale: float, sinks: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention [groups, queries, heads, D], its maxima and sums; zeros for a query that sees nothing."""
    scores = torch.einsum("gsnd,gtd->gsnt", query.float(), key.float()) * scale
    scores = scores.masked_fill(~shown.unsqueeze(2), -torch.inf)
    largest = scores.amax(-1)
    if sinks is not None:
        largest = torch.maximum(largest, sinks.float())
    base = largest.masked_fill(largest == -torch.inf, 0)
    weights = (scores - base.unsqueeze(-1)).exp()
    total = weights.sum(-1)
    if sinks is not None:
        total = total + (sinks.float() - base).exp()
    result = torch.einsum("gsnt,gtd->gsnd", weights, value.float())
    seen = shown.any(-1)[..., None, None]
    divisor = total.unsqueeze(-1).where(seen, 1)  # a division by 0 would have no gradient even where it is left out
    return (result / divisor).where(seen, 0), largest, total
