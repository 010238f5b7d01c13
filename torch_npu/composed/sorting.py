"""Sorting, extremes and choice."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse


@composed("npu_sort_v2(Tensor self, int dim=-1, bool descending=False) -> Tensor")
def sort_v2(self: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """self sorted along dim."""
    return torch.sort(self, dim, descending)[0]


@composed("npu_sort_v2.out(Tensor self, int dim=-1, bool descending=False, *, Tensor(a!) out) -> Tensor(a!)")
def sort_v2_out(self: Tensor, dim: int = -1, descending: bool = False, *, out: Tensor) -> Tensor:
    """npu_sort_v2 into out, which has the shape of self."""
    if out.shape != self.shape:
        refuse("npu_sort_v2", f"out of shape {list(self.shape)}", list(out.shape))
    return out.copy_(sort_v2(self, dim, descending))


@composed("npu_max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)")
def max_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The largest elements along dim, and where they are, as int32."""
    values, indices = torch.max(self, dim, keepdim)
    return values, indices.to(torch.int32)


@composed("npu_min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)")
def min_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest elements along dim, and where they are, as int32."""
    values, indices = torch.min(self, dim, keepdim)
    return values, indices.to(torch.int32)


def _extreme_backward(grad: Tensor, dim: int, indices: Tensor, sizes: list[int], keepdim: bool) -> Tensor:
    if not sizes:
        return grad.clone()
    if not keepdim:
        grad, indices = grad.unsqueeze(dim), indices.unsqueeze(dim)
    return grad.new_zeros(sizes).scatter(dim, indices.long(), grad)


@composed("npu_max_backward(Tensor grad, int dim, Tensor indices, SymInt[] sizes, bool keepdim) -> Tensor")
def max_backward(grad: Tensor, dim: int, indices: Tensor, sizes: list[int], keepdim: bool) -> Tensor:
    """Gradient of npu_max: grad at the indices, elsewhere 0."""
    return _extreme_backward(grad, dim, indices, sizes, keepdim)


@composed("npu_min_backward(Tensor grad, int dim, Tensor indices, SymInt[] sizes, bool keepdim) -> Tensor")
def min_backward(grad: Tensor, dim: int, indices: Tensor, sizes: list[int], keepdim: bool) -> Tensor:
    """Gradient of npu_min: grad at the indices, elsewhere 0."""
    return _extreme_backward(grad, dim, indices, sizes, keepdim)


def _fake_choice(x: Tensor, count: int = 256, seed: int = 0, seed2: int = 0) -> tuple[Tensor, Tensor]:
    return x.new_empty((count, x.dim()), dtype=torch.int32), x.new_empty(count)


@composed(
    "npu_random_choice_with_mask(Tensor x, int count=256, int seed=0, int seed2=0) -> (Tensor, Tensor)",
    fake=_fake_choice,
)
def random_choice_with_mask(x: Tensor, count: int = 256, seed: int = 0, seed2: int = 0) -> tuple[Tensor, Tensor]:
    """Indices of count elements of x that are True, each as likely, in their order as int32 [count, rank of x].

    Where there are fewer, the rest is zeros; the second result, bool [count], tells which are elements. The seeds
    choose the elements if one of them is not 0, else the device's generator does.
    """
    name = "npu_random_choice_with_mask"
    if x.dtype != torch.bool:
        raise TypeError(f"{name}: expected bool, got {x.dtype}")
    if not 1 <= x.dim() <= 5 or count < 1:
        refuse(name, "1 to 5 dimensions and a positive count", [x.dim(), count])
    generator = None
    if seed or seed2:
        generator = torch.Generator(x.device).manual_seed(((seed2 << 32) + seed) & (2**63 - 1))
    # Elements in random order, those that are False last; no size depends on how many there are.
    order = torch.rand(x.numel(), device=x.device, generator=generator).masked_fill(~x.flatten(), 2)
    keys, positions = order.topk(min(count, x.numel()), largest=False)
    positions = positions.masked_fill(keys > 1, x.numel()).sort()[0]
    positions = torch.nn.functional.pad(positions, [0, count - len(positions)], value=x.numel())
    mask = positions < x.numel()
    rest, indices = positions * mask, []
    for size in reversed(x.shape):
        indices.append(rest % max(size, 1))
        rest = rest // max(size, 1)
    return torch.stack(indices[::-1], 1).to(torch.int32), mask
