"""``torch_npu._npu_paged_attention_quant``: attention of int8 queries over int8 keys and values in pages."""

from __future__ import annotations

import torch
from torch import Tensor

_library = torch.library.Library("npu", "FRAGMENT")
_library.define(
    "_npu_paged_attention_quant(Tensor query, Tensor key_cache, Tensor value_cache, int num_kv_heads, int num_heads, "
    "float scale_value, Tensor block_table, Tensor context_lens, int quant_type, int outdata_type, Tensor k_descale, "
    "Tensor v_descale, Tensor(a!) out) -> ()"
)

_ALL_IN_INT8 = 3  # a quant_type
_DTYPES = {1: torch.float16, 27: torch.bfloat16}  # CANN's numbers
_LARGEST = 127


def _check(
    query: Tensor, caches: tuple[Tensor, Tensor], scales: tuple[Tensor, Tensor], quant_type: int, outdata_type: int,
    heads: tuple[int, int], out: Tensor,
) -> None:  # fmt: skip
    name, (count, key_count) = "_npu_paged_attention_quant", heads
    if quant_type != _ALL_IN_INT8:
        raise NotImplementedError(f"{name}: quant_type must be 3 (query, keys and values in int8), got {quant_type}")
    dtypes = [t.dtype for t in (query, *caches)]
    if dtypes != [torch.int8] * 3 or out.dtype is not _DTYPES.get(outdata_type):
        raise TypeError(
            f"{name}: expected int8 query and caches, and out in float16 (outdata_type 1) or bfloat16 (27); got "
            f"{dtypes}, {out.dtype} and outdata_type {outdata_type}"
        )
    shapes = [list(t.shape) for t in (query, *caches, *scales)]
    fits = (
        query.dim() == 3 and query.shape[1] == count and all(c.dim() == 4 and c.shape[2] == key_count for c in caches)
    )
    if not fits or any(s.shape != (count,) for s in scales) or count % key_count:
        raise ValueError(
            f"{name}: expected query [sequences, {count}, size], caches [blocks, block size, {key_count}, size], and "
            f"k_descale and v_descale [{count}], got {shapes}"
        )


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, num_kv_heads: int, num_heads: int, scale_value: float,
    block_table: Tensor, context_lens: Tensor, quant_type: int, outdata_type: int, k_descale: Tensor, v_descale: Tensor,
    out: Tensor,
) -> None:  # fmt: skip
    """Attention of the newest token of each sequence; shares of the softmax are rounded to int8 as well.

    Args:
        query: int8 [sequences, num_heads, size].
        key_cache, value_cache: int8 [blocks, block size, num_kv_heads, size].
        block_table: int32 [sequences, blocks of the longest].
        context_lens: how many keys of each sequence count; on the CPU, as the host needs the numbers.
        quant_type: 3, all in int8.
        outdata_type: CANN's number of out's dtype, 1 (float16) or 27 (bfloat16).
        k_descale: float32 [num_heads], times the products of queries and keys.
        v_descale: float32 [num_heads], times the products of the shares, of which the largest is 127 / 127, and values.
        out: [sequences, num_heads, size], is written.
    """
    caches, scales = (key_cache, value_cache), (k_descale, v_descale)
    _check(query, caches, scales, quant_type, outdata_type, (num_heads, num_kv_heads), out)
    groups = query.float().unflatten(1, (num_kv_heads, -1))
    of_keys, of_values = (s.float().view(num_kv_heads, -1, 1) for s in scales)
    for number, length in enumerate(context_lens.tolist()):
        blocks = block_table[number, : -(-length // key_cache.shape[1])]
        keys, values = (c.index_select(0, blocks).flatten(0, 1)[:length].transpose(0, 1).float() for c in caches)
        if length == 0:
            out[number] = 0
            continue
        scores = groups[number] @ keys.mT * of_keys * scale_value
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        products = (weights * _LARGEST).round() @ values
        attended = products * of_values / _LARGEST / weights.sum(-1, keepdim=True)
        out[number] = attended.flatten(0, 1).to(out.dtype)


_library.impl("_npu_paged_attention_quant", paged_attention, "PrivateUse1")
_library.impl("_npu_paged_attention_quant", lambda *_: None, "Meta")
