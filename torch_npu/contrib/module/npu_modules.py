"""Dropout as a layer."""

from torch import Tensor, nn

from torch_npu.contrib.function.npu_functional import dropout_with_byte_mask

__all__ = ["DropoutWithByteMask"]


class DropoutWithByteMask(nn.Module):
    """``torch.nn.Dropout`` whose mask for the gradient has a byte an element.

    Args:
        p: the probability that an element becomes 0.
        inplace: must be False.
        max_seed: has no effect.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False, max_seed: int = 2**10 - 1) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"DropoutWithByteMask: expected a probability from 0 to 1, got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input1: Tensor) -> Tensor:
        return dropout_with_byte_mask(input1, self.p, self.training, self.inplace)
