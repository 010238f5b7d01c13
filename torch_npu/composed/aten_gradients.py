"""Gradients of operators of ATen, under the names by which Ascend's plug-in registers them."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu.composed.convolution import conv_gradients
from torch_npu.composed.registry import composed, refuse

_PLANE = "Tensor grad_output, Tensor self, Tensor weight, int[2] kernel_size, int[2] stride, int[2] padding"
_THREE = "bool[3] output_mask) -> (Tensor grad_input, Tensor grad_weight, Tensor grad_bias)"


@composed(f"slow_conv_dilated2d_backward({_PLANE}, int[2] dilation, {_THREE}")
def slow_conv_dilated2d_backward(
    grad_output: Tensor,
    self: Tensor,
    weight: Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of a convolution by its input, weight and bias; None where output_mask does not ask for one."""
    return conv_gradients(self, grad_output, weight, stride, padding, dilation, 1, output_mask)


@composed(f"slow_conv_transpose2d_backward({_PLANE}, int[2] output_padding, int[2] dilation, {_THREE}")
def slow_conv_transpose2d_backward(
    grad_output: Tensor,
    self: Tensor,
    weight: Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    output_padding: list[int],
    dilation: list[int],
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of a transposed convolution by its input, weight and bias."""
    return conv_gradients(self, grad_output, weight, stride, padding, dilation, 1, output_mask, list(output_padding))


@composed(
    f"_conv_depthwise2d_backward({_PLANE}, int[2] dilation, bool[2] output_mask) -> "
    "(Tensor grad_input, Tensor grad_weight)"
)
def conv_depthwise2d_backward(
    grad_output: Tensor,
    self: Tensor,
    weight: Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of a convolution of each channel alone by its input and weight."""
    mask, groups = [*output_mask, False], self.shape[1]
    return conv_gradients(self, grad_output, weight, stride, padding, dilation, groups, mask)[:2]


@composed("npu_dtype_cast_(Tensor(a!) self, Tensor src) -> Tensor(a!)")
def dtype_cast_(self: Tensor, src: Tensor) -> Tensor:
    """src in the dtype of self, written to self."""
    return self.copy_(src)


@composed("fft_r2c_backward(Tensor grad, int[] dim, int normalization, bool onesided, int last_dim_size) -> Tensor")
def fft_r2c_backward(grad: Tensor, dim: list[int], normalization: int, onesided: bool, last_dim_size: int) -> Tensor:
    """Gradient of aten::_fft_r2c, of whose last transformed dimension a one-sided result has a half."""
    whole = grad
    if onesided:
        shape = list(grad.shape)
        shape[dim[-1]] = last_dim_size - shape[dim[-1]]
        whole = torch.cat((grad, grad.new_zeros(shape)), dim[-1])
    return torch.ops.aten._fft_c2c(whole, dim, normalization, False).real


@composed("fft_c2r_backward(Tensor grad, int[] dim, int normalization) -> Tensor")
def fft_c2r_backward(grad: Tensor, dim: list[int], normalization: int) -> Tensor:
    """Gradient of aten::_fft_c2r: what stands for two numbers of the whole spectrum counts twice."""
    half = torch.ops.aten._fft_r2c(grad, dim, normalization, True)
    twice = grad.shape[dim[-1]] - half.shape[dim[-1]]
    factors = torch.ones(half.shape[dim[-1]], device=grad.device, dtype=grad.dtype)
    factors[1 : 1 + twice] = 2
    shape = [1] * half.dim()
    shape[dim[-1]] = -1
    return half * factors.view(shape)


def _product_gradients(grad: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of torch.matmul(left, right), of vectors too."""
    a, b = left.unsqueeze(0) if left.dim() == 1 else left, right.unsqueeze(1) if right.dim() == 1 else right
    grad = grad.unsqueeze(-1) if right.dim() == 1 else grad
    grad = grad.unsqueeze(-2) if left.dim() == 1 else grad
    by_left, by_right = grad @ b.mT.conj(), a.mT.conj() @ grad
    return by_left.sum_to_size(a.shape).view(left.shape), by_right.sum_to_size(b.shape).view(right.shape)


@composed(
    "matmul_double_backward(Tensor? grad_self, Tensor? grad_other, Tensor grad_out, Tensor self, Tensor other, "
    "bool[3] mask) -> (Tensor, Tensor, Tensor)"
)
def matmul_double_backward(
    grad_self: Tensor | None,
    grad_other: Tensor | None,
    grad_out: Tensor,
    self: Tensor,
    other: Tensor,
    mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the gradients of self @ other, by grad_out, self and other; grad_self and grad_other are theirs.

    None where mask does not ask for one, or where nothing depends on it.
    """
    by_out = by_self = by_other = None
    if mask[0]:
        parts = [torch.matmul(grad_self, other)] if grad_self is not None else []
        parts += [torch.matmul(self, grad_other)] if grad_other is not None else []
        by_out = sum(parts[1:], parts[0]) if parts else None
    if mask[1] and grad_other is not None:
        by_self = _product_gradients(grad_out, self, grad_other)[0]
    if mask[2] and grad_self is not None:
        by_other = _product_gradients(grad_out, grad_self, other)[1]
    return by_out, by_self, by_other


@composed(
    "stft_backward(Tensor grad_output, Tensor self, int n_fft, int? hop_length=None, int? win_length=None, "
    "Tensor? window=None, bool normalized=False, bool? onesided=None, bool? return_complex=None) -> Tensor"
)
def stft_backward(
    grad_output: Tensor,
    self: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
) -> Tensor:
    """Gradient of torch.stft (center False) by self [T] or [B, T]; grad_output is like its result."""
    is_complex = self.is_complex() or (window is not None and window.is_complex())
    hop, length = hop_length or n_fft // 4, win_length or n_fft
    if self.dim() not in (1, 2) or not 0 < length <= n_fft or hop < 1:
        refuse("stft_backward", "self [T] or [B, T], hop_length and win_length up to n_fft", [list(self.shape), length])
    as_complex = is_complex if return_complex is None else return_complex
    spectrum = grad_output if as_complex else torch.view_as_complex(grad_output.contiguous())
    frames = (spectrum if self.dim() == 2 else spectrum.unsqueeze(0)).transpose(1, 2)
    missing = n_fft - frames.shape[-1]
    if missing:  # one-sided: the other half has no gradient
        frames = torch.cat((frames, frames.new_zeros(*frames.shape[:-1], missing)), -1)
    # aten's modes of normalization: 0 none, 1 by the root of n
    frames = torch.ops.aten._fft_c2c(frames, [2], int(normalized), False)
    weights = self.new_ones(length) if window is None else window
    weights = torch.nn.functional.pad(weights, ((n_fft - length) // 2, n_fft - length - (n_fft - length) // 2))
    frames = frames * weights.conj()
    frames = frames if self.is_complex() else frames.real
    place = torch.arange(frames.shape[1], device=self.device).unsqueeze(1) * hop
    place = (place + torch.arange(n_fft, device=self.device)).flatten()
    total = frames.new_zeros(frames.shape[0], self.shape[-1]).index_add(1, place, frames.flatten(1))
    return total if self.dim() == 2 else total.squeeze(0)
