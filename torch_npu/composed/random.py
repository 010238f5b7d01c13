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
