"""Attention of ``torch.ops.atb`` whose scores get a bias: whole prompts, and prompts behind what is cached.

Computed in float32, one sequence after another.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_npu.npu.transformer_library import heads_of

_library = torch.library.Library("atb", "FRAGMENT")

_ADDED, _PER_HEAD, _CAUSAL, _DISTANCES, _ROOTS = 1, 2, 3, 4, 5  # what mask_type says


def _bias(
    operator: str, mask_type: int, slopes: Tensor | None, heads: int, queries: int, keys: int, device: torch.device
) -> Tensor:
    """[heads, queries, keys]: minus infinity for later keys, a slope times the distance (or its root) for others."""
    place = torch.arange(keys, device=device)
    distance = (place[keys - queries :, None] - place).float()
    later = distance < 0
    if mask_type == _CAUSAL:
        return torch.zeros_like(distance).masked_fill(later, -torch.inf).expand(heads, -1, -1)
    if mask_type not in (_DISTANCES, _ROOTS):
        raise NotImplementedError(f"{operator}: mask_type {mask_type} is not supported")
    if slopes is None or slopes.shape != (heads,):
        seen = None if slopes is None else list(slopes.shape)
        raise ValueError(f"{operator}: mask_type {mask_type} needs slopes [{heads}], got {seen}")
    far = distance.clamp_min(0).sqrt() if mask_type == _ROOTS else distance
    return (slopes.float().view(-1, 1, 1) * far).masked_fill(later, -torch.inf)


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
    """[T, heads, size] of q [T, heads, size], k and v [L, key heads, size], bias [heads or 1, T, L]."""
    grouped, added = q.shape[1] != k.shape[1], bias.float().expand(q.shape[1], -1, -1)[None]
    q, k, v = (t.float().transpose(0, 1)[None] for t in (q, k, v))
    attended = F.scaled_dot_product_attention(q, k, v, added, scale=scale, enable_gqa=grouped)
    return attended[0].transpose(0, 1)


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, seq_len: list[int], *, mask: Tensor | None = None,
    slopes: Tensor | None = None, kernel_type: int = 0, mask_type: int = 2, scale_value: float = 1, num_heads: int = 0,
    num_kv_heads: int = 0, out: Tensor,
) -> Tensor:  # fmt: skip
    """``torch_npu.atb._npu_flash_attention_v2``: attention of sequences to themselves.

    Args:
        query, key, value: [tokens, heads, size] or [tokens, heads * size], all sequences in turn.
        seq_len: tokens of each.
        mask_type: 1: mask [longest, longest] or [sequences or 1, longest, longest] is added to the scores; 2: mask
            [num_heads, longest, longest] or [sequences, num_heads, longest, longest] is; 4, 5: slopes [num_heads] times
            the distance (its root) to earlier keys is, and later ones are not seen. Then mask is not read.
        kernel_type: a precision on Ascend hardware, makes no difference.
        out: is written.
    """
    name = "_npu_flash_attention_v2"
    q, k, v = (heads_of(name, t, n) for t, n in ((query, num_heads), (key, num_kv_heads), (value, num_kv_heads)))
    if sum(seq_len) > min(len(q), len(k), len(v)):
        raise ValueError(f"{name}: expected {sum(seq_len)} tokens at least, got {[len(t) for t in (q, k, v)]}")
    result, first = heads_of(name, out, num_heads), 0
    for number, length in enumerate(seq_len):
        some = slice(first, first + length)
        if mask_type in (_ADDED, _PER_HEAD):
            if mask is None:
                raise ValueError(f"{name}: mask_type {mask_type} needs a mask")
            of_sequences = mask.dim() == (3 if mask_type == _ADDED else 4)
            added = (mask[number if len(mask) > 1 else 0] if of_sequences else mask)[..., :length, :length]
        else:
            added = _bias(name, mask_type, slopes, num_heads, length, length, q.device)
        result[some] = _attend(q[some], k[some], v[some], added, scale_value).to(out.dtype)
        first += length
    return out


def flash_attention_behind_pages(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, mask: Tensor, seq_len: list[int],
    context_lens: list[int], *, slopes: Tensor | None = None, kernel_type: int = 1, mask_type: int = 3,
    num_kv_heads: int = 0, num_heads: int = 0, scale_value: float = 1, out: Tensor,
) -> Tensor:  # fmt: skip
    """``torch_npu.atb._npu_flash_attention_prefix_v2``: the last tokens of sequences, whose keys are all in pages.

    Args:
        query, out: [tokens, num_heads, size] or flat, all sequences in turn; out is written.
        key_cache, value_cache: [blocks, block size, num_kv_heads * size] or with heads.
        block_table: int32 [sequences, blocks of the longest].
        seq_len, context_lens: how many queries and how many keys each sequence has.
        mask_type: 3: causal; 4, 5: as in :func:`flash_attention`. mask is not read.
    """
    name = "_npu_flash_attention_prefix_v2"
    q, result, first = heads_of(name, query, num_heads), heads_of(name, out, num_heads), 0
    if not len(seq_len) == len(context_lens) == len(block_table) or sum(seq_len) > len(q):
        seen = [len(seq_len), len(context_lens), len(block_table), len(q)]
        raise ValueError(
            f"{name}: expected as many seq_len, context_lens and rows of block_table, and a query for each token; got "
            f"{seen[:3]} and {seen[3]} queries for {sum(seq_len)}"
        )
    for number, (queries, keys) in enumerate(zip(seq_len, context_lens, strict=True)):
        some = slice(first, first + queries)
        blocks = block_table[number, : -(-keys // key_cache.shape[1])]
        k, v = (heads_of(name, c[blocks].flatten(0, 1)[:keys], num_kv_heads) for c in (key_cache, value_cache))
        added = _bias(name, mask_type, slopes, num_heads, queries, keys, q.device)
        result[some] = _attend(q[some], k, v, added, scale_value).to(out.dtype)
        first += queries
    return out


_TYPES = "int mask_type=2, float scale_value=1, int num_heads=0, int num_kv_heads=0"
_OPERATORS = {
    "_npu_flash_attention_v2.out(Tensor query, Tensor key, Tensor value, SymInt[] seq_len, *, Tensor? mask=None, "
    f"Tensor? slopes=None, int kernel_type=0, {_TYPES}, Tensor(a!) out) -> Tensor(a!)": flash_attention,
    "_npu_flash_attention_prefix_v2.out(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, "
    "Tensor mask, SymInt[] seq_len, SymInt[] context_lens, *, Tensor? slopes=None, int kernel_type=1, "
    "int mask_type=3, int num_kv_heads=0, int num_heads=0, float scale_value=1, Tensor(a!) out) -> "
    "Tensor(a!)": flash_attention_behind_pages,
}
for _schema, _function in _OPERATORS.items():
    _library.define(_schema)
    _name = _schema.partition("(")[0]
    _library.impl(_name, _function, "PrivateUse1")
    _library.impl(_name, lambda *_, out, **__: out, "Meta")
