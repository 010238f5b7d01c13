"""Random numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse


@composed("npu_sim_exponential_(Tensor(a!) self, float lambd=1, *, Generator? generator=None) -> Tensor(a!)")
def sim_exponential_(self: Tensor, lambd: float = 1, *, generator: torch.Generator | None = None) -> Tensor:
    """Fills self with numbers of the exponential distribution of rate lambd."""
    if not lambd > 0:
        refuse("npu_sim_exponential_", "a positive lambd", lambd)
    return self.exponential_(lambd, generator=generator)


@composed("npu_sub_sample(Tensor self, int per_images, float positive_fraction) -> Tensor")
def sub_sample(self: Tensor, per_images: int, positive_fraction: float) -> Tensor:
    """Labels [N] of which per_images stay, chosen by chance, the others become -1.

    At most per_images * positive_fraction of them are positive; zeros fill up. Labels below 0 never stay.
    """
    if self.dim() != 1 or per_images < 0 or not 0 <= positive_fraction <= 1:
        expected = "labels [N], per_images from 0 and positive_fraction from 0 to 1"
        refuse("npu_sub_sample", expected, [list(self.shape), per_images, positive_fraction])
    turn = torch.rand(self.shape, device=self.device)

    def rank(among: Tensor) -> Tensor:
        return turn.where(among, 2).argsort().argsort()

    positive, negative = self > 0, self == 0
    kept = positive & (rank(positive) < int(per_images * positive_fraction))
    kept = kept | (negative & (rank(negative) < per_images - kept.sum()))
    return self.where(kept, -1)
