"""Training of the lightning indexer: how far its shares of keys are from those of the attention.

Layouts are BSND [B, S, N, D] and TND [T, N, D], the latter with the ends of sequences. A query sees the keys up to its
own place, counted from the ends of both (sparse_mode 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse

_ALL = 9223372036854775807
_LEAST = 1e-8  # share whose logarithm is taken
_ENDS = "SymInt[]? actual_seq_qlen=None, SymInt[]? actual_seq_klen=None, str? layout='BSND', int? sparse_mode=3"
_LIMITS = f"int? pre_tokens={_ALL}, int? next_tokens={_ALL}"
_ATTENTION = "Tensor query, Tensor key, Tensor query_index, Tensor key_index, Tensor weights"
_ROPE = "*, Tensor? query_rope=None, Tensor? key_rope=None"


def _check(operator: str, query: Tensor, key: Tensor, weights: Tensor, layout: str | None, limits: tuple) -> None:
    dims = {"BSND": 4, "TND": 3}.get(layout or "")
    if dims is None or limits != (3, _ALL, _ALL):
        refuse(operator, "layout BSND or TND, sparse_mode 3 and no limits of tokens", [layout, *limits])
    if query.dim() != dims or key.dim() != dims or key.shape[-2] != 1 or weights.shape != query.shape[:-1]:
        shapes = [list(t.shape) for t in (query, key, weights)]
        refuse(operator, f"query_index {layout}, key_index {layout} with one head, weights like query_index", shapes)


def _sequences(
    operator: str, query: Tensor, key: Tensor, layout: str | None, ends: Sequence[Sequence[int] | None]
) -> Iterator[tuple[Tensor, Tensor, tuple]]:
    """Queries and keys of each sequence, and where they are: the rows of its queries, those of its keys."""
    if layout == "BSND":
        for b in range(query.shape[0]):
            yield query[b], key[b], (b, b)
        return
    given = [list(e) for e in ends if e is not None]
    if len(given) != 2 or len(given[0]) != len(given[1]):
        refuse(operator, "actual_seq_qlen and actual_seq_klen, as many ends of sequences, with layout TND", ends)
    for (a, b), (c, d) in zip(*(pairwise([0, *e]) for e in given), strict=True):
        yield query[a:b], key[c:d], (slice(a, b), slice(c, d))


def _causal(queries: int, keys: int, device: torch.device) -> Tensor:
    row = torch.arange(queries, device=device).unsqueeze(1) + keys - queries
    return torch.arange(keys, device=device) <= row


def _products(query: Tensor, key: Tensor) -> Tensor:
    """relu of query [S, N, D] @ key [S2, 1, D], [S, N, S2] in float32."""
    return torch.einsum("snd,td->snt", query.float(), key.squeeze(1).float()).relu()


def _joined(parts: list[Tensor], layout: str | None, dim: int = 0) -> Tensor:
    return torch.stack(parts) if layout == "BSND" else torch.cat(parts, dim)


@composed(
    "npu_dense_lightning_indexer_softmax_lse(Tensor query_index, Tensor key_index, Tensor weights, *, "
    f"{_ENDS}, {_LIMITS}) -> (Tensor, Tensor)"
)
def dense_lightning_indexer_softmax_lse(
    query_index: Tensor,
    key_index: Tensor,
    weights: Tensor,
    *,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_klen: list[int] | None = None,
    layout: str | None = "BSND",
    sparse_mode: int | None = 3,
    pre_tokens: int | None = _ALL,
    next_tokens: int | None = _ALL,
) -> tuple[Tensor, Tensor]:
    """Maxima and sums of the softmax of the indexer's scores, [B, 1, S] or [1, T], in float32.

    The scores are the sums over the heads of weights * relu(query_index @ key_index).
    """
    name = "npu_dense_lightning_indexer_softmax_lse"
    _check(name, query_index, key_index, weights, layout, (sparse_mode, pre_tokens, next_tokens))
    maxima, sums = [], []
    for q, k, (rows, _) in _sequences(name, query_index, key_index, layout, (actual_seq_qlen, actual_seq_klen)):
        scores = (_products(q, k) * weights[rows].float().unsqueeze(-1)).sum(1)
        scores = scores.masked_fill(~_causal(scores.shape[0], scores.shape[1], scores.device), -torch.inf)
        largest = scores.amax(-1)
        maxima.append(largest.unsqueeze(0))
        sums.append((scores - largest.masked_fill(largest == -torch.inf, 0).unsqueeze(-1)).exp().sum(-1).unsqueeze(0))
    return _joined(maxima, layout, 1), _joined(sums, layout, 1)


def _target(q: Tensor, k: Tensor, largest: Tensor, total: Tensor, scale: float, seen: Tensor) -> Tensor:
    """The attention's shares [S, S2], the mean of all heads; statistics are [N2, S, G]."""
    groups = q.float().unflatten(1, (k.shape[1], -1))
    scores = torch.einsum("sngd,tnd->ngst", groups, k.float()) * scale
    shares = (scores - largest.movedim(-1, 1).float().unsqueeze(-1)).exp()
    shares = shares / total.movedim(-1, 1).float().unsqueeze(-1)
    return shares.where(seen, 0).mean((0, 1))


def _gradients(
    q: Tensor, k: Tensor, w: Tensor, target: Tensor, seen: Tensor, kept: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the sum of target * log(target / shares) by the indexer's query, key and weights, and the sum."""
    products = _products(q, k)
    scores = (products * w.float().unsqueeze(-1)).sum(1)
    if kept is None:
        shares = scores.masked_fill(~seen, -torch.inf).softmax(-1).where(seen, 0)
    else:
        shares = ((scores - kept[0].unsqueeze(-1)).exp() / kept[1].unsqueeze(-1)).where(seen, 0)
    loss = (target * (target.clamp_min(_LEAST).log() - shares.clamp_min(_LEAST).log())).sum()
    by_scores = (shares - target).unsqueeze(1)
    by_products = (by_scores * w.float().unsqueeze(-1)).where(products > 0, 0)
    dq = torch.einsum("snt,td->snd", by_products, k.squeeze(1).float())
    dk = torch.einsum("snt,snd->td", by_products, q.float()).unsqueeze(1)
    return dq, dk, (by_scores * products).sum(-1), loss


def _loss(
    operator: str,
    attention: tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor, Tensor],
    indexer: tuple[Tensor, Tensor, Tensor],
    scale: float,
    layout: str | None,
    ends: tuple[list[int] | None, list[int] | None],
    chosen: Tensor | None,
    kept: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    query, key, query_rope, key_rope, largest, total = attention
    query_index, key_index, weights = indexer
    if (query_rope is None) != (key_rope is None):
        refuse(operator, "query_rope with key_rope", [query_rope is not None, key_rope is not None])
    if query_rope is not None and key_rope is not None:
        query, key = torch.cat((query, query_rope), -1), torch.cat((key, key_rope), -1)
    statistics = (key.shape[-2], query.shape[-3], query.shape[-2] // key.shape[-2])
    if query.shape[:-2] != query_index.shape[:-2] or largest.shape[-3:] != statistics or total.shape != largest.shape:
        shapes = [list(t.shape) for t in (query, query_index, largest, total)]
        refuse(operator, f"query with the rows of query_index, softmax_max and softmax_sum {list(statistics)}", shapes)
    parts: list[tuple[Tensor, ...]] = []
    for q, k, (rows, columns) in _sequences(operator, query, key, layout, ends):
        seen = _causal(q.shape[0], k.shape[0], q.device)
        if chosen is not None:
            places = chosen[rows].squeeze(1).long()
            among = torch.zeros(q.shape[0], k.shape[0] + 1, dtype=torch.bool, device=q.device)
            seen = seen & among.scatter(1, places.where(places >= 0, k.shape[0]), True)[:, :-1]
        at = (rows, slice(None)) if layout == "BSND" else (slice(None), rows)
        target = _target(q, k, largest[at], total[at], scale, seen)
        own = None if kept is None else (kept[0][at][0], kept[1][at][0])
        parts.append(_gradients(query_index[rows], key_index[columns], weights[rows], target, seen, own))
    dq, dk, dw = (_joined([p[i] for p in parts], layout).to(t.dtype) for i, t in enumerate(indexer))
    return dq, dk, dw, torch.stack([p[3] for p in parts]).sum().reshape(1)


@composed(
    f"npu_dense_lightning_indexer_grad_kl_loss({_ATTENTION}, Tensor softmax_max, Tensor softmax_sum, "
    f"Tensor softmax_max_index, Tensor softmax_sum_index, float scale_value, {_ROPE}, {_ENDS}, {_LIMITS}) -> "
    "(Tensor, Tensor, Tensor, Tensor)"
)
def dense_lightning_indexer_grad_kl_loss(
    query: Tensor,
    key: Tensor,
    query_index: Tensor,
    key_index: Tensor,
    weights: Tensor,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    softmax_max_index: Tensor,
    softmax_sum_index: Tensor,
    scale_value: float,
    *,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_klen: list[int] | None = None,
    layout: str | None = "BSND",
    sparse_mode: int | None = 3,
    pre_tokens: int | None = _ALL,
    next_tokens: int | None = _ALL,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients by query_index, key_index and weights of the divergence of the indexer's shares, and it [1].

    It is the sum of p * log(p / s): p is the mean over the heads of the attention's shares, exp(scale_value * query @
    key - softmax_max) / softmax_sum (statistics [B, N2, S, N / N2] or [N2, T, N / N2]); s are the indexer's, with the
    results of npu_dense_lightning_indexer_softmax_lse.
    """
    name = "npu_dense_lightning_indexer_grad_kl_loss"
    _check(name, query_index, key_index, weights, layout, (sparse_mode, pre_tokens, next_tokens))
    attention = (query, key, query_rope, key_rope, softmax_max, softmax_sum)
    kept, ends = (softmax_max_index, softmax_sum_index), (actual_seq_qlen, actual_seq_klen)
    return _loss(name, attention, (query_index, key_index, weights), scale_value, layout, ends, None, kept)


@composed(
    f"npu_sparse_lightning_indexer_grad_kl_loss({_ATTENTION}, Tensor sparse_indices, Tensor softmax_max, "
    f"Tensor softmax_sum, float scale_value, {_ROPE}, {_ENDS}, {_LIMITS}, Tensor? sinks=None) -> "
    "(Tensor, Tensor, Tensor, Tensor)"
)
def sparse_lightning_indexer_grad_kl_loss(
    query: Tensor,
    key: Tensor,
    query_index: Tensor,
    key_index: Tensor,
    weights: Tensor,
    sparse_indices: Tensor,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    scale_value: float,
    *,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_klen: list[int] | None = None,
    layout: str | None = "BSND",
    sparse_mode: int | None = 3,
    pre_tokens: int | None = _ALL,
    next_tokens: int | None = _ALL,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """npu_dense_lightning_indexer_grad_kl_loss among the keys that sparse_indices [.., 1, K] name, -1 for none."""
    name = "npu_sparse_lightning_indexer_grad_kl_loss"
    _check(name, query_index, key_index, weights, layout, (sparse_mode, pre_tokens, next_tokens))
    if sinks is not None:
        raise NotImplementedError(f"{name}: sinks is not supported; leave it out")
    if sparse_indices.shape[:-1] != (*query_index.shape[:-2], 1):
        refuse(name, f"sparse_indices {[*query_index.shape[:-2], 1, 'K']}", list(sparse_indices.shape))
    attention = (query, key, query_rope, key_rope, softmax_max, softmax_sum)
    indexer, ends = (query_index, key_index, weights), (actual_seq_qlen, actual_seq_klen)
    return _loss(name, attention, indexer, scale_value, layout, ends, sparse_indices, None)
