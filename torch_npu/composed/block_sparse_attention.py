"""Attention of blocks of queries to the blocks of keys that a mask names."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse

_LAYOUTS = ("TND", "BNSD")


def _batches(operator: str, x: Tensor, layout: str, lengths: list[int] | None, count: int) -> list[Tensor]:
    """Each sequence [N, S, D] of x."""
    if layout == "BNSD":
        sizes = [x.shape[2]] * x.shape[0] if lengths is None else lengths
        return [x[batch, :, :size] for batch, size in enumerate(sizes)]
    if lengths is None or sum(lengths) != x.shape[0] or len(lengths) != count:
        refuse(operator, f"actual lengths of {count} sequences whose sum is {x.shape[0]} with layout TND", lengths)
    return [part.transpose(0, 1) for part in x.split(lengths)]


def _check(
    operator: str,
    tensors: tuple[Tensor, Tensor, Tensor],
    mask: Tensor,
    block_shape: list[int] | None,
    layouts: tuple[str, str],
    heads: int,
) -> None:
    query, key, value = tensors
    if layouts[0] not in _LAYOUTS or layouts[1] != layouts[0]:
        refuse(operator, "layouts TND or BNSD, the same for query and key", layouts)
    axis = 1
    if any(t.dim() != (3 if layouts[0] == "TND" else 4) for t in tensors) or key.shape != value.shape:
        refuse(operator, f"query, key and value {layouts[0]}", [list(t.shape) for t in tensors])
    if key.shape[axis] != heads or query.shape[axis] % heads or mask.dim() != 4 or mask.shape[1] != query.shape[axis]:
        seen = [list(t.shape) for t in (query, key, mask)]
        refuse(operator, f"key of {heads} heads, query of a multiple, mask [B, N, blocks, blocks]", seen)
    if block_shape is None or len(block_shape) < 2 or min(block_shape[:2]) < 1:
        refuse(operator, "block_shape of two positive sizes", block_shape)


def _shown(mask: Tensor, block_shape: list[int], queries: int, keys: int) -> Tensor:
    """Which keys each query of a sequence sees, [N, queries, keys]."""
    rows = mask.bool().repeat_interleave(block_shape[0], 1)[:, :queries]
    return rows.repeat_interleave(block_shape[1], 2)[:, :, :keys]


def _scores(q: Tensor, k: Tensor, shown: Tensor, scale: float) -> Tensor:
    wide = k.float().repeat_interleave(q.shape[0] // k.shape[0], 0)
    return (torch.bmm(q.float(), wide.transpose(1, 2)) * scale).masked_fill(~shown, -torch.inf)


def _joined(parts: list[Tensor], like: Tensor, layout: str) -> Tensor:
    """Sequences [N, S, D] as ``like`` has them, zeros behind the last token of one."""
    if layout == "TND":
        return torch.cat([part.transpose(0, 1) for part in parts])
    room = like.shape[2]
    return torch.stack([torch.nn.functional.pad(part, (0, 0, 0, room - part.shape[1])) for part in parts])


@composed(
    "npu_block_sparse_attention(Tensor query, Tensor key, Tensor value, Tensor block_sparse_mask, "
    "int[] block_shape, *, str q_input_layout='TND', str kv_input_layout='TND', int num_key_value_heads=1, "
    "float scale_value=0.0, int inner_precise=1, int[]? actual_seq_lengths=None, "
    "int[]? actual_seq_lengths_kv=None, int? softmax_lse_flag=0) -> (Tensor, Tensor)"
)
def block_sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_sparse_mask: Tensor,
    block_shape: list[int],
    *,
    q_input_layout: str = "TND",
    kv_input_layout: str = "TND",
    num_key_value_heads: int = 1,
    scale_value: float = 0.0,
    inner_precise: int = 1,
    actual_seq_lengths: list[int] | None = None,
    actual_seq_lengths_kv: list[int] | None = None,
    softmax_lse_flag: int | None = 0,
) -> tuple[Tensor, Tensor]:
    """softmax(scale_value * query @ keys) @ values, of those blocks that block_sparse_mask [B, N, rows, columns] names.

    A block has block_shape queries and keys. Layouts are TND, with the length of each sequence, and BNSD. Results:
    attention; with softmax_lse_flag the logarithms of the sums [.., 1] in float32, else nothing. Queries without a key
    are zeros. Everything is computed in float32, whatever inner_precise says.
    """
    name = "npu_block_sparse_attention"
    layouts = (q_input_layout, kv_input_layout)
    _check(name, (query, key, value), block_sparse_mask, block_shape, layouts, num_key_value_heads)
    count = block_sparse_mask.shape[0]
    queries = _batches(name, query, layouts[0], actual_seq_lengths, count)
    keys, values = (_batches(name, t, layouts[0], actual_seq_lengths_kv, count) for t in (key, value))
    outs, logs = [], []
    for batch, (q, k, v) in enumerate(zip(queries, keys, values, strict=True)):
        shown = _shown(block_sparse_mask[batch], block_shape, q.shape[1], k.shape[1])
        scores = _scores(q, k, shown, scale_value)
        seen = shown.any(-1, keepdim=True)
        shares = scores.where(seen, 0).softmax(-1).where(shown, 0)
        outs.append(torch.bmm(shares, v.float().repeat_interleave(q.shape[0] // k.shape[0], 0)))
        logs.append(scores.logsumexp(-1, keepdim=True))
    out = _joined(outs, query, layouts[0]).to(query.dtype)
    if not softmax_lse_flag:
        return out, query.new_empty(0, dtype=torch.float32)
    return out, _joined(logs, query, layouts[0])


@composed(
    "npu_block_sparse_attention_backward(Tensor d_out, Tensor query, Tensor key, Tensor value, Tensor attention_out, "
    "Tensor softmax_lse, Tensor block_sparse_mask, int[]? block_shape, int[]? actual_seq_lengths, "
    "int[]? actual_seq_lengths_kv, str q_input_layout, str kv_input_layout, int num_key_value_heads, "
    "float scale_value) -> (Tensor, Tensor, Tensor)"
)
def block_sparse_attention_backward(
    d_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_out: Tensor,
    softmax_lse: Tensor,
    block_sparse_mask: Tensor,
    block_shape: list[int],
    actual_seq_lengths: list[int] | None,
    actual_seq_lengths_kv: list[int] | None,
    q_input_layout: str,
    kv_input_layout: str,
    num_key_value_heads: int,
    scale_value: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of npu_block_sparse_attention by query, key and value."""
    name = "npu_block_sparse_attention_backward"
    layouts = (q_input_layout, kv_input_layout)
    _check(name, (query, key, value), block_sparse_mask, block_shape, layouts, num_key_value_heads)
    count = block_sparse_mask.shape[0]
    of_queries = [
        _batches(name, t, layouts[0], actual_seq_lengths, count) for t in (query, d_out, attention_out, softmax_lse)
    ]
    of_keys = [_batches(name, t, layouts[0], actual_seq_lengths_kv, count) for t in (key, value)]
    results: list[list[Tensor]] = [[], [], []]
    for batch, parts in enumerate(zip(*of_queries, *of_keys, strict=True)):
        q, grad, out, log, k, v = (part.float() for part in parts)
        shown = _shown(block_sparse_mask[batch], block_shape, q.shape[1], k.shape[1])
        group = q.shape[0] // k.shape[0]
        wide_k, wide_v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        shares = (_scores(q, k, shown, scale_value) - log).exp().where(shown, 0)
        by_shares = torch.bmm(grad, wide_v.transpose(1, 2))
        by_scores = shares * (by_shares - (grad * out).sum(-1, keepdim=True)) * scale_value
        results[0].append(torch.bmm(by_scores, wide_k))
        results[1].append(torch.bmm(by_scores.transpose(1, 2), q).unflatten(0, (-1, group)).sum(1))
        results[2].append(torch.bmm(shares.transpose(1, 2), grad).unflatten(0, (-1, group)).sum(1))
    dq, dk, dv = (
        _joined(made, like, layouts[0]).to(like.dtype) for made, like in zip(results, (query, key, value), strict=True)
    )
    return dq, dk, dv
