"""Operators of Ascend's transformer library (ATB) that servers such as vLLM call, under its names.

That library is no part of CANN's operators; here its operators are composed of others. Each writes into a tensor of the
caller's. Paged attention is in ``paged_attention.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = [
    "flash_attention",
    "flash_attention_unpad",
    "heads_of",
    "matmul_add",
    "quantize",
    "reshape_and_cache",
    "rotary_embedding",
]

_library = torch.library.Library("npu", "FRAGMENT")


def heads_of(name: str, tensor: Tensor, heads: int) -> Tensor:
    """[tokens, heads, size] of that, or of [tokens, heads * size]; a view."""
    if tensor.dim() == 3 and tensor.shape[1] == heads:
        return tensor
    if tensor.dim() == 2 and tensor.shape[1] % heads == 0:
        return tensor.unflatten(1, (heads, -1))
    raise ValueError(f"{name}: expected [tokens, {heads}, size] or [tokens, {heads} * size], got {list(tensor.shape)}")


def _attend(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    seq_len: Tensor,
    scale: float,
    heads: tuple[int, int],
    out: Tensor,
) -> None:
    """Each sequence by itself, one behind the other in all tensors."""
    q, k, v = heads_of(name, query, heads[0]), heads_of(name, key, heads[1]), heads_of(name, value, heads[1])
    lengths = seq_len.tolist()
    if sum(lengths) > len(q) or len(k) != len(q) or len(v) != len(q):
        raise ValueError(
            f"{name}: query, key and value must have as many tokens as seq_len says ({sum(lengths)} in all); got "
            f"{len(q)}, {len(k)} and {len(v)}"
        )
    result, first = heads_of(name, out, heads[0]), 0
    for number, length in enumerate(lengths):
        some = slice(first, first + length)
        added = None
        if mask is not None:
            added = (mask[number if len(mask) > 1 else 0] if mask.dim() == 3 else mask)[:length, :length].to(q.dtype)
        one, keys, values = (t[some].transpose(0, 1)[None] for t in (q, k, v))
        attended = F.scaled_dot_product_attention(
            one, keys, values, added, scale=scale, enable_gqa=heads[0] != heads[1]
        )
        result[some] = attended[0].transpose(0, 1)
        first += length


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, seq_len: Tensor, scale_value: float, num_heads: int,
    num_kv_heads: int, out: Tensor,
) -> None:  # fmt: skip
    """``torch_npu._npu_flash_attention``: attention of sequences to themselves, with a mask that is added to scores.

    Args:
        query: [tokens, num_heads, size] or [tokens, num_heads * size], float16 or bfloat16, all sequences in turn.
        key, value: likewise, with num_kv_heads.
        mask: [longest, longest], or [sequences or 1, longest, longest].
        seq_len: int32 [sequences], tokens of each; on the CPU, as the host needs the numbers.
        out: like query, is written.
    """
    heads = (num_heads, num_kv_heads)
    _attend("_npu_flash_attention", query, key, value, mask, seq_len, scale_value, heads, out)


def flash_attention_unpad(
    query: Tensor, key: Tensor, value: Tensor, seq_len: Tensor, scale_value: float, num_heads: int, num_kv_heads: int,
    out: Tensor,
) -> None:  # fmt: skip
    """``torch_npu._npu_flash_attention_unpad``: the same without a mask, so that each token sees its whole sequence."""
    heads = (num_heads, num_kv_heads)
    _attend("_npu_flash_attention_unpad", query, key, value, None, seq_len, scale_value, heads, out)


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox_style: bool
) -> None:
    """``torch_npu._npu_rotary_embedding``: turns queries and keys in place.

    Args:
        positions: int64, any shape of as many elements as there are tokens.
        query, key: [tokens, heads * head_size] or with more dimensions; the first elements of a head, as many as the
            table has, are turned.
        cos_sin_cache: [positions, turned elements of a head]: cosines, then sines.
        is_neox_style: whether elements are paired with those half a head further, and not with their neighbours.
    """
    turned = cos_sin_cache.shape[-1]
    if turned > head_size or turned % 2:
        raise ValueError(
            f"_npu_rotary_embedding: cos_sin_cache must have an even number of columns, at most head_size={head_size}; "
            f"got {turned}"
        )
    cos, sin = cos_sin_cache.index_select(0, positions.flatten()).unsqueeze(1).chunk(2, -1)
    for tensor in (query, key):
        x = tensor.view(positions.numel(), -1, head_size)[..., :turned]
        a, b = x.chunk(2, -1) if is_neox_style else (x[..., ::2], x[..., 1::2])
        c, s = cos.to(x.dtype), sin.to(x.dtype)
        left, right = a * c - b * s, b * c + a * s
        a.copy_(left)
        b.copy_(right)


def quantize(x: Tensor, scale: Tensor, zero_point: Tensor, y: Tensor) -> None:
    """``torch_npu._npu_quantize_per_tensor``: y = round(x / scale) + zero_point within int8.

    Args:
        x: float16 or bfloat16; scale like it, and zero_point int8 (empty: 0), of shapes that broadcast to it.
        y: int8, x's shape, is written.
    """
    if y.dtype is not torch.int8 or y.shape != x.shape:
        raise ValueError(f"_npu_quantize_per_tensor: y must be int8 {list(x.shape)}, got {y.dtype} {list(y.shape)}")
    numbers = (x / scale).round().float()
    if zero_point.numel():
        numbers = numbers + zero_point
    y.copy_(numbers.clamp(-128, 127))


def reshape_and_cache(key: Tensor, key_cache: Tensor, slot_indices: Tensor) -> None:
    """``torch_npu._npu_reshape_and_cache_siso``: writes keys of new tokens into a cache of one tensor.

    Args:
        key: [tokens, heads, size].
        key_cache: [blocks, block size, heads, size], is written.
        slot_indices: int32 or int64 [tokens]: block number times block size plus place in the block; -1 is padding.
    """
    torch.ops.npu.npu_scatter_pa_cache(key, slot_indices, key_cache=key_cache)


def matmul_add(x: Tensor, weight: Tensor, c: Tensor) -> None:
    """``torch_npu._npu_matmul_add_fp32``: c += x^T weight, as gradients of weights are accumulated.

    Args:
        x: [tokens, M], weight: [tokens, N], both float16 or bfloat16.
        c: float32 [M, N], is written.
    """
    if c.dtype is not torch.float32 or x.dtype != weight.dtype:
        raise TypeError(
            "_npu_matmul_add_fp32: c must be float32, x and weight of one dtype; got "
            f"{c.dtype}, {x.dtype} and {weight.dtype}"
        )
    c.addmm_(x.t().float(), weight.float())


_ATTENTION = "Tensor seq_len, float scale_value, int num_heads, int num_kv_heads, Tensor(a!) out) -> ()"
_OPERATORS = {
    f"_npu_flash_attention(Tensor query, Tensor key, Tensor value, Tensor mask, {_ATTENTION}": flash_attention,
    f"_npu_flash_attention_unpad(Tensor query, Tensor key, Tensor value, {_ATTENTION}": flash_attention_unpad,
    "_npu_rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!) key, int head_size, Tensor cos_sin_cache, "
    "bool is_neox_style) -> ()": rotary_embedding,
    "_npu_quantize_per_tensor(Tensor x, Tensor scale, Tensor zero_point, Tensor(a!) y) -> ()": quantize,
    "_npu_reshape_and_cache_siso(Tensor key, Tensor(a!) key_cache, Tensor slot_indices) -> ()": reshape_and_cache,
    "_npu_matmul_add_fp32(Tensor x, Tensor weight, Tensor(a!) C) -> ()": matmul_add,
}
for _schema, _function in _OPERATORS.items():
    _name = _library.define(_schema)
    _library.impl(_name, _function, "PrivateUse1")
    _library.impl(_name, lambda *_, **__: None, "Meta")
