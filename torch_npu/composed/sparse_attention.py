"""Attention over chosen keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse, refuse_options
from torch_npu.composed.sparse_places import attend, places, shown_keys

_ALL = 9223372036854775807


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
    at = places(query, actual_seq_lengths_query, actual_seq_lengths_kv, layout_query, layout_kv, room)
    groups, chosen = query, sparse_indices.squeeze(-2)
    if tnd:
        groups, chosen = groups[None], chosen[None]
        keys, values = (t.flatten(0, -2)[None] for t in (keys, values))
    shown = shown_keys(chosen, sparse_block_size, at, keys.shape[1], sparse_mode == 3)
    out, largest, total = attend(groups, keys, values, shown, scale_value, sinks)
    out = (out[0] if tnd else out).to(value.dtype)
    if not return_softmax_lse:
        return out, out.new_empty(0, dtype=torch.float32), out.new_empty(0, dtype=torch.float32)
    return out, largest if tnd else largest.unsqueeze(1), total if tnd else total.unsqueeze(1)


def _grouped(x: Tensor, layout: str) -> Tensor:
    return x[None] if layout == "TND" else x


@composed(
    "npu_sparse_flash_attention_grad(Tensor query, Tensor key, Tensor value, Tensor sparse_indices, Tensor d_out, "
    "Tensor out, Tensor softmax_max, Tensor softmax_sum, float scale_value, int sparse_block_size, "
    "Tensor? query_rope=None, Tensor? key_rope=None, Tensor? actual_seq_qlen=None, Tensor? actual_seq_kvlen=None, "
    f"str? layout='BSND', int? sparse_mode=3, int? pre_tokens={_ALL}, int? next_tokens={_ALL}, "
    "int? attention_mode=0) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def sparse_flash_attention_grad(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    d_out: Tensor,
    out: Tensor,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    scale_value: float,
    sparse_block_size: int,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    actual_seq_qlen: Tensor | None = None,
    actual_seq_kvlen: Tensor | None = None,
    layout: str | None = "BSND",
    sparse_mode: int | None = 3,
    pre_tokens: int | None = _ALL,
    next_tokens: int | None = _ALL,
    attention_mode: int | None = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of npu_sparse_flash_attention by query, key, value, query_rope and key_rope (None without them).

    out, softmax_max and softmax_sum are its results; layout BSND or TND. attention_mode must be 2.
    """
    name = "npu_sparse_flash_attention_grad"
    if layout not in ("BSND", "TND") or (layout == "TND" and (actual_seq_qlen is None or actual_seq_kvlen is None)):
        refuse(name, "layout BSND, or TND with actual_seq_qlen and actual_seq_kvlen", layout)
    if sparse_mode not in (0, 3) or attention_mode != 2 or (pre_tokens, next_tokens) != (_ALL, _ALL):
        options = [sparse_mode, attention_mode, pre_tokens, next_tokens]
        refuse(name, "sparse_mode 0 or 3, attention_mode 2 and no limits of tokens", options)
    width, rope = query.shape[-1], query_rope is not None and key_rope is not None
    q, k = query, key
    if query_rope is not None and key_rope is not None:
        q, k = torch.cat((query, query_rope), -1), torch.cat((key, key_rope), -1)
    at = places(query, actual_seq_qlen, actual_seq_kvlen, layout, layout, key.shape[-3])
    q, grad, made = (_grouped(t, layout).float() for t in (q, d_out, out))
    k, v = (_grouped(t.squeeze(-2), layout).float() for t in (k, value))
    shown = shown_keys(
        _grouped(sparse_indices.squeeze(-2), layout), sparse_block_size, at, k.shape[1], sparse_mode == 3
    )
    largest, total = (t.squeeze(0 if layout == "TND" else 1) for t in (softmax_max, softmax_sum))
    largest, total = _grouped(largest, layout), _grouped(total, layout)
    scores = torch.einsum("gsnd,gtd->gsnt", q, k) * scale_value
    weights = ((scores - largest.unsqueeze(-1)).exp() / total.unsqueeze(-1)).where(shown.unsqueeze(2), 0)
    by_weights = torch.einsum("gsnd,gtd->gsnt", grad, v)
    by_scores = weights * (by_weights - (grad * made).sum(-1, keepdim=True))
    dq = torch.einsum("gsnt,gtd->gsnd", by_scores, k) * scale_value
    dk = torch.einsum("gsnt,gsnd->gtd", by_scores, q) * scale_value
    dv = torch.einsum("gsnt,gsnd->gtd", weights, grad)
    if layout == "TND":
        dq, dk, dv = dq[0], dk[0], dv[0]
    dk, dv = dk.unsqueeze(-2), dv.unsqueeze(-2)
    results = dq[..., :width].to(query.dtype), dk[..., :width].to(key.dtype), dv.to(value.dtype)
    if not rope:
        return *results, None, None
    return *results, dq[..., width:].to(query.dtype), dk[..., width:].to(key.dtype)


@composed(
    "npu_kv_quant_sparse_flash_attention(Tensor query, Tensor key, Tensor value, Tensor sparse_indices, "
    "float scale_value, int key_quant_mode, int value_quant_mode, *, Tensor? key_dequant_scale=None, "
    "Tensor? value_dequant_scale=None, Tensor? block_table=None, Tensor? actual_seq_lengths_query=None, "
    'Tensor? actual_seq_lengths_kv=None, int sparse_block_size=1, str layout_query="BSND", '
    f'str layout_kv="BSND", int sparse_mode=3, int pre_tokens={_ALL}, int next_tokens={_ALL}, int attention_mode=0, '
    "int quant_scale_repo_mode=1, int tile_size=128, int rope_head_dim=64, int? key_dtype=None, "
    "int? value_dtype=None, Tensor? sinks=None) -> Tensor"
)
def kv_quant_sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    key_quant_mode: int,
    value_quant_mode: int,
    *,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_kv: Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    attention_mode: int = 0,
    tile_size: int = 128,
    rope_head_dim: int = 64,
    sinks: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """npu_sparse_flash_attention of quantized keys, of which the values are a part.

    query [.., N, D + rope_head_dim]. The bytes of a key (int8 or float8_e4m3fn) are D elements, rope_head_dim of the
    query's dtype, and a float32 scale for each tile_size elements. value is the same cache and is not read. Both quant
    modes and attention_mode must be 2.
    """
    name = "npu_kv_quant_sparse_flash_attention"
    refuse_options(name, options)
    if (key_quant_mode, value_quant_mode) != (2, 2):
        raise NotImplementedError(f"{name}: quant modes must be 2 (tiles), got {[key_quant_mode, value_quant_mode]}")
    if key.dtype not in (torch.int8, torch.float8_e4m3fn) or value.dtype != key.dtype:
        raise TypeError(f"{name}: expected key and value in int8 or float8_e4m3fn, got {[key.dtype, value.dtype]}")
    width = query.shape[-1] - rope_head_dim
    tiles, rest = divmod(width, tile_size)
    size = width + rope_head_dim * query.element_size() + 4 * tiles
    if width < 1 or rest or key.shape[-1] != size:
        refuse(name, f"query of tiles of {tile_size} and {rope_head_dim} more, key of {size} bytes", list(key.shape))
    bytes_ = key.view(torch.int8)
    numbers = bytes_[..., :width].contiguous().view(key.dtype)
    rope = bytes_[..., width : size - 4 * tiles].contiguous().view(query.dtype)
    scales = bytes_[..., size - 4 * tiles :].contiguous().view(torch.float32)
    wide = (numbers.float().unflatten(-1, (tiles, tile_size)) * scales.unsqueeze(-1)).flatten(-2)
    out, _, _ = sparse_flash_attention(
        query[..., :width], wide, wide, sparse_indices, scale_value, block_table=block_table,
        actual_seq_lengths_query=actual_seq_lengths_query, actual_seq_lengths_kv=actual_seq_lengths_kv,
        query_rope=query[..., width:], key_rope=rope.float(), sparse_block_size=sparse_block_size,
        layout_query=layout_query, layout_kv=layout_kv, sparse_mode=sparse_mode, attention_mode=attention_mode,
        sinks=sinks,
    )  # fmt: skip
    return out.to(query.dtype)
