"""Native sparse attention of one query a sequence to keys in pages, as servers decode."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu.composed.native_sparse_attention import importance_of, shares_of, times_chosen
from torch_npu.composed.registry import composed, refuse


def _pages(pages: Tensor, table: Tensor, block: int, heads: int) -> Tensor:
    """Keys or values [B, T, heads, D] in float32, of pages [pages, block, heads * D] or [pages, block, heads, D]."""
    return pages.reshape(pages.shape[0], block, heads, -1)[table.long().clamp_min(0)].flatten(1, 2).float()


def _table(operator: str, batch: int, table: Tensor | None, queries: list[int], keys: list[int]) -> Tensor:
    """block_table, if it and the lengths are those of ``batch`` sequences of one query."""
    if table is None or len(keys) != batch or table.shape[0] != batch:
        refuse(operator, f"block_table [{batch}, count] and {batch} lengths of keys", [table is not None, len(keys)])
    if queries not in ([], [1] * batch, list(range(1, batch + 1))):
        refuse(operator, "one query a sequence", queries)
    return table


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, lengths: list[int], times: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Of query [B, heads * G, D] to keys [B, T, heads, D]; ``lengths`` are real and count ``times``. And the shares."""
    real = torch.arange(keys.shape[1], device=query.device) < torch.tensor(lengths, device=query.device).unsqueeze(1)
    counted = real[:, None, None].float() if times is None else times * real[:, None, None]
    groups = query.float().unflatten(1, (keys.shape[2], -1))
    shares, _, _ = shares_of(torch.einsum("bngd,btnd->bngt", groups, keys) * scale, counted)
    return torch.einsum("bngt,btnd->bngd", shares, values).to(query.dtype), shares


def _choose(weight: Tensor, count: int, blocks: int) -> Tensor:
    """The ``count`` first of ``blocks`` blocks by falling weight [N2, ...]; the first and the last two before all."""
    weight = weight[:, :blocks].clone()
    weight[:, :1] = torch.inf
    weight[:, -2:] = torch.inf
    return weight.sort(dim=-1, descending=True, stable=True)[1][:, :count].int()


@composed(
    "npu_nsa_compress_attention_infer(Tensor query, Tensor key, Tensor value, float scale_value, int head_num, "
    "int key_value_head_num, int select_block_size, int select_block_count, int page_block_size, "
    "int compress_block_size, int compress_stride, *, str layout='TND', Tensor? atten_mask=None, "
    "Tensor? block_table=None, Tensor? topk_mask=None, int[]? actual_seq_qlen=None, "
    "int[]? actual_cmp_seq_kvlen=None, int[]? actual_sel_seq_kvlen=None) -> (Tensor, Tensor)"
)
def nsa_compress_attention_infer(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale_value: float,
    head_num: int,
    key_value_head_num: int,
    select_block_size: int,
    select_block_count: int,
    page_block_size: int,
    compress_block_size: int,
    compress_stride: int,
    *,
    layout: str = "TND",
    atten_mask: Tensor | None = None,
    block_table: Tensor | None = None,
    topk_mask: Tensor | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_cmp_seq_kvlen: list[int] | None = None,
    actual_sel_seq_kvlen: list[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """npu_nsa_compress_attention of one query a sequence to compressed keys in pages: [B, N, D] or [B, 1, N, D].

    These are layouts TND and BSND. Pages are [pages, page_block_size, N2 * D], block_table [B, count] has each
    sequence's, actual_cmp_seq_kvlen how many compressed keys each has. The first and the last two blocks of a sequence
    are always chosen. Results: attention, and blocks [B, N2, select_block_count] (BSND: [B, 1, ...]), int32. Masks are
    not supported, nor is actual_sel_seq_kvlen, which follows from the other.
    """
    name = "npu_nsa_compress_attention_infer"
    batch = query.shape[0]
    shape = {"TND": (batch, head_num, query.shape[-1]), "BSND": (batch, 1, head_num, query.shape[-1])}
    if shape.get(layout) != query.shape or head_num % key_value_head_num:
        refuse(name, "one query a sequence, in layout TND or BSND", [layout, list(query.shape)])
    if atten_mask is not None or topk_mask is not None or actual_sel_seq_kvlen is not None:
        raise NotImplementedError(f"{name}: atten_mask, topk_mask and actual_sel_seq_kvlen are not supported")
    if compress_stride < 1 or select_block_size % compress_stride or compress_block_size % compress_stride:
        refuse(name, "sizes of blocks that compress_stride divides", [compress_block_size, select_block_size])
    lengths = list(actual_cmp_seq_kvlen or [])
    table = _table(name, batch, block_table, list(actual_seq_qlen or []), lengths)
    counts = [-(-((n - 1) * compress_stride + compress_block_size) // select_block_size) for n in lengths]
    if min(counts, default=select_block_count) < select_block_count or min(lengths, default=1) < 1:
        refuse(name, f"sequences of {select_block_count} blocks at least", counts)
    keys, values = (_pages(t, table, page_block_size, key_value_head_num) for t in (key, value))
    if max(lengths, default=0) > keys.shape[1]:
        refuse(name, f"at most {keys.shape[1]} keys a sequence, as block_table has room for", lengths)
    out, shares = _attend(query.reshape(batch, head_num, -1), keys, values, lengths, None, scale_value)
    per_block, per_key = select_block_size // compress_stride, compress_block_size // compress_stride
    counted = importance_of(max(counts, default=0), keys.shape[1], per_block, per_key, query.device)
    weight = shares.sum(2) @ counted
    chosen = [_choose(w, select_block_count, count) for w, count in zip(weight, counts, strict=True)]
    blocks = torch.stack(chosen) if chosen else weight.new_empty(0, key_value_head_num, select_block_count).int()
    return out.reshape(*query.shape[:-1], -1), blocks if layout == "TND" else blocks.unsqueeze(1)


@composed(
    "npu_nsa_select_attention_infer(Tensor query, Tensor key, Tensor value, Tensor topk_indices, float scale_value, "
    "int head_num, int key_value_head_num, int select_block_size, int select_block_count, int page_block_size, *, "
    "str layout='BSND', Tensor? atten_mask=None, Tensor? block_table=None, int[]? actual_seq_qlen=None, "
    "int[]? actual_seq_kvlen=None) -> Tensor"
)
def nsa_select_attention_infer(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    topk_indices: Tensor,
    scale_value: float,
    head_num: int,
    key_value_head_num: int,
    select_block_size: int,
    select_block_count: int,
    page_block_size: int,
    *,
    layout: str = "BSND",
    atten_mask: Tensor | None = None,
    block_table: Tensor | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None,
) -> Tensor:
    """npu_nsa_select_attention of one query a sequence to keys in pages: [B, 1, N, D], [B, 1, N * D] or [B, N, D].

    These are layouts BSND, BSH and TND. Pages are [pages, page_block_size, N2 * D] or [pages, page_block_size, N2, D],
    block_table [B, count] has each sequence's, actual_seq_kvlen their lengths, topk_indices [B, N2,
    select_block_count] the blocks. Several queries a sequence are not supported, nor is atten_mask.
    """
    name = "npu_nsa_select_attention_infer"
    batch = query.shape[0]
    width = query.shape[-1] // (head_num if layout == "BSH" else 1)
    shape = {"BSND": (batch, 1, head_num, width), "BSH": (batch, 1, head_num * width), "TND": (batch, head_num, width)}
    if shape.get(layout) != query.shape or head_num % key_value_head_num:
        refuse(name, "one query a sequence, in layout BSND, BSH or TND", [layout, list(query.shape)])
    if atten_mask is not None:
        raise NotImplementedError(f"{name}: atten_mask is not supported; leave it out")
    lengths = list(actual_seq_kvlen or [])
    table = _table(name, batch, block_table, list(actual_seq_qlen or []), lengths)
    if topk_indices.shape != (batch, key_value_head_num, select_block_count):
        refuse(name, f"topk_indices {[batch, key_value_head_num, select_block_count]}", list(topk_indices.shape))
    keys, values = (_pages(t, table, page_block_size, key_value_head_num) for t in (key, value))
    times = times_chosen(topk_indices, select_block_size, keys.shape[1], causal=False).permute(2, 0, 1, 3)
    out, _ = _attend(query.reshape(batch, head_num, width), keys, values, lengths, times, scale_value)
    return out.reshape(*shape[layout][:-1], -1)
