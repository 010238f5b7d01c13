"""Lightning indexer: which keys a query attends to, by scores of a few small heads."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse, refuse_options
from torch_npu.composed.sparse_places import Places, places

_ALL = 9223372036854775807
_LIMITS = f"int pre_tokens={_ALL}, int next_tokens={_ALL}"
_LENGTHS = "Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_key=None"


def _read(
    operator: str,
    query: Tensor,
    key: Tensor,
    lengths_q: Tensor | None,
    lengths: Tensor | None,
    table: Tensor | None,
    layout_query: str,
    layout_key: str,
    mode: int,
) -> tuple[Tensor, Places]:
    """Keys [groups, keys, ..] without their head, and where those of each query are."""
    if layout_query not in ("BSND", "TND") or layout_key not in (layout_query, "PA_BSND") or mode not in (0, 3):
        expected = "layout_query BSND or TND, layout_key the same or PA_BSND, sparse_mode 0 or 3"
        refuse(operator, expected, [layout_query, layout_key, mode])
    tnd = layout_query == "TND"
    if query.dim() != (3 if tnd else 4) or key.dim() != (3 if layout_key == "TND" else 4) or key.shape[-2] != 1:
        shapes = [list(query.shape), list(key.shape)]
        refuse(operator, f"query {layout_query} and key {layout_key} with one head", shapes)
    if (tnd and lengths_q is None) or (layout_key != "BSND" and lengths is None):
        refuse(operator, "actual_seq_lengths for layouts TND and PA_BSND", None)
    if (table is None) == (layout_key == "PA_BSND"):
        refuse(operator, "block_table with layout PA_BSND only", table is not None)
    keys = key.squeeze(-2)
    if table is not None:
        keys = keys[table.long().clamp_min(0)].flatten(1, 2)
    at = places(query, lengths_q, lengths, layout_query, layout_key, keys.shape[-2])
    return keys.flatten(0, -2)[None] if tnd else keys, at


def _scores(query: Tensor, keys: Tensor, weights: Tensor, scales: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Sums over the heads of weights * relu(query @ keys), [groups, queries, keys]."""
    products = torch.einsum("gsnd,gtd->gsnt", query.float(), keys.float())
    if scales is not None:
        products = products * scales[0].float().unsqueeze(-1) * scales[1].float()[:, None, None]
    return (products.relu() * weights.float().unsqueeze(-1)).sum(2)


def _best(scores: Tensor, at: Places, count: int, causal: bool) -> tuple[Tensor, Tensor]:
    """The places of the largest scores in each query's sequence, -1 behind the last, and these scores."""
    place = torch.arange(scores.shape[-1], device=scores.device) - at.start.unsqueeze(-1)
    limit = torch.minimum(at.length, at.place + 1) if causal else at.length
    seen = (place >= 0) & (place < limit.unsqueeze(-1)) & at.counts.unsqueeze(-1)
    taken = min(count, scores.shape[-1])
    values, chosen = scores.masked_fill(~seen, -torch.inf).sort(dim=-1, descending=True, stable=True)
    values, chosen = values[..., :taken], chosen[..., :taken]
    real = seen.gather(-1, chosen)
    indices = (chosen - at.start.unsqueeze(-1)).where(real, -1).int()
    room = (0, count - taken)
    return torch.nn.functional.pad(indices, room, value=-1), torch.nn.functional.pad(values, room, value=-torch.inf)


@composed(
    f"npu_lightning_indexer(Tensor query, Tensor key, Tensor weights, *, {_LENGTHS}, Tensor? block_table=None, "
    f'str layout_query="BSND", str layout_key="BSND", int sparse_count=2048, int sparse_mode=3, {_LIMITS}, '
    "bool return_value=False) -> (Tensor, Tensor)"
)
def lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    *,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    block_table: Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    return_value: bool = False,
    **options: int,
) -> tuple[Tensor, Tensor]:
    """The sparse_count keys with the largest sums over the heads of weights * relu(query @ key), largest first.

    query [B, S, N, D] or [T, N, D], key with one head, also in pages (PA_BSND), weights [B, S, N] or [T, N]; lengths
    are ends of sequences in layout TND. sparse_mode 3: only keys up to the query's place, counted from the ends; 0:
    all. Results [.., 1, sparse_count]: places in the sequence, int32, -1 where there are fewer; return_value: the sums,
    with a gradient (else empty).
    """
    name = "npu_lightning_indexer"
    refuse_options(name, options)
    keys, at = _read(
        name, query, key, actual_seq_lengths_query, actual_seq_lengths_key, block_table, layout_query, layout_key,
        sparse_mode,
    )  # fmt: skip
    if weights.shape != query.shape[:-1]:
        refuse(name, f"weights {list(query.shape[:-1])}", list(weights.shape))
    tnd = layout_query == "TND"
    scores = _scores(query[None], keys, weights[None]) if tnd else _scores(query, keys, weights)
    indices, values = _best(scores, at, sparse_count, sparse_mode == 3)
    indices, values = (t[0] if tnd else t for t in (indices, values))
    values = values.unsqueeze(-2).to(query.dtype) if return_value else query.new_empty(0)
    return indices.unsqueeze(-2), values


@composed(
    "npu_quant_lightning_indexer(Tensor query, Tensor key, Tensor weights, Tensor query_dequant_scale, "
    f"Tensor key_dequant_scale, int query_quant_mode, int key_quant_mode, *, {_LENGTHS}, Tensor? block_table=None, "
    f'str layout_query="BSND", str layout_key="BSND", int sparse_count=2048, int sparse_mode=3, {_LIMITS}, '
    "int? query_dtype=None, int? key_dtype=None) -> Tensor"
)
def quant_lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    query_dequant_scale: Tensor,
    key_dequant_scale: Tensor,
    query_quant_mode: int,
    key_quant_mode: int,
    *,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    block_table: Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    **options: int,
) -> Tensor:
    """npu_lightning_indexer of int8 or float8_e4m3fn query and key, whose scales are those of each token and head.

    query_dequant_scale is like weights, key_dequant_scale like key without its last dimension. Quant modes must be 0.
    """
    name = "npu_quant_lightning_indexer"
    refuse_options(name, options)
    if (query_quant_mode, key_quant_mode) != (0, 0):
        raise NotImplementedError(f"{name}: quant modes must be 0, got {[query_quant_mode, key_quant_mode]}")
    if query.dtype not in (torch.int8, torch.float8_e4m3fn) or key.dtype != query.dtype:
        raise TypeError(f"{name}: expected query and key in int8 or float8_e4m3fn, got {[query.dtype, key.dtype]}")
    shapes = [list(t.shape) for t in (weights, query_dequant_scale, key_dequant_scale)]
    expected = [list(query.shape[:-1]), list(query.shape[:-1]), list(key.shape[:-1])]
    if shapes != expected:
        refuse(name, f"weights and scales {expected}", shapes)
    where = (actual_seq_lengths_query, actual_seq_lengths_key, block_table, layout_query, layout_key, sparse_mode)
    wide = query.float()
    keys, at = _read(name, wide, key.float(), *where)
    scales, _ = _read(name, wide, key_dequant_scale.unsqueeze(-1), *where)
    tnd = layout_query == "TND"
    q, w, s = (t[None] if tnd else t for t in (wide, weights, query_dequant_scale))
    indices, _ = _best(_scores(q, keys, w, (s, scales.squeeze(-1))), at, sparse_count, sparse_mode == 3)
    return (indices[0] if tnd else indices).unsqueeze(-2)


@composed(
    "npu_lightning_indexer_grad(Tensor query, Tensor key, Tensor dy, Tensor sparse_indices, Tensor weights, "
    f'{_LENGTHS}, str? layout="BSND", int? sparse_mode=3, int? pre_tokens={_ALL}, int? next_tokens={_ALL}) -> '
    "(Tensor, Tensor, Tensor)"
)
def lightning_indexer_grad(
    query: Tensor,
    key: Tensor,
    dy: Tensor,
    sparse_indices: Tensor,
    weights: Tensor,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    layout: str | None = "BSND",
    sparse_mode: int | None = 3,
    pre_tokens: int | None = _ALL,
    next_tokens: int | None = _ALL,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the sums of npu_lightning_indexer by query, key and weights; dy is like sparse_indices.

    Negative sparse_indices have no gradient.
    """
    name = "npu_lightning_indexer_grad"
    if (
        (pre_tokens, next_tokens) != (_ALL, _ALL)
        or layout is None
        or sparse_mode is None
        or dy.shape != sparse_indices.shape
    ):
        refuse(name, "dy like sparse_indices and no limits of tokens", [list(dy.shape), pre_tokens, next_tokens])
    where = (actual_seq_lengths_query, actual_seq_lengths_key, None, layout, layout, sparse_mode)
    keys, at = _read(name, query, key, *where)
    tnd = layout == "TND"
    q, w, grad, chosen = (t[None] if tnd else t for t in (query, weights, dy.squeeze(-2), sparse_indices.squeeze(-2)))
    number = keys.shape[1]
    places_ = (chosen.long() + at.start.unsqueeze(-1)).where(chosen >= 0, number)
    by_sums = torch.zeros(*chosen.shape[:-1], number + 1, device=dy.device).scatter_add(-1, places_, grad.float())
    by_sums = by_sums[..., :number].unsqueeze(2)
    products = torch.einsum("gsnd,gtd->gsnt", q.float(), keys.float())
    dw = (products.relu() * by_sums).sum(-1)
    by_products = (by_sums * w.float().unsqueeze(-1)).where(products > 0, 0)
    dq = torch.einsum("gsnt,gtd->gsnd", by_products, keys.float())
    dk = torch.einsum("gsnt,gsnd->gtd", by_products, q.float())
    dq, dk, dw = (t[0] if tnd else t for t in (dq, dk, dw))
    return dq.to(query.dtype), dk.unsqueeze(-2).to(key.dtype), dw.to(weights.dtype)
