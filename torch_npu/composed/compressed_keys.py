"""Keys and values of which blocks are summed to one (native sparse attention)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse


def _windows(operator: str, input: Tensor, weight: Tensor, block: int, stride: int, ends: list[int] | None) -> Tensor:
    """The tokens [blocks, tokens of one] of each block inside a sequence."""
    if input.dim() != 3 or weight.shape != (block, input.shape[1]) or block < 1 or stride < 1:
        shapes = [list(input.shape), list(weight.shape), block, stride]
        refuse(operator, "input [T, N, D] and weight [compress_block_size, N]", shapes)
    bounds = [0, *(ends if ends is not None else [input.shape[0]])]
    if sorted(bounds) != bounds or bounds[-1] > input.shape[0]:
        refuse(operator, f"ends of sequences that grow up to {input.shape[0]}", ends)
    starts = [s for a, b in pairwise(bounds) for s in range(a, b - block + 1, stride)]
    first = torch.tensor(starts, dtype=torch.int64, device=input.device)
    return first.unsqueeze(1) + torch.arange(block, device=input.device)


_COMPRESS = "int compress_block_size, int compress_stride, *, int[]? actual_seq_len=None"


@composed(f"npu_nsa_compress(Tensor input, Tensor weight, {_COMPRESS}) -> Tensor")
def nsa_compress(
    input: Tensor,
    weight: Tensor,
    compress_block_size: int,
    compress_stride: int,
    *,
    actual_seq_len: list[int] | None = None,
) -> Tensor:
    """Sums of blocks of tokens of input [T, N, D], weighted by weight [block, N]; blocks start every stride tokens.

    actual_seq_len: where each sequence ends; blocks that do not fit into one are left out.
    """
    tokens = _windows("npu_nsa_compress", input, weight, compress_block_size, compress_stride, actual_seq_len)
    return torch.einsum("btnd,tn->bnd", input[tokens].float(), weight.float()).to(input.dtype)


@composed(f"npu_nsa_compress_grad(Tensor grad, Tensor input, Tensor weight, {_COMPRESS}) -> (Tensor, Tensor)")
def nsa_compress_grad(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    compress_block_size: int,
    compress_stride: int,
    *,
    actual_seq_len: list[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of npu_nsa_compress by input and weight."""
    tokens = _windows("npu_nsa_compress_grad", input, weight, compress_block_size, compress_stride, actual_seq_len)
    blocks = torch.einsum("bnd,tn->btnd", grad.float(), weight.float())
    by_input = torch.zeros_like(input, dtype=torch.float32).index_add(0, tokens.flatten(), blocks.flatten(0, 1))
    by_weight = torch.einsum("bnd,btnd->tn", grad.float(), input[tokens].float())
    return by_input.to(input.dtype), by_weight.to(weight.dtype)


@composed(
    "npu_nsa_compress_infer.cache(Tensor input, Tensor weight, Tensor slot_mapping, int compress_block_size, "
    "int compress_stride, int page_block_size, *, Tensor? block_table=None, int[]? actual_seq_len=None, "
    "Tensor(a!) cache) -> Tensor(a!)"
)
def nsa_compress_infer(
    input: Tensor,
    weight: Tensor,
    slot_mapping: Tensor,
    compress_block_size: int,
    compress_stride: int,
    page_block_size: int,
    *,
    block_table: Tensor | None = None,
    actual_seq_len: list[int] | None = None,
    cache: Tensor,
) -> Tensor:
    """Writes the sum of a sequence's last block of tokens, weighted by weight [block, N], when a block is complete.

    input [pages, page_block_size, N, D] has the tokens, in the pages that block_table [B, pages] names; actual_seq_len:
    how many each sequence has. Its block is complete when these are compress_block_size and a multiple of
    compress_stride more. The sum goes to slot_mapping [B] of cache [slots, N, D].
    """
    name = "npu_nsa_compress_infer"
    shapes = [list(t.shape) for t in (input, weight, cache)]
    if input.dim() != 4 or input.shape[1] != page_block_size or weight.shape != (compress_block_size, input.shape[2]):
        refuse(name, "input [pages, page_block_size, N, D] and weight [compress_block_size, N]", shapes)
    if block_table is None or actual_seq_len is None or len(actual_seq_len) != slot_mapping.shape[0]:
        refuse(name, "block_table, and actual_seq_len as long as slot_mapping", actual_seq_len)
    ready = [
        (number, length)
        for number, length in enumerate(actual_seq_len)
        if length >= compress_block_size and (length - compress_block_size) % compress_stride == 0
    ]
    if not ready:
        return cache
    sequence = torch.tensor([number for number, _ in ready], device=input.device)
    ends = torch.tensor([length for _, length in ready], device=input.device)
    places = ends[:, None] - compress_block_size + torch.arange(compress_block_size, device=input.device)
    pages = block_table.long()[sequence[:, None], places // page_block_size]
    tokens = input[pages, places % page_block_size].float()
    made = torch.einsum("btnd,tn->bnd", tokens, weight.float())
    cache[slot_mapping.long()[sequence]] = made.to(cache.dtype)
    return cache
