"""Dropout whose mask is at hand.

Masks hold 1 where an element is kept: a bit for each, eight to a byte and the first one lowest, filled up to a multiple
of 128 bits; "byte masks" hold a byte for each.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_npu.composed.registry import composed, refuse, wide
from torch_npu.composed.shapes import packed, unpacked

_ALIGNMENT = 128


def _check(operator: str, x: Tensor, p: float) -> None:
    if not 0 <= p <= 1:
        refuse(operator, "a probability from 0 to 1", p)
    if not x.is_floating_point():
        raise TypeError(f"{operator}: expected a floating-point dtype, got {x.dtype}")


def _aligned(size: int) -> int:
    return math.ceil(size / _ALIGNMENT) * _ALIGNMENT


def _kept(x: Tensor, mask: Tensor, p: float) -> Tensor:
    """x where ``mask`` is set, as large as makes up for what is dropped."""
    return x * mask.to(x.dtype) * (1 / (1 - p) if p < 1 else 0)


def _random_mask(shape: list[int] | torch.Size, p: float, device: torch.device) -> Tensor:
    return torch.rand(shape, device=device) >= p


def _bits(mask: Tensor, x: Tensor, operator: str) -> Tensor:
    """The bits of a mask as bytes in the shape of x."""
    if mask.dtype != torch.uint8 or mask.numel() * 8 < x.numel():
        refuse(operator, f"a mask of uint8 with {x.numel()} bits", f"{mask.numel()} of {mask.dtype}")
    return unpacked(mask)[: x.numel()].view(x.shape)


def _packed_mask(kept: Tensor) -> Tensor:
    return packed(F.pad(kept.flatten(), [0, _aligned(kept.numel()) - kept.numel()]))


@composed("_npu_dropout(Tensor self, float p) -> (Tensor, Tensor)")
def npu_dropout(self: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """self with each element set to 0 at probability p, and the others over 1 - p; and the mask, in bits."""
    _check("_npu_dropout", self, p)
    kept = _random_mask(self.shape, p, self.device)
    return _kept(self, kept, p), _packed_mask(kept)


@composed("npu_dropout_do_mask(Tensor self, Tensor mask, float p) -> (Tensor, Tensor)")
def dropout_do_mask(self: Tensor, mask: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """self over 1 - p where the bits of the mask are set, else 0; and a copy of the mask."""
    _check("npu_dropout_do_mask", self, p)
    return _kept(self, _bits(mask, self, "npu_dropout_do_mask"), p), mask.clone()


@composed("npu_dropout_backward(Tensor grad_output, Tensor mask, float p) -> Tensor")
def dropout_backward(grad_output: Tensor, mask: Tensor, p: float) -> Tensor:
    """Gradient of _npu_dropout: grad_output over 1 - p where the bits of the mask are set, else 0."""
    _check("npu_dropout_backward", grad_output, p)
    return _kept(grad_output, _bits(mask, grad_output, "npu_dropout_backward"), p)


@composed(
    "npu_dropout_gen_mask(int[] size, float p, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
    "bool? pin_memory=None) -> Tensor"
)
def dropout_gen_mask(
    size: list[int],
    p: float,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    """A mask in bits for a tensor of the given size, each 0 at probability p; on npu unless a device is given."""
    if not 0 <= p <= 1:
        refuse("npu_dropout_gen_mask", "a probability from 0 to 1", p)
    return _packed_mask(_random_mask(size, p, device or torch.device("npu")))


@composed("_dropout_with_byte_mask(Tensor self, float p) -> (Tensor, Tensor)")
def dropout_and_byte_mask(self: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """self with each element set to 0 at probability p, and the others over 1 - p; and the byte mask."""
    _check("_dropout_with_byte_mask", self, p)
    kept = _random_mask(self.shape, p, self.device)
    return _kept(self, kept, p), kept.to(torch.uint8)


@composed("_dropout_with_byte_mask_backward(Tensor grad_output, Tensor mask, float p) -> Tensor")
def dropout_with_byte_mask_backward(grad_output: Tensor, mask: Tensor, p: float) -> Tensor:
    """Gradient of _dropout_with_byte_mask: grad_output over 1 - p where the mask is 1, else 0."""
    name = "_dropout_with_byte_mask_backward"
    _check(name, grad_output, p)
    if mask.dtype != torch.uint8 or mask.shape != grad_output.shape:
        refuse(name, f"a mask of uint8 {list(grad_output.shape)}", f"{mask.dtype} {list(mask.shape)}")
    return _kept(grad_output, mask, p)


@composed("dropout_with_byte_mask(Tensor self, float p, bool train) -> Tensor")
def dropout_with_byte_mask(self: Tensor, p: float, train: bool) -> Tensor:
    """self with each element set to 0 at probability p, and the others over 1 - p, if train; else a copy."""
    return dropout_and_byte_mask(self, p)[0] if train else self.clone()


@composed(
    "npu_dropout_with_add_softmax(Tensor self, Tensor x1, Scalar alpha, float prob, int dim) -> "
    "(Tensor, Tensor, Tensor)"
)
def dropout_with_add_softmax(
    self: Tensor, x1: Tensor, alpha: float, prob: float, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The byte mask (flat, filled up to 128), softmax(x1 + alpha * self) and that after dropout with prob.

    Gradients are those of the last result.
    """
    name = "npu_dropout_with_add_softmax"
    _check(name, self, prob)
    if self.shape != x1.shape:
        refuse(name, "self and x1 of one shape", [list(self.shape), list(x1.shape)])
    softmax = torch.softmax(wide(x1) + alpha * wide(self), dim).to(x1.dtype)
    kept = _random_mask(x1.shape, prob, x1.device)
    mask = F.pad(kept.flatten().to(torch.uint8), [0, _aligned(kept.numel()) - kept.numel()])
    return mask, softmax.detach(), _kept(softmax, kept, prob)


@composed(
    "npu_dropout_with_add_softmax_backward(Tensor grad, Tensor mask, Tensor softmax_out, Scalar alpha, float prob, "
    "int dim) -> (Tensor, Tensor)"
)
def dropout_with_add_softmax_backward(
    grad: Tensor, mask: Tensor, softmax_out: Tensor, alpha: float, prob: float, dim: int
) -> tuple[Tensor, Tensor]:
    """Gradients of npu_dropout_with_add_softmax by self and by x1."""
    name = "npu_dropout_with_add_softmax_backward"
    _check(name, grad, prob)
    if mask.dtype != torch.uint8 or mask.numel() < grad.numel():
        refuse(name, f"a mask of {grad.numel()} uint8", f"{mask.numel()} of {mask.dtype}")
    dropped = _kept(wide(grad), mask.flatten()[: grad.numel()].view(grad.shape), prob)
    y = wide(softmax_out)
    slope = y * (dropped - (dropped * y).sum(dim, keepdim=True))
    return (alpha * slope).to(grad.dtype), slope.to(grad.dtype)
