"""Attention and cache of paged keys and values, under the names of Ascend's transformer library (ATB).

That library is no part of CANN's operators; here its operators are calls of CANN's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_library = torch.library.Library("npu", "FRAGMENT")

_ARGUMENTS = (
    "Tensor query, Tensor key_cache, Tensor value_cache, int num_kv_heads, int num_heads, float scale_value, "
    "Tensor block_table, Tensor context_lens, Tensor(a!) out"
)
_library.define(f"_npu_paged_attention({_ARGUMENTS}, *, Tensor? workspace=None) -> ()")
_library.define(f"_npu_paged_attention_get_workspace({_ARGUMENTS}) -> Tensor")
_library.define(
    "_npu_reshape_and_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor slot_indices) -> ()"
)


def _call(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: Tensor,
    context_lens: Tensor,
) -> tuple[tuple[Tensor, ...], dict[str, object]]:
    """Arguments of ``npu_fused_infer_attention_score`` for one query a sequence."""
    if query.dim() != 3 or key_cache.dim() != 4 or value_cache.dim() != 4:
        raise ValueError(
            "_npu_paged_attention: expected query [sequences, heads, size] and caches [blocks, block size, heads, "
            f"size], got {list(query.shape)}, {list(key_cache.shape)} and {list(value_cache.shape)}"
        )
    return (query.unsqueeze(1), key_cache.flatten(2), value_cache.flatten(2)), {
        "actual_seq_lengths_kv": context_lens.tolist(),
        "block_table": block_table,
        "block_size": key_cache.shape[1],
        "num_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "scale": scale_value,
        "input_layout": "BSND",
    }


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: Tensor,
    context_lens: Tensor,
    out: Tensor,
    *,
    workspace: Tensor | None = None,
) -> None:
    """``torch_npu._npu_paged_attention``: attention of the newest token of each sequence over its cached keys.

    Args:
        query: [sequences, num_heads, size], float16 or bfloat16.
        key_cache, value_cache: [blocks, block size, num_kv_heads, size]; the sizes of keys and values may differ.
        block_table: int32 [sequences, blocks of the longest]: where each sequence's keys are.
        context_lens: how many keys of each sequence count; on the CPU, as the host needs the numbers.
        out: [sequences, num_heads, size of values], is written.
        workspace: from ``_npu_paged_attention_get_workspace``, for captured graphs that are updated.
    """
    tensors, options = _call(
        query, key_cache, value_cache, num_kv_heads, num_heads, scale_value, block_table, context_lens
    )
    statistics = torch.empty(1, dtype=torch.float32, device=query.device)  # not asked for, and not written
    torch.ops.npu.npu_fused_infer_attention_score.out(
        *tensors, **options, workspace=workspace, out=[out.unsqueeze(1), statistics]
    )


def _workspace(*arguments: Any) -> Tensor:
    """Takes what :func:`paged_attention` takes, but for its workspace."""
    *inputs, _out = arguments
    tensors, options = _call(*inputs)
    return torch.ops.npu._npu_fused_infer_attention_score_get_max_workspace(*tensors, **options)


def reshape_and_cache(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_indices: Tensor) -> None:
    """``torch_npu._npu_reshape_and_cache``: writes keys and values of new tokens into the cache.

    Args:
        key, value: [tokens, num_kv_heads, size].
        key_cache, value_cache: [blocks, block size, num_kv_heads, size], are written. Of other shapes, as caches in
            memory format FRACTAL_NZ have, they are [blocks, num_kv_heads * size / last, block size, last]: last (16; 32
            for int8) neighbouring elements of a token lie beside each other.
        slot_indices: int32 or int64 [tokens]: block number times block size plus place in the block; -1 is padding.
    """
    # The format itself is not seen here: what is packed comes as a plain copy, which is packed again afterwards.
    in_units = [cache.shape[2:] != rows.shape[1:] for rows, cache in ((key, key_cache), (value, value_cache))]
    if in_units[0] != in_units[1]:
        shapes = [list(t.shape) for t in (key, value, key_cache, value_cache)]
        raise ValueError(f"_npu_reshape_and_cache: expected caches in one layout, got {shapes}")
    torch.ops.npu.npu_scatter_pa_kv_cache(
        key, value, key_cache, value_cache, slot_indices, cache_mode="PA_NZ" if in_units[0] else "Norm"
    )


def paged_attention_of_latent(
    query: Tensor, key_cache: Tensor, num_kv_heads: int, num_heads: int, scale_value: float, block_table: Tensor,
    context_lens: Tensor, mla_vheadsize: int, out: Tensor,
) -> None:  # fmt: skip
    """``torch_npu._npu_paged_attention_mla``: the first mla_vheadsize numbers of each key are its value."""
    value_cache = key_cache[..., :mla_vheadsize]
    paged_attention(query, key_cache, value_cache, num_kv_heads, num_heads, scale_value, block_table, context_lens, out)


def paged_attention_of_several(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, context_lens: Tensor, mask: Tensor,
    seq_len: Tensor, num_kv_heads: int, num_heads: int, scale_value: float, out: Tensor,
) -> None:  # fmt: skip
    """``torch_npu._npu_paged_attention_splitfuse``: several queries of each sequence over its cached keys.

    Args:
        query, out: [tokens, num_heads, size], all sequences in turn; out is written.
        key_cache, value_cache: [blocks, block size, num_kv_heads, size].
        block_table: int32 [sequences, blocks of the longest].
        context_lens, seq_len: keys and queries of each sequence; on the CPU, as the host needs the numbers.
        mask: [tokens, keys of the longest], is added to the scores.
    """
    queries, keys = seq_len.tolist(), context_lens.tolist()
    shapes = [list(t.shape) for t in (query, mask, block_table)]
    longest = max(keys, default=0)
    if len(queries) != len(keys) or len(block_table) != len(keys) or mask.dim() != 2 or mask.shape[1] < longest:
        raise ValueError(
            f"_npu_paged_attention_splitfuse: expected mask [tokens, {longest} keys at least] and as many rows of "
            f"block_table and context_lens as of seq_len, got {shapes}, {len(keys)} and {len(queries)}"
        )
    if not sum(queries) <= len(query) == len(mask):
        raise ValueError(
            f"_npu_paged_attention_splitfuse: expected a query and a row of mask for each of {sum(queries)} tokens, "
            f"got {shapes[:2]}"
        )
    first = 0
    for row, (count, length) in enumerate(zip(queries, keys, strict=True)):
        some = slice(first, first + count)
        blocks = block_table[row, : -(-length // key_cache.shape[1])]
        k, v = (
            cache.index_select(0, blocks).flatten(0, 1)[:length].transpose(0, 1)[None]
            for cache in (key_cache, value_cache)
        )
        attended = F.scaled_dot_product_attention(
            query[some].transpose(0, 1)[None], k, v, mask[some, :length].to(query.dtype), scale=scale_value,
            enable_gqa=num_heads != num_kv_heads,
        )  # fmt: skip
        out[some] = attended[0].transpose(0, 1)
        first += count


_library.define(
    "_npu_paged_attention_mla(Tensor query, Tensor key_cache, int num_kv_heads, int num_heads, float scale_value, "
    "Tensor block_table, Tensor context_lens, int mla_vheadsize, Tensor(a!) out) -> ()"
)
_library.define(
    "_npu_paged_attention_splitfuse(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, "
    "Tensor context_lens, Tensor mask, Tensor seq_len, int num_kv_heads, int num_heads, float scale_value, "
    "Tensor(a!) out) -> ()"
)
_library.impl("_npu_paged_attention_mla", paged_attention_of_latent, "PrivateUse1")
_library.impl("_npu_paged_attention_splitfuse", paged_attention_of_several, "PrivateUse1")
_library.impl("_npu_paged_attention", paged_attention, "PrivateUse1")
_library.impl("_npu_paged_attention_get_workspace", _workspace, "PrivateUse1")
_library.impl("_npu_reshape_and_cache", reshape_and_cache, "PrivateUse1")
for _name in (
    "_npu_paged_attention",
    "_npu_paged_attention_mla",
    "_npu_paged_attention_splitfuse",
    "_npu_reshape_and_cache",
):
    _library.impl(_name, lambda *_, **__: None, "Meta")
