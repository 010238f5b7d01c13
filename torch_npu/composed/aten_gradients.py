"""Gradients of operators of ATen, under the names by which Ascend's plug-in registers them."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu.composed.convolution import conv_gradients
from torch_npu.composed.registry import composed

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
