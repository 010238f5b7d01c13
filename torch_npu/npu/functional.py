"""Functions of neural networks that programs for Ascend call under ``torch.npu``."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["linear"]


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """:func:`torch.nn.functional.linear` by the operator npu_linear (docs/npu_operators.md).

    Args:
        input: [.., k].
        weight: [n, k], of the same dtype.
        bias: [n].
    """
    return torch.ops.npu.npu_linear(input, weight, bias)
