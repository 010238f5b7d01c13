"""Caches of keys and values: reading of pages, and forms that return new caches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse

_GATHER = "Tensor key_cache, Tensor value_cache, Tensor block_tables, Tensor seq_lens"
_PLACES = "*, Tensor? seq_offset=None, bool is_seq_lens_cumsum=False"


def _gathered(cache: Tensor, target: Tensor, block: Tensor, place: Tensor, there: Tensor, covered: Tensor) -> Tensor:
    """``target`` with the rows of the cache, zeros where there is no block, unchanged where no sequence is."""
    usable = there & (block >= 0) & (block < cache.shape[0])
    rows = cache[block.clamp(0, max(0, cache.shape[0] - 1)), place]
    shape = (-1,) + (1,) * (target.dim() - 1)
    rows = torch.where(usable.view(shape), rows, rows.new_zeros(()))
    return torch.where(covered.view(shape), rows, target)


def _read(
    operator: str,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    key: Tensor,
    value: Tensor,
    seq_offset: Tensor | None,
    is_seq_lens_cumsum: bool,
) -> tuple[Tensor, Tensor]:
    pairs = ((key_cache, key), (value_cache, value))
    shapes = [(list(cache.shape), list(rows.shape)) for cache, rows in pairs]
    if (
        any(c.dim() != 4 or r.dim() != 3 or c.shape[2:] != r.shape[1:] for c, r in pairs)
        or key.shape[0] != value.shape[0]
    ):
        refuse(operator, "caches [blocks, block size, heads, size], key and value [tokens, heads, size]", shapes)
    batch = block_tables.shape[0]
    if block_tables.dim() != 2 or seq_lens.shape != (batch + is_seq_lens_cumsum,):
        expected = f"block_tables [B, blocks] and seq_lens [{'B + 1' if is_seq_lens_cumsum else 'B'}]"
        refuse(operator, expected, [list(block_tables.shape), list(seq_lens.shape)])
    if seq_offset is not None and seq_offset.shape != (batch,):
        refuse(operator, "seq_offset [B]", list(seq_offset.shape))
    lengths = seq_lens.long()
    starts = lengths[:-1] - lengths[:1] if is_seq_lens_cumsum else lengths.cumsum(0) - lengths
    ends = lengths[1:] - lengths[:1] if is_seq_lens_cumsum else lengths.cumsum(0)
    size = key_cache.shape[1]
    token = torch.arange(key.shape[0], device=key.device)
    sequence = torch.searchsorted(ends, token, right=True)
    covered = sequence < batch
    sequence = sequence.clamp_max(max(0, batch - 1))
    within = token - starts[sequence]
    column = within // size
    if seq_offset is not None:
        column = column + seq_offset.long()[sequence] // size
    there = column < block_tables.shape[1]
    block = block_tables.long()[sequence, column.clamp(0, max(0, block_tables.shape[1] - 1))]
    new_key, new_value = (_gathered(c, r, block, within % size, there, covered) for c, r in pairs)
    return new_key, new_value


@composed(f"npu_gather_pa_kv_cache({_GATHER}, Tensor(a!) key, Tensor(b!) value, {_PLACES}) -> ()")
def gather_pa_kv_cache(
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    seq_offset: Tensor | None = None,
    is_seq_lens_cumsum: bool = False,
) -> None:
    """Writes the tokens of paged caches [blocks, block size, heads, size] to key and value, one sequence after another.

    block_tables [B, blocks] names the blocks of each sequence; a number that is none gives zeros. seq_lens: how many
    tokens each has, or [B + 1], where each starts. seq_offset [B]: the token at whose block each begins.
    """
    given = (key_cache, value_cache, block_tables, seq_lens, key, value, seq_offset, is_seq_lens_cumsum)
    new_key, new_value = _read("npu_gather_pa_kv_cache", *given)
    key.copy_(new_key)
    value.copy_(new_value)


@composed(f"npu_gather_pa_kv_cache_functional({_GATHER}, Tensor key, Tensor value, {_PLACES}) -> (Tensor, Tensor)")
def gather_pa_kv_cache_functional(
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    seq_offset: Tensor | None = None,
    is_seq_lens_cumsum: bool = False,
) -> tuple[Tensor, Tensor]:
    """npu_gather_pa_kv_cache that returns what it would write."""
    given = (key_cache, value_cache, block_tables, seq_lens, key, value, seq_offset, is_seq_lens_cumsum)
    return _read("npu_gather_pa_kv_cache_functional", *given)


@composed(
    "npu_scatter_pa_kv_cache_functional(Tensor key, Tensor value, Tensor key_cache, Tensor value_cache, "
    "Tensor slot_mapping, *, Tensor? compress_lens=None, Tensor? compress_seq_offsets=None, Tensor? seq_lens=None, "
    "str? cache_mode='PA_NZ') -> (Tensor, Tensor)"
)
def scatter_pa_kv_cache_functional(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offsets: Tensor | None = None,
    seq_lens: Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> tuple[Tensor, Tensor]:
    """npu_scatter_pa_kv_cache that returns new caches."""
    new_key, new_value = key_cache.clone(), value_cache.clone()
    torch.ops.npu.npu_scatter_pa_kv_cache(
        key, value, new_key, new_value, slot_mapping, compress_lens=compress_lens,
        compress_seq_offsets=compress_seq_offsets, seq_lens=seq_lens, cache_mode=cache_mode,
    )  # fmt: skip
    return new_key, new_value


@composed(
    "npu_scatter_pa_cache.value(Tensor key, Tensor slot_mapping, *, Tensor? compress_lens=None, "
    "Tensor? compress_seq_offsets=None, Tensor? seq_lens=None, Tensor(a!) key_cache) -> Tensor(a!)"
)
def scatter_pa_cache(
    key: Tensor,
    slot_mapping: Tensor,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offsets: Tensor | None = None,
    seq_lens: Tensor | None = None,
    key_cache: Tensor,
) -> Tensor:
    """Writes keys [T, heads, size] to their slots of a cache [blocks, block size, heads, size]; -1 is padding.

    It is npu_scatter_pa_kv_cache with the keys for values, too.
    """
    torch.ops.npu.npu_scatter_pa_kv_cache(
        key, key, key_cache, key_cache, slot_mapping, compress_lens=compress_lens,
        compress_seq_offsets=compress_seq_offsets, seq_lens=seq_lens, cache_mode="Norm",
    )  # fmt: skip
    return key_cache


@composed(
    "npu_kv_rmsnorm_rope_cache_v2_functional(Tensor kv, Tensor gamma, Tensor cos, Tensor sin, Tensor index, "
    "Tensor k_cache, Tensor ckv_cache, *, Tensor? k_rope_scale=None, Tensor? c_kv_scale=None, "
    "Tensor? k_rope_offset=None, Tensor? c_kv_offset=None, Tensor? v=None, float epsilon=1e-5, "
    "str cache_mode='Norm', bool is_output_kv=False, int? k_cache_dtype=None, int? ckv_cache_dtype=None) -> "
    "(Tensor, Tensor, Tensor, Tensor)"
)
def kv_rmsnorm_rope_cache_v2_functional(
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    k_cache: Tensor,
    ckv_cache: Tensor,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """npu_kv_rmsnorm_rope_cache_v2 with new caches: its results, then the caches."""
    caches = k_cache.clone(), ckv_cache.clone()
    results = torch.ops.npu.npu_kv_rmsnorm_rope_cache_v2(kv, gamma, cos, sin, index, *caches, **options)
    return *results, *caches
