"""Dropout by name."""

import torch
from torch import Tensor

__all__ = ["dropout_with_byte_mask"]


def dropout_with_byte_mask(input1: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """``torch.nn.functional.dropout`` whose mask for the gradient has a byte an element.

    Raises:
        ValueError: for ``inplace``, or a probability that is none.
    """
    if inplace:
        raise ValueError("dropout_with_byte_mask: expected inplace=False, got True")
    return torch.ops.npu.dropout_with_byte_mask(input1, p, training)
