"""Attention over chosen keys, and keys compressed in blocks."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse

_ALL = 9223372036854775807


class _Places(NamedTuple):
    """Of each query [groups, queries]: where its sequence of keys starts in the group, how long it is, its place."""

    start: Tensor
    length: Tensor
    place: Tensor  # among the keys: the last one that a causal mask shows
    counts: Tensor  # whether there is a query


def _of_ends(ends: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The sequence of each token, and where each sequence starts and how long it is."""
    ends = ends.long()
    starts = torch.cat((ends.new_zeros(1), ends[:-1]))
    return torch.searchsorted(ends, torch.arange(count, device=ends.device), right=True), starts, ends - starts


def _places(
    query: Tensor, lengths_q: Tensor | None, lengths: Tensor | None, layout: str, layout_kv: str, keys: int
) -> _Places:
    """``keys``: how many each sequence has room for; in layout TND they all follow one another."""
    device = query.device
    if layout == "TND":
        assert lengths_q is not None
        sequence, starts_q, counts_q = _of_ends(lengths_q, query.shape[0])
        real = sequence < counts_q.shape[0]
        sequence = sequence.clamp_max(counts_q.shape[0] - 1)
        assert lengths is not None
        if layout_kv == "TND":
            _, starts, counts = _of_ends(lengths, 0)
        else:
            counts = lengths.long()
            starts = torch.arange(counts.shape[0], device=device) * keys
        own = torch.arange(query.shape[0], device=device) - starts_q[sequence]
        place = counts[sequence] - counts_q[sequence] + own
        return _Places(*(t[None] for t in (starts[sequence], counts[sequence], place, real)))
    batch, queries = query.shape[:2]
    rows = torch.arange(queries, device=device)[None]
    counts_q = torch.full((batch,), queries, device=device) if lengths_q is None else lengths_q.long()
    counts = torch.full((batch,), keys, device=device) if lengths is None else lengths.long()
    place = (counts - counts_q)[:, None] + rows
    length = counts[:, None].expand_as(place)
    return _Places(torch.zeros_like(place), length, place, rows < counts_q[:, None])


def _shown(indices: Tensor, block: int, at: _Places, keys: int, causal: bool) -> Tensor:
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


def _attend(
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
    return (result / total.unsqueeze(-1)).where(seen, 0), largest, total


@composed(
    "npu_sparse_flash_attention(Tensor query, Tensor key, Tensor value, Tensor sparse_indices, float scale_value, *, "
    "Tensor? block_table=None, Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_kv=None, "
    "Tensor? query_rope=None, Tensor? key_rope=None, int sparse_block_size=1, str layout_query='BSND', "
    f"str layout_kv='BSND', int sparse_mode=3, int pre_tokens={_ALL}, int next_tokens={_ALL}, int attention_mode=0, "
    "bool return_softmax_lse=False, Tensor? sinks=None) -> (Tensor, Tensor, Tensor)"
)
def sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    *,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_kv: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = _ALL,
    next_tokens: int = _ALL,
    attention_mode: int = 0,
    return_softmax_lse: bool = False,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of each query over the blocks of keys that sparse_indices names, up to a negative one.

    Layouts are BSND, TND (lengths are ends of sequences then) and, for keys, PA_BSND (pages that block_table names);
    there is one head of keys. query_rope and key_rope are more columns of both. sparse_mode 3: only keys up to the
    query's place, counted from the ends of both; 0: all. sinks [N]: one more score of each head, without value.
    attention_mode must be 2. return_softmax_lse: also maxima and sums of the softmax, [B, 1, S, N] or [1, T, N]; else
    they are empty. Scores of all keys are computed, and what is not chosen is left out.
    """
    name = "npu_sparse_flash_attention"
    if layout_query not in ("BSND", "TND") or layout_kv not in (layout_query, "PA_BSND"):
        refuse(name, "layout_query BSND or TND, layout_kv the same or PA_BSND", [layout_query, layout_kv])
    if sparse_mode not in (0, 3) or attention_mode != 2 or (pre_tokens, next_tokens) != (_ALL, _ALL):
        options = [sparse_mode, attention_mode, pre_tokens, next_tokens]
        refuse(name, "sparse_mode 0 or 3, attention_mode 2 and no limits of tokens", options)
    tnd, pages = layout_query == "TND", layout_kv == "PA_BSND"
    if query.dim() != (3 if tnd else 4) or key.dim() != (3 if layout_kv == "TND" else 4) or key.shape[-2] != 1:
        refuse(name, f"query {layout_query} and key {layout_kv} with one head", [list(query.shape), list(key.shape)])
    if sparse_indices.shape[:-1] != (*query.shape[:-2], 1) or key.shape != value.shape:
        shapes = [list(t.shape) for t in (query, key, value, sparse_indices)]
        refuse(name, "sparse_indices [.., 1, blocks] for each query, key and value of one shape", shapes)
    if (query_rope is None) != (key_rope is None) or (block_table is None) == pages:
        refuse(name, "query_rope with key_rope, and block_table with layout PA_BSND", None)
    if (tnd and actual_seq_lengths_query is None) or (layout_kv != "BSND" and actual_seq_lengths_kv is None):
        refuse(name, "actual_seq_lengths for layouts TND and PA_BSND", None)
    if query_rope is not None and key_rope is not None:
        query, key = torch.cat((query, query_rope), -1), torch.cat((key, key_rope), -1)
    keys, values = key.squeeze(-2), value.squeeze(-2)
    if block_table is not None:
        keys, values = (t[block_table.long().clamp_min(0)].flatten(1, 2) for t in (keys, values))
    room = keys.shape[-2]
    at = _places(query, actual_seq_lengths_query, actual_seq_lengths_kv, layout_query, layout_kv, room)
    groups, chosen = query, sparse_indices.squeeze(-2)
    if tnd:
        groups, chosen = groups[None], chosen[None]
        keys, values = (t.flatten(0, -2)[None] for t in (keys, values))
    shown = _shown(chosen, sparse_block_size, at, keys.shape[1], sparse_mode == 3)
    out, largest, total = _attend(groups, keys, values, shown, scale_value, sinks)
    out = (out[0] if tnd else out).to(value.dtype)
    if not return_softmax_lse:
        return out, out.new_empty(0, dtype=torch.float32), out.new_empty(0, dtype=torch.float32)
    return out, largest if tnd else largest.unsqueeze(1), total if tnd else total.unsqueeze(1)


def _windows(operator: str, input: Tensor, weight: Tensor, block: int, stride: int, ends: list[int] | None) -> Tensor:
    """The tokens [blocks, tokens of one] of each block inside a sequence."""
    if input.dim() != 3 or weight.shape != (block, input.shape[1]) or block < 1 or stride < 1:
        shapes = [list(input.shape), list(weight.shape), block, stride]
        refuse(operator, "input [T, N, D] and weight [compress_block_size, N]", shapes)
    bounds = [0, *(ends if ends is not None else [input.shape[0]])]
    if sorted(bounds) != bounds or bounds[-1] > input.shape[0]:
        refuse(operator, f"ends of sequences that grow up to {input.shape[0]}", ends)
    starts = [s for a, b in pairwise(bounds) for s in range(a, b - block + 1, stride)]
    first = torch.tensor(starts, dtype=torch.int64, device=input.device)
    return first.unsqueeze(1) + torch.arange(block, device=input.device)


_COMPRESS = "int compress_block_size, int compress_stride, *, int[]? actual_seq_len=None"


@composed(f"npu_nsa_compress(Tensor input, Tensor weight, {_COMPRESS}) -> Tensor")
def nsa_compress(
    input: Tensor,
    weight: Tensor,
    compress_block_size: int,
    compress_stride: int,
    *,
    actual_seq_len: list[int] | None = None,
) -> Tensor:
    """Sums of blocks of tokens of input [T, N, D], weighted by weight [block, N]; blocks start every stride tokens.

    actual_seq_len: where each sequence ends; blocks that do not fit into one are left out.
    """
    tokens = _windows("npu_nsa_compress", input, weight, compress_block_size, compress_stride, actual_seq_len)
    return torch.einsum("btnd,tn->bnd", input[tokens].float(), weight.float()).to(input.dtype)


@composed(f"npu_nsa_compress_grad(Tensor grad, Tensor input, Tensor weight, {_COMPRESS}) -> (Tensor, Tensor)")
def nsa_compress_grad(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    compress_block_size: int,
    compress_stride: int,
    *,
    actual_seq_len: list[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of npu_nsa_compress by input and weight."""
    tokens = _windows("npu_nsa_compress_grad", input, weight, compress_block_size, compress_stride, actual_seq_len)
    blocks = torch.einsum("bnd,tn->btnd", grad.float(), weight.float())
    by_input = torch.zeros_like(input, dtype=torch.float32).index_add(0, tokens.flatten(), blocks.flatten(0, 1))
    by_weight = torch.einsum("bnd,btnd->tn", grad.float(), input[tokens].float())
    return by_input.to(input.dtype), by_weight.to(weight.dtype)
