"""Queries, keys and values that are split, normed, rotated and, the latter two, written to caches in int8."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse, refuse_options

_SPLIT = (
    "Tensor x, Tensor cos, Tensor sin, Tensor k_cache, Tensor v_cache, Tensor indices, Tensor scale_k, "
    "Tensor scale_v, int[3] size_splits, *, Tensor? offset_k=None, Tensor? offset_v=None"
)
_OPTIONS = 'int quant_mode=0, str input_layout="BSND", bool kv_output=False, str cache_mode="contiguous"'


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Halves are rotated: of x [.., N, D] by cos and sin [.., 1, D]."""
    first, second = x.chunk(2, -1)
    return x * cos.float() + torch.cat((-second, first), -1) * sin.float()


def _int8(x: Tensor) -> Tensor:
    return x.round().clamp(-128, 127).to(torch.int8)


def _write(operator: str, cache: Tensor, rows: Tensor, indices: Tensor, mode: str) -> None:
    """int8 rows [B, S, N, D] to a cache [B, S2, N, D] from indices [B] on, or to indices [B * S] of pages."""
    if cache.shape[-2:] != rows.shape[-2:]:
        refuse(operator, f"caches [.., {rows.shape[2]}, {rows.shape[3]}]", list(cache.shape))
    if mode == "page":
        cache.view(-1, *cache.shape[2:])[indices.long()] = rows.flatten(0, 1)
        return
    batch = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1)
    cache[batch, indices.long().unsqueeze(1) + torch.arange(rows.shape[1], device=rows.device)] = rows


def _split_and_cached(
    operator: str,
    x: Tensor,
    dtype: torch.dtype,
    cos: Tensor,
    sin: Tensor,
    caches: tuple[Tensor, Tensor],
    indices: Tensor,
    scales: tuple[Tensor, Tensor],
    offsets: tuple[Tensor | None, Tensor | None],
    size_splits: list[int],
    options: dict[str, Any],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    mode, kv_output = options.pop("cache_mode", "contiguous"), options.pop("kv_output", False)
    refuse_options(operator, options)
    width, token_rows = caches[0].shape[-1], x.dim() == 2
    if mode not in ("contiguous", "page") or sum(size_splits) != x.shape[-1] or any(s % width for s in size_splits):
        refuse(operator, "cache_mode contiguous or page, size_splits of heads that make up x", [mode, size_splits])
    x, cos, sin = (t.unsqueeze(1) if token_rows else t for t in (x, cos, sin))  # one token of each sequence
    q, k, v = (part.float().unflatten(-1, (-1, width)) for part in x.split(size_splits, -1))
    q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
    for cache, rows, scale, offset in zip(caches, (k, v), scales, offsets, strict=True):
        wide = rows * scale.float()
        _write(operator, cache, _int8(wide if offset is None else wide + offset.float()), indices, mode)
    q, k, v = (t.squeeze(1).to(dtype) if token_rows else t.to(dtype) for t in (q, k, v))
    if not kv_output:
        k, v = q.new_empty(0), q.new_empty(0)
    return q, k, v, *caches


@composed(f"npu_rope_quant_kvcache({_SPLIT}, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
def rope_quant_kvcache(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    indices: Tensor,
    scale_k: Tensor,
    scale_v: Tensor,
    size_splits: list[int],
    *,
    offset_k: Tensor | None = None,
    offset_v: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Queries and keys of x [B, S, H] (or [B, H]) are rotated by halves; keys and values go to int8 caches.

    x is split by size_splits into heads as wide as those of the caches; cos and sin are [B, S, 1, D]. Caches hold
    round(rows * scale + offset), scales [D]: k_cache[b] from indices[b] on (contiguous), or at indices of all pages'
    tokens (page). Results: queries; with kv_output keys and values, else nothing; the caches, which are written to.
    """
    return _split_and_cached(
        "npu_rope_quant_kvcache", x, x.dtype, cos, sin, (k_cache, v_cache), indices, (scale_k, scale_v),
        (offset_k, offset_v), size_splits, options,
    )  # fmt: skip


@composed(
    f"npu_dequant_rope_quant_kvcache({_SPLIT}, Tensor? weight_scale=None, Tensor? activation_scale=None, "
    f"Tensor? bias=None, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def dequant_rope_quant_kvcache(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    indices: Tensor,
    scale_k: Tensor,
    scale_v: Tensor,
    size_splits: list[int],
    *,
    offset_k: Tensor | None = None,
    offset_v: Tensor | None = None,
    weight_scale: Tensor | None = None,
    activation_scale: Tensor | None = None,
    bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """npu_rope_quant_kvcache of int32 sums x * weight_scale [H] * activation_scale [B * S], in the dtype of cos.

    An int32 bias [H] is added to x, a floating one to the result.
    """
    name = "npu_dequant_rope_quant_kvcache"
    if x.dtype != torch.int32 or weight_scale is None:
        refuse(name, "x in int32 with weight_scale", x.dtype)
    wide = (x + bias if bias is not None and bias.dtype == torch.int32 else x).float() * weight_scale.float()
    if activation_scale is not None:
        wide = wide * activation_scale.float().view(*x.shape[:-1], 1)
    if bias is not None and bias.dtype != torch.int32:
        wide = wide + bias.float()
    return _split_and_cached(
        name, wide, cos.dtype, cos, sin, (k_cache, v_cache), indices, (scale_k, scale_v), (offset_k, offset_v),
        size_splits, options,
    )  # fmt: skip


_QKV = "Tensor qkv, Tensor q_gamma, Tensor k_gamma, Tensor cos, Tensor sin, Tensor index"
_SIZES = (
    "int[4] qkv_size, int[3] head_nums, *, Tensor? k_scale=None, Tensor? v_scale=None, Tensor? k_offset=None, "
    "Tensor? v_offset=None, float epsilon=1e-6, str cache_mode='PA_NZ', bool is_output_qkv=False"
)


def _pack(operator: str, cache: Tensor, rows: Tensor, index: Tensor) -> None:
    """Rows [T, N, D] to the slots of a packed cache [blocks, N * D / c, size, c]; none for a negative index."""
    lines, size, lanes = cache.shape[1:]
    if lines * lanes != rows.shape[1] * rows.shape[2] or index.shape != rows.shape[:1]:
        refuse(operator, f"caches [blocks, {rows.shape[1] * rows.shape[2]} / c, size, c]", list(cache.shape))
    # A row that goes nowhere goes where another one does, with the same content.
    real = index >= 0
    source = torch.arange(index.shape[0], device=index.device).where(real, real.int().argmax())
    slot = index.long()[source].clamp_min(0)
    packed = rows.reshape(-1, lines, lanes).to(cache.dtype)[source]
    before = cache[slot // size, :, slot % size]
    cache[slot // size, :, slot % size] = packed.where(real.any(), before)


@composed(
    f"npu_qkv_rms_norm_rope_cache({_QKV}, Tensor(a!) q_out, Tensor(b!) k_cache, Tensor(c!) v_cache, {_SIZES}) -> "
    "(Tensor, Tensor, Tensor)"
)
def qkv_rms_norm_rope_cache(
    qkv: Tensor,
    q_gamma: Tensor,
    k_gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    q_out: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    qkv_size: list[int],
    head_nums: list[int],
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    k_offset: Tensor | None = None,
    v_offset: Tensor | None = None,
    epsilon: float = 1e-6,
    is_output_qkv: bool = False,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Heads of qkv [B * S, N * D]: queries and keys are normed (RMS, times gamma) and rotated by halves.

    qkv_size [B, S, N, D], head_nums those of queries, keys and values; cos and sin [B * S, D], or [B, D] for all
    tokens. Queries are written to q_out [B * S, Nq * D], keys and values to packed caches [blocks, N * D / 32, size,
    32] at index [B * S] (-1: nowhere), as round(rows / scale + offset) with scales [N, D]. Results: with is_output_qkv
    queries, keys and values before that, else numbers without meaning.
    """
    name = "npu_qkv_rms_norm_rope_cache"
    refuse_options(name, options)
    batch, length, heads, width = qkv_size
    rows = batch * length
    if qkv.shape != (rows, heads * width) or sum(head_nums) != heads or cos.shape[-1] != width or not rows:
        refuse(name, f"qkv {[rows, heads * width]} and cos [.., {width}]", [list(qkv.shape), list(cos.shape)])
    q, k, v = qkv.float().unflatten(1, (heads, width)).split(list(head_nums), 1)
    cos, sin = (t.view(batch, -1, 1, width).expand(-1, length, -1, -1).flatten(0, 1) for t in (cos, sin))

    def normed(x: Tensor, gamma: Tensor) -> Tensor:
        return x * x.square().mean(-1, keepdim=True).add(epsilon).rsqrt() * gamma.float()

    q, k = _rotated(normed(q, q_gamma), cos, sin), _rotated(normed(k, k_gamma), cos, sin)
    q_out.copy_(q.flatten(1))
    for cache, made, scale, offset in ((k_cache, k, k_scale, k_offset), (v_cache, v, v_scale, v_offset)):
        if (cache.dtype == torch.int8) != (scale is not None):
            refuse(name, "scales for caches in int8 only", cache.dtype)
        wide = made if scale is None else made / scale.float()
        wide = wide if offset is None else wide + offset.float()
        _pack(name, cache, wide if scale is None else _int8(wide), index)
    if not is_output_qkv:
        return qkv.new_zeros(()), qkv.new_zeros(()), qkv.new_zeros(())
    q, k, v = (t.flatten(1).to(qkv.dtype) for t in (q, k, v))
    return q, k, v


@composed(
    f"npu_qkv_rms_norm_rope_cache_functional({_QKV}, Tensor q_out, Tensor k_cache, Tensor v_cache, {_SIZES}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def qkv_rms_norm_rope_cache_functional(
    qkv: Tensor,
    q_gamma: Tensor,
    k_gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    q_out: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    qkv_size: list[int],
    head_nums: list[int],
    **options: Any,
) -> tuple[Tensor, ...]:
    """npu_qkv_rms_norm_rope_cache with new outputs: its results, then q_out, k_cache and v_cache."""
    made = q_out.clone(), k_cache.clone(), v_cache.clone()
    results = torch.ops.npu.npu_qkv_rms_norm_rope_cache(
        qkv, q_gamma, k_gamma, cos, sin, index, *made, qkv_size, head_nums, **options
    )
    return *results, *made
