"""Attention to compressed keys, which chooses blocks, and to chosen blocks of keys (native sparse attention).

Sequences follow one another (layout TND); their ends are given as lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse

_CAUSAL_MASK = (2048, 2048)  # what stands for a causal mask of any size
_BLOCKS = "int select_block_size, int select_block_count, *"
_ENDS = "Tensor? atten_mask=None, int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None"


def _check(operator: str, query: Tensor, key: Tensor, value: Tensor, head_num: int) -> None:
    shapes = [list(t.shape) for t in (query, key, value)]
    if any(t.dim() != 3 for t in (query, key, value)) or query.shape[1] != head_num or key.shape[:2] != value.shape[:2]:
        refuse(operator, f"query [T, {head_num}, D], key [T2, N2, D] and value [T2, N2, D2]", shapes)
    if query.shape[1] % key.shape[1] or query.shape[2] != key.shape[2]:
        refuse(operator, "heads of query a multiple of those of key, and one width", shapes)


def _sequences(operator: str, *ends: list[int] | None) -> Iterator[tuple[slice, ...]]:
    """Where each sequence is in what each list of ends is of."""
    given = [list(e) for e in ends if e is not None]
    if len(given) != len(ends) or len({len(e) for e in given}) != 1 or any(sorted(e) != e for e in given):
        refuse(operator, "lists of as many ends of sequences, which grow", ends)
    return zip(*([slice(a, b) for a, b in pairwise([0, *e])] for e in given), strict=True)


def shares_of(scores: Tensor, times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Shares of the scores, each of which counts ``times``; maxima and sums. Zeros where nothing counts."""
    largest = scores.masked_fill(times == 0, -torch.inf).amax(-1, keepdim=True)
    base = largest.masked_fill(largest == -torch.inf, 0)
    weights = (scores - base).exp().where(times > 0, 0) * times
    total = weights.sum(-1, keepdim=True)
    return weights / total.where(total > 0, 1), largest.squeeze(-1), total.squeeze(-1)


def _scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """[N2, heads of each, queries, keys] in float32."""
    groups = query.float().unflatten(1, (key.shape[1], -1))
    return torch.einsum("sngd,tnd->ngst", groups, key.float()) * scale


def _statistics(parts: list[Tensor]) -> Tensor:
    """[T, N, 8]: each number eight times, as the units of the hardware keep it."""
    rows = [part.flatten(0, 1).t() for part in parts]
    return torch.cat(rows).unsqueeze(-1).expand(-1, -1, 8).contiguous()


def importance_of(blocks: int, keys: int, per_block: int, per_key: int, device: torch.device) -> Tensor:
    """How often each compressed key counts for each block of keys, [keys, blocks]."""
    counts = torch.zeros(keys, blocks)
    for block in range(blocks):
        for m in range(per_block):
            for n in range(per_key):
                index = per_block * (block + 1) - m - n
                if 0 <= index < keys:
                    counts[index, block] += 1
    return counts.to(device)


@composed(
    "npu_nsa_compress_attention(Tensor query, Tensor key, Tensor value, float scale_value, int head_num, "
    f"int compress_block_size, int compress_stride, {_BLOCKS}, Tensor? topk_mask=None, Tensor? atten_mask=None, "
    "int[]? actual_seq_qlen=None, int[]? actual_cmp_seq_kvlen=None, int[]? actual_sel_seq_kvlen=None) -> "
    "(Tensor, Tensor, Tensor, Tensor)"
)
def nsa_compress_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale_value: float,
    head_num: int,
    compress_block_size: int,
    compress_stride: int,
    select_block_size: int,
    select_block_count: int,
    *,
    topk_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_cmp_seq_kvlen: list[int] | None = None,
    actual_sel_seq_kvlen: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attention of query [T, N, D] to compressed keys [T2, N2, D], and the blocks of keys that count most in it.

    A block of select_block_size keys counts as the sum of the softmax of the compressed keys in it, over the heads of a
    group: of index m * (block + 1) - i - j for i below m = select_block_size / stride and j below compress_block_size /
    stride. Blocks of topk_mask [S, blocks] come first. atten_mask [S, S2] leaves keys out. Results: attention; blocks
    [T, N2, select_block_count], int32; maxima and sums of the softmax [T, N, 8].
    """
    name = "npu_nsa_compress_attention"
    _check(name, query, key, value, head_num)
    if compress_stride < 1 or select_block_size % compress_stride or compress_block_size % compress_stride:
        refuse(name, "sizes of blocks that compress_stride divides", [compress_block_size, select_block_size])
    per_block, per_key = select_block_size // compress_stride, compress_block_size // compress_stride
    outs, chosen, maxima, sums = [], [], [], []
    for rows, keys, blocks in _sequences(name, actual_seq_qlen, actual_cmp_seq_kvlen, actual_sel_seq_kvlen):
        scores = _scores(query[rows], key[keys], scale_value)
        queries, length = scores.shape[-2:]
        count = blocks.stop - blocks.start
        if count < select_block_count:
            refuse(name, f"sequences of {select_block_count} blocks at least", count)
        times = torch.ones(queries, length, device=query.device)
        if atten_mask is not None:
            times = 1 - atten_mask[:queries, :length].bool().float()
        shares, largest, total = shares_of(scores, times)
        outs.append(torch.einsum("ngst,tnd->sngd", shares, value[keys].float()).flatten(1, 2))
        weight = shares.sum(1) @ importance_of(count, length, per_block, per_key, query.device)
        if topk_mask is not None:
            weight = weight.masked_fill(topk_mask[:queries, :count].bool(), torch.inf)
        order = weight.sort(dim=-1, descending=True, stable=True)[1]
        chosen.append(order[..., :select_block_count].transpose(0, 1).int())
        maxima.append(largest)
        sums.append(total)
    return torch.cat(outs).to(query.dtype), torch.cat(chosen), _statistics(maxima), _statistics(sums)


def times_chosen(indices: Tensor, block: int, keys: int, causal: bool) -> Tensor:
    """How often each key of a sequence is chosen, [N2, queries, keys], by blocks [queries, N2, count]."""
    index = indices.long().transpose(0, 1)
    blocks = -(-keys // block)
    counts = torch.zeros(*index.shape[:2], blocks + 1, device=indices.device)
    real = (index >= 0) & (index < blocks)
    counts = counts.scatter_add(-1, index.where(real, blocks), torch.ones_like(index, dtype=torch.float32))
    times = counts[..., :blocks].repeat_interleave(block, -1)[..., :keys]
    if causal:
        place = torch.arange(keys, device=indices.device)
        times = times * (place <= torch.arange(index.shape[1], device=indices.device)[:, None])
    return times.unsqueeze(1)


def _causal(operator: str, mask: Tensor | None) -> bool:
    if mask is not None and tuple(mask.shape) != _CAUSAL_MASK:
        raise NotImplementedError(
            f"{operator}: atten_mask must be [2048, 2048], which stands for a causal mask, got {list(mask.shape)}"
        )
    return mask is not None


@composed(
    "npu_nsa_select_attention(Tensor query, Tensor key, Tensor value, Tensor topk_indices, float scale_value, "
    f"int head_num, {_BLOCKS}, {_ENDS}) -> (Tensor, Tensor, Tensor)"
)
def nsa_select_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    topk_indices: Tensor,
    scale_value: float,
    head_num: int,
    select_block_size: int,
    select_block_count: int,
    *,
    atten_mask: Tensor | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of query [T, N, D] to the blocks of keys topk_indices [T, N2, count]; a negative one is none.

    A block that is named twice counts twice. atten_mask [2048, 2048] stands for a causal mask from the first key on.
    Results: attention, maxima and sums of the softmax [T, N, 8].
    """
    name = "npu_nsa_select_attention"
    _check(name, query, key, value, head_num)
    if topk_indices.shape != (query.shape[0], key.shape[1], select_block_count):
        refuse(name, f"topk_indices [T, N2, {select_block_count}]", list(topk_indices.shape))
    causal = _causal(name, atten_mask)
    outs, maxima, sums = [], [], []
    for rows, keys in _sequences(name, actual_seq_qlen, actual_seq_kvlen):
        times = times_chosen(topk_indices[rows], select_block_size, keys.stop - keys.start, causal)
        shares, largest, total = shares_of(_scores(query[rows], key[keys], scale_value), times)
        outs.append(torch.einsum("ngst,tnd->sngd", shares, value[keys].float()).flatten(1, 2))
        maxima.append(largest)
        sums.append(total)
    return torch.cat(outs).to(query.dtype), _statistics(maxima), _statistics(sums)


@composed(
    "npu_nsa_select_attention_grad(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor attention_out, "
    f"Tensor softmax_max, Tensor softmax_sum, Tensor topk_indices, float scale_value, int head_num, {_BLOCKS}, "
    f"{_ENDS}) -> (Tensor, Tensor, Tensor)"
)
def nsa_select_attention_grad(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_out: Tensor,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    topk_indices: Tensor,
    scale_value: float,
    head_num: int,
    select_block_size: int,
    select_block_count: int,
    *,
    atten_mask: Tensor | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of npu_nsa_select_attention by query, key and value."""
    name = "npu_nsa_select_attention_grad"
    _check(name, query, key, value, head_num)
    causal = _causal(name, atten_mask)
    groups = (key.shape[1], -1)
    results: list[list[Tensor]] = [[], [], []]
    for rows, keys in _sequences(name, actual_seq_qlen, actual_seq_kvlen):
        times = times_chosen(topk_indices[rows], select_block_size, keys.stop - keys.start, causal)
        q, dout, out = (t[rows].float().unflatten(1, groups) for t in (query, grad, attention_out))
        k, v = key[keys].float(), value[keys].float()
        largest, total = (
            t[rows, :, 0].unflatten(1, groups).permute(1, 2, 0).unsqueeze(-1) for t in (softmax_max, softmax_sum)
        )
        scores = _scores(query[rows], key[keys], scale_value)
        shares = ((scores - largest).exp() / total).where(times > 0, 0) * times
        by_shares = torch.einsum("sngd,tnd->ngst", dout, v)
        own = (dout * out).sum(-1).permute(1, 2, 0).unsqueeze(-1)
        by_scores = shares * (by_shares - own) * scale_value
        results[0].append(torch.einsum("ngst,tnd->sngd", by_scores, k).flatten(1, 2))
        results[1].append(torch.einsum("ngst,sngd->tnd", by_scores, q))
        results[2].append(torch.einsum("ngst,sngd->tnd", shares, dout))
    dq, dk, dv = (torch.cat(parts).to(t.dtype) for parts, t in zip(results, (query, key, value), strict=True))
    return dq, dk, dv
