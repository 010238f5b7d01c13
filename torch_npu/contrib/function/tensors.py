"""Shorthands for a few calls of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["fuse_add_softmax_dropout", "matmul_transpose", "npu_fast_condition_index_put", "roll"]


def matmul_transpose(tensor1: Tensor, tensor2: Tensor) -> Tensor:
    """``tensor1 @ tensor2.transpose(-2, -1)``."""
    return torch.matmul(tensor1, tensor2.transpose(-2, -1))


def roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int]) -> Tensor:
    """``torch.roll`` of two dimensions of an [N, H, W, C] tensor."""
    if x.dim() != 4 or len(shifts) != 2 or len(dims) != 2:
        seen = f"{list(x.shape)}, shifts={tuple(shifts)}, dims={tuple(dims)}"
        raise ValueError(f"roll: expected four dimensions, two shifts and two dims, got {seen}")
    return torch.roll(x, list(shifts), list(dims))


def npu_fast_condition_index_put(x: Tensor, condition: Tensor, value: float) -> Tensor:
    """A copy of ``x`` with ``value`` where ``condition`` (bool) holds."""
    if condition.dtype != torch.bool:
        raise TypeError(f"npu_fast_condition_index_put: expected condition in torch.bool, got {condition.dtype}")
    return torch.where(condition, value, x)


def fuse_add_softmax_dropout(
    training: bool,
    dropout: nn.Module,
    attn_mask: Tensor,
    attn_scores: Tensor,
    attn_head_size: float,
    p: float = 0.5,
    dim: int = -1,
) -> Tensor:
    """Attention's weights: ``dropout(softmax(attn_mask + attn_scores / sqrt(attn_head_size), dim))``.

    Args:
        training: whether elements are dropped, with probability ``p``.
        dropout: the layer that does so where shapes differ, as the mask's, broadcast, does; it then decides itself.
        attn_mask: what is added to the scores.
    """
    scale = attn_head_size**-0.5
    if attn_mask.shape != attn_scores.shape:
        return dropout(torch.add(attn_mask, attn_scores, alpha=scale).softmax(dim))
    share = p if training else 0.0
    return torch.ops.npu.npu_dropout_with_add_softmax(attn_scores, attn_mask, scale, share, dim)[2]
