"""Attention in 8 bits for training: of float8_e4m3fn, or of hifloat8 in bytes, scaled by blocks of rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torch_npu.composed.block_quantization import rounded
from torch_npu.composed.registry import composed, refuse
from torch_npu.composed.small_floats import hifloat8, hifloat8_values
from torch_npu.dtypes import NUMBERS

_ROWS = 512  # queries whose scores are kept at a time
_BLOCK = 128  # blocks that share a scale are a multiple of this


def _is_hifloat8(operator: str, kind: int | None, tensors: tuple[Tensor, ...]) -> bool:
    dtypes = {t.dtype for t in tensors}
    if kind == NUMBERS["hifloat8"] and dtypes <= {torch.uint8, torch.int8}:
        return True
    if kind in (None, NUMBERS["float8_e4m3fn"]) and dtypes == {torch.float8_e4m3fn}:
        return False
    raise NotImplementedError(
        f"{operator}: inputs must be float8_e4m3fn, or hifloat8 in uint8 with query_dtype=torch_npu.hifloat8; got "
        f"{sorted(map(str, dtypes))} and query_dtype {kind}"
    )


def _rounding(is_hifloat8: bool) -> Callable[[Tensor], Tensor]:
    """What rounds numbers as the operator keeps them between two products."""
    if is_hifloat8:
        return lambda x: hifloat8_values(hifloat8(x))
    return lambda x: rounded(x, torch.float8_e4m3fn).float()


def _heads(operator: str, x: Tensor, layout: str, heads: int) -> Tensor:
    """[B, N, S, D], a view."""
    if layout == "BNSD" and x.dim() == 4:
        return x
    if layout == "BSND" and x.dim() == 4:
        return x.transpose(1, 2)
    if layout in ("BSH", "SBH") and x.dim() == 3 and x.shape[2] % heads == 0:
        return (x if layout == "BSH" else x.transpose(0, 1)).unflatten(2, (heads, -1)).transpose(1, 2)
    refuse(operator, "layout BNSD, BSND, BSH or SBH", [layout, list(x.shape)])


def _like(x: Tensor, layout: str) -> Tensor:
    """The way back of ``_heads``."""
    if layout == "BNSD":
        return x
    by_token = x.transpose(1, 2)
    if layout != "BSND":
        by_token = by_token.flatten(2) if layout == "BSH" else by_token.flatten(2).transpose(0, 1)
    return by_token.contiguous()


def _decoded(operator: str, name: str, x: Tensor, scale: Tensor, is_hifloat8: bool) -> Tensor:
    """x [B, N, S, D] in float32, times its scale [B, N, blocks, 1].

    Blocks are as long as the least multiple of 128 of which S has as many: of 300 rows 128 where there are three.
    """
    rows, count = x.shape[2], scale.shape[2] if scale.dim() == 4 else 0
    block = -(-rows // (count * _BLOCK)) * _BLOCK if count else 1
    if scale.shape != (*x.shape[:2], -(-rows // block), 1):
        refuse(operator, f"d_scale_{name} [B, N, blocks, 1] of blocks of a multiple of 128 rows", list(scale.shape))
    wide = hifloat8_values(x) if is_hifloat8 else x.float()
    return wide * scale.float().repeat_interleave(block, 2)[:, :, :rows]


def _of_queries(x: Tensor, heads: int) -> Tensor:
    """Keys or values for each head of the queries."""
    return x.repeat_interleave(heads // x.shape[1], 1)


def _check(operator: str, q: Tensor, k: Tensor, v: Tensor, heads: int) -> None:
    fits = q.shape[1] == heads and q.shape[3] == k.shape[3] and k.shape[:3] == v.shape[:3]
    if not fits or q.shape[0] != k.shape[0] or k.shape[1] < 1 or heads % k.shape[1] or k.shape[2] < 1:
        seen = [list(t.shape) for t in (q, k, v)]
        refuse(
            operator, f"query of {heads} heads, and as many keys (at least one) as values, whose heads divide it", seen
        )


def _key_heads(x: Tensor, key: Tensor, layout: str, heads: int) -> int:
    """How many heads keys have, by the width of a head of the queries."""
    return heads if layout in ("BNSD", "BSND") else key.shape[2] // max(1, x.shape[2] // heads)


def _eight(x: Tensor) -> Tensor:
    """Each number eight times, as the units of the hardware keep it."""
    return x.expand(*x.shape[:-1], 8).contiguous()


@composed(
    "npu_quant_fusion_attention(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, *, "
    "Tensor d_scale_q, Tensor d_scale_k, Tensor d_scale_v, Tensor? p_scale=None, float scale=1., "
    "int? query_dtype=None) -> (Tensor, Tensor, Tensor, Tensor, int, int, int)"
)
def quant_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    *,
    d_scale_q: Tensor,
    d_scale_k: Tensor,
    d_scale_v: Tensor,
    p_scale: Tensor | None = None,
    scale: float = 1.0,
    query_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """softmax(scale * query @ keys) @ values in float16, of float8_e4m3fn or (query_dtype) hifloat8 in uint8.

    Each times its d_scale [B, N, blocks, 1] of blocks of rows, whose length is the least multiple of 128 of which there
    are as many. Exponentials are rounded to the same 8 bits before they are summed and multiply the values; p_scale is
    for the gradient. Results: attention, maxima and sums of the softmax [B, N, S, 8], an empty tensor and three zeros.
    """
    name = "npu_quant_fusion_attention"
    is_hifloat8 = _is_hifloat8(name, query_dtype, (query, key, value))
    keys = _key_heads(query, key, input_layout, head_num)
    heads = zip((query, key, value), (head_num, keys, keys), strict=True)
    q, k, v = (_heads(name, t, input_layout, n) for t, n in heads)
    _check(name, q, k, v, head_num)
    q = _decoded(name, "q", q, d_scale_q, is_hifloat8) * scale
    k = _of_queries(_decoded(name, "k", k, d_scale_k, is_hifloat8), head_num)
    v = _of_queries(_decoded(name, "v", v, d_scale_v, is_hifloat8), head_num)
    kept, parts = _rounding(is_hifloat8), []
    for rows in q.split(_ROWS, 2):
        scores = rows @ k.mT
        largest = scores.amax(-1, keepdim=True)
        weights = kept((scores - largest).exp())
        total = weights.sum(-1, keepdim=True)
        parts.append((weights @ v / total, largest, total))
    out, largest, total = (torch.cat(t, 2) for t in zip(*parts, strict=True))
    empty = out.new_empty(0, dtype=torch.float16)
    return _like(out.half(), input_layout), _eight(largest), _eight(total), empty, 0, 0, 0


@composed(
    "npu_quant_fusion_attention_backward(Tensor query, Tensor key, Tensor value, Tensor dy, int head_num, "
    "str input_layout, Tensor d_scale_q, Tensor d_scale_k, Tensor d_scale_v, Tensor d_scale_dy, *, "
    "Tensor? p_scale=None, Tensor? ds_scale=None, Tensor? softmax_max=None, Tensor? softmax_sum=None, "
    "Tensor? attention_in=None, float scale_value=1., int? query_dtype=None) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def quant_fusion_attention_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    d_scale_q: Tensor,
    d_scale_k: Tensor,
    d_scale_v: Tensor,
    d_scale_dy: Tensor,
    *,
    p_scale: Tensor | None = None,
    ds_scale: Tensor | None = None,
    softmax_max: Tensor | None = None,
    softmax_sum: Tensor | None = None,
    attention_in: Tensor | None = None,
    scale_value: float = 1.0,
    query_dtype: int | None = None,
) -> tuple[Tensor, ...]:
    """Gradients of npu_quant_fusion_attention by query, key and value in bfloat16, and four empty tensors.

    dy is quantized like query. The softmax, from its maxima and sums, times p_scale (1) and the gradient of the scores
    times ds_scale (1) are rounded to the same 8 bits before they are multiplied. attention_in is the forward's result.
    """
    name = "npu_quant_fusion_attention_backward"
    is_hifloat8 = _is_hifloat8(name, query_dtype, (query, key, value, dy))
    if softmax_max is None or softmax_sum is None or attention_in is None:
        refuse(name, "softmax_max, softmax_sum and attention_in, results of npu_quant_fusion_attention", None)
    n = _key_heads(query, key, input_layout, head_num)
    heads = zip((query, key, value, dy, attention_in), (head_num, n, n, head_num, head_num), strict=True)
    q, k, v, d, out = (_heads(name, t, input_layout, count) for t, count in heads)
    _check(name, q, k, v, head_num)
    shared = k.shape[1]
    q, k, v, d = (
        _of_queries(_decoded(name, part, t, factors, is_hifloat8), head_num)
        for part, t, factors in (("q", q, d_scale_q), ("k", k, d_scale_k), ("v", v, d_scale_v), ("dy", d, d_scale_dy))
    )
    kept = _rounding(is_hifloat8)
    own = (out.float() * d).sum(-1, keepdim=True)
    of_p, of_ds = (torch.ones(1, device=q.device) if t is None else t.float() for t in (p_scale, ds_scale))
    dq, dk, dv = [], torch.zeros_like(k), torch.zeros_like(v)
    for start in range(0, q.shape[2], _ROWS):
        rows = slice(start, start + _ROWS)
        scores = q[:, :, rows] @ k.mT * scale_value
        weights = (scores - softmax_max[:, :, rows, :1]).exp() / softmax_sum[:, :, rows, :1]
        dv += (kept(weights * of_p) / of_p).mT @ d[:, :, rows]
        by_scores = kept((d[:, :, rows] @ v.mT - own[:, :, rows]) * weights * of_ds) / of_ds * scale_value
        dq.append(by_scores @ k)
        dk += by_scores.mT @ q[:, :, rows]
    summed = (torch.cat(dq, 2), *(t.unflatten(1, (shared, -1)).sum(2) for t in (dk, dv)))
    empty = [q.new_empty(size, dtype=torch.bfloat16) for size in ((0,), (), ())]
    gradients = (_like(t.bfloat16(), input_layout) for t in summed)
    return *gradients, *empty, q.new_empty(0)
