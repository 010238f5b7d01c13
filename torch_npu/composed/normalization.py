"""Statistics and what is divided by them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse, wide

_ADDED_TO_STD = 1e-5
_ADDED_TO_NORM = 1e-7  # as in torch.renorm


@composed("npu_normalize_batch(Tensor self, Tensor seq_len, int normalize_type=0) -> Tensor")
def normalize_batch(self: Tensor, seq_len: Tensor, normalize_type: int = 0) -> Tensor:
    """self [N, C, T] minus mean, over standard deviation + 1e-5, of the first seq_len [N] steps of each sequence.

    normalize_type: 0 for those of each feature, 1 for those of all C features. The deviation is the unbiased one.
    """
    name = "npu_normalize_batch"
    if self.dim() != 3 or seq_len.shape != self.shape[:1]:
        refuse(name, "self [N, C, T] and seq_len [N]", [list(self.shape), list(seq_len.shape)])
    if normalize_type not in (0, 1):
        refuse(name, "normalize_type 0 or 1", normalize_type)
    x, dims = wide(self), [2] if normalize_type == 0 else [1, 2]
    inside = torch.arange(self.shape[2], device=self.device) < seq_len.view(-1, 1, 1)
    count = seq_len.view(-1, 1, 1).to(x.dtype) * (1 if normalize_type == 0 else self.shape[1])
    mean = (x * inside).sum(dims, keepdim=True) / count
    variance = ((x - mean) * inside).square().sum(dims, keepdim=True) / (count - 1)
    return ((x - mean) / (variance.sqrt() + _ADDED_TO_STD)).to(self.dtype)


@composed("batch_norm_reduce(Tensor input, float eps) -> (Tensor, Tensor)")
def batch_norm_reduce(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Sums of the elements and of their squares for each channel (dimension 1), in float32. eps has no effect."""
    if input.dim() < 2:
        refuse("batch_norm_reduce", "input of at least 2 dimensions: its dim must be more than 1", input.dim())
    x, dims = input.float(), [0, *range(2, input.dim())]
    return x.sum(dims), x.square().sum(dims)


@composed(
    "batch_norm_gather_stats_update(Tensor input, Tensor mean, Tensor invstd, Tensor? running_mean, "
    "Tensor? running_var, float momentum, float eps, Tensor counts) -> (Tensor, Tensor)"
)
def batch_norm_gather_stats_update(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Mean and 1 / sqrt(variance + eps) of the channels from the batch_norm_reduce of all ranks; updates the running.

    In spite of their names, ``mean`` and ``invstd`` are the sums and the sums of squares, [ranks, C]; counts are the
    elements of each rank, as whole numbers.
    """
    name = "batch_norm_gather_stats_update"
    if input.dim() < 2 or mean.dim() != 2 or mean.shape != invstd.shape or mean.shape[1] != input.shape[1]:
        refuse(name, "sums [ranks, C] of input [N, C, ...]", [list(t.shape) for t in (input, mean, invstd)])
    count = counts.to(torch.int32).sum()
    average = wide(mean).sum(0) / count
    variance = wide(invstd).sum(0) / count - average.square()
    for running, value in ((running_mean, average), (running_var, variance)):
        if running is not None:
            running.copy_(momentum * value + (1 - momentum) * running)
    return average.to(mean.dtype), (variance + eps).rsqrt().to(mean.dtype)


def _norm_slope(x: Tensor, p: float, dims: list[int], norm: Tensor) -> Tensor:
    """Derivative by x of its p-norms over ``dims``; 0 where x is."""
    if p == 0:
        return torch.zeros_like(x)
    if math.isinf(p):
        reaches = x.abs() == norm
        return x.sgn() * reaches / reaches.sum(dims, keepdim=True)
    slope = x.sgn() * x.abs().pow(p - 1) * norm.pow(1 - p)
    return slope.masked_fill(x == 0, 0)


@composed("npu_renorm_backward(Tensor grad, Tensor self, Scalar p, int dim, Scalar maxnorm) -> Tensor")
def renorm_backward(grad: Tensor, self: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Gradient of torch.renorm(self, p, dim, maxnorm)."""
    name = "npu_renorm_backward"
    if grad.shape != self.shape or self.dim() < 2:
        refuse(name, "grad and self of one shape of two dimensions or more", [list(grad.shape), list(self.shape)])
    if p < 0 or maxnorm < 0:
        refuse(name, "p and maxnorm >= 0", [p, maxnorm])
    x, slope = wide(self), wide(grad)
    dims = [d for d in range(x.dim()) if d != dim % x.dim()]
    norm = torch.linalg.vector_norm(x, p, dims, keepdim=True)
    inverse = 1 / (norm + _ADDED_TO_NORM)
    along = _norm_slope(x, p, dims, norm) * (slope * x).sum(dims, keepdim=True)
    return torch.where(norm > maxnorm, maxnorm * inverse * (slope - inverse * along), slope).to(grad.dtype)
