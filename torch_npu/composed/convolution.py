"""Convolutions under older names with their gradients, and deformable ones."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_npu.composed.registry import composed, refuse, wide

_Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


@composed(
    "npu_conv2d_backward(Tensor input, Tensor grad_output, Tensor weight, int[] stride, int[] padding, "
    "int[] dilation, int groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
)
def conv2d_backward(
    input: Tensor,
    grad_output: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    output_mask: list[bool],
) -> _Gradients:
    """Gradients of npu_conv2d by input, weight and bias, of those that output_mask asks for.

    padding is two numbers, or four that are equal.
    """
    if len(padding) == 4 and len(set(padding)) == 1:
        padding = padding[:2]
    if input.dim() != 4 or len(padding) != 2:
        refuse("npu_conv2d_backward", "input [N, C, H, W] and padding of two numbers", [list(input.shape), padding])
    return torch.ops.aten.convolution_backward(
        grad_output, input, weight, [weight.shape[0]], stride, padding, dilation, False, [0, 0], groups, output_mask
    )


def conv_gradients(
    input: Tensor,
    grad: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    output_mask: list[bool],
    output_padding: list[int] | None = None,
) -> _Gradients:
    """Gradients by input, weight and bias; with output_padding of a transposed convolution."""
    transposed = output_padding is not None
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    return torch.ops.aten.convolution_backward(
        grad, input, weight, [channels], stride, padding, dilation, transposed,
        output_padding if transposed else [0] * len(stride), groups, output_mask,
    )  # fmt: skip


def _check_rank(operator: str, input: Tensor, *ranks: int) -> None:
    if input.dim() not in ranks:
        refuse(operator, f"an input of {' or '.join(map(str, ranks))} dimensions", list(input.shape))


_FORWARD = "Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, int groups"
_TRANSPOSED = (
    "Tensor input, Tensor weight, Tensor? bias, int[] padding, int[] output_padding, int[] stride, int[] dilation, "
    "int groups"
)
_BACKWARD = "int[] stride, int[] padding, int[] dilation, int groups, bool[3] output_mask"
_TRANSPOSED_BACKWARD = "int[] padding, int[] output_padding, int[] stride, int[] dilation, int groups"
_THREE = "(Tensor, Tensor, Tensor)"


@composed(f"npu_convolution({_FORWARD}) -> Tensor")
def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Convolution of an input of 4 or 5 dimensions."""
    _check_rank("npu_convolution", input, 4, 5)
    return torch.convolution(input, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)


@composed(f"npu_conv3d({_FORWARD}) -> Tensor")
def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Convolution of an input [N, C, D, H, W]."""
    _check_rank("npu_conv3d", input, 5)
    return convolution(input, weight, bias, stride, padding, dilation, groups)


@composed(f"npu_conv3d.out({_FORWARD}, *, Tensor(a!) out) -> Tensor(a!)")
def conv3d_out(*arguments: Any, out: Tensor) -> Tensor:
    """npu_conv3d into out, which has the result's shape."""
    result = conv3d(*arguments)
    if out.shape != result.shape:
        refuse("npu_conv3d", f"out of shape {list(result.shape)}", list(out.shape))
    return out.copy_(result)


@composed(f"npu_convolution_backward(Tensor input, Tensor grad_output, Tensor weight, {_BACKWARD}) -> {_THREE}")
def convolution_backward(
    input: Tensor,
    grad_output: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    output_mask: list[bool],
) -> _Gradients:
    """Gradients of npu_convolution by input, weight and bias, of those that output_mask asks for."""
    _check_rank("npu_convolution_backward", input, 4, 5)
    return conv_gradients(input, grad_output, weight, stride, padding, dilation, groups, output_mask)


@composed(f"npu_conv3d_backward(Tensor input, Tensor grad, Tensor weight, {_BACKWARD}) -> {_THREE}")
def conv3d_backward(
    input: Tensor,
    grad: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    output_mask: list[bool],
) -> _Gradients:
    """Gradients of npu_conv3d by input, weight and bias, of those that output_mask asks for."""
    _check_rank("npu_conv3d_backward", input, 5)
    return conv_gradients(input, grad, weight, stride, padding, dilation, groups, output_mask)


@composed(f"npu_convolution_transpose({_TRANSPOSED}) -> Tensor")
def convolution_transpose(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: list[int],
    output_padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Transposed convolution of an input of 4 or 5 dimensions; weight is [in, out / groups, ...]."""
    _check_rank("npu_convolution_transpose", input, 4, 5)
    return torch.convolution(input, weight, bias, stride, padding, dilation, True, output_padding, groups)


@composed(f"npu_conv_transpose2d({_TRANSPOSED}) -> Tensor")
def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: list[int],
    output_padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Transposed convolution of an input [N, C, H, W]; weight is [in, out / groups, kH, kW]."""
    _check_rank("npu_conv_transpose2d", input, 4)
    return convolution_transpose(input, weight, bias, padding, output_padding, stride, dilation, groups)


@composed(
    f"npu_convolution_transpose_backward(Tensor input, Tensor grad, Tensor weight, {_TRANSPOSED_BACKWARD}, "
    f"bool[3] grad_input_mask) -> {_THREE}"
)
def convolution_transpose_backward(
    input: Tensor,
    grad: Tensor,
    weight: Tensor,
    padding: list[int],
    output_padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
    grad_input_mask: list[bool],
) -> _Gradients:
    """Gradients of npu_convolution_transpose by input, weight and bias, of those that grad_input_mask asks for."""
    _check_rank("npu_convolution_transpose_backward", input, 4, 5)
    return conv_gradients(input, grad, weight, stride, padding, dilation, groups, grad_input_mask, output_padding)


@composed(
    f"npu_conv_transpose2d_backward(Tensor input, Tensor grad_output, Tensor weight, {_TRANSPOSED_BACKWARD}, "
    f"bool[3] output_mask) -> {_THREE}"
)
def conv_transpose2d_backward(
    input: Tensor,
    grad_output: Tensor,
    weight: Tensor,
    padding: list[int],
    output_padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
    output_mask: list[bool],
) -> _Gradients:
    """Gradients of npu_conv_transpose2d by input, weight and bias, of those that output_mask asks for."""
    _check_rank("npu_conv_transpose2d_backward", input, 4)
    return conv_gradients(input, grad_output, weight, stride, padding, dilation, groups, output_mask, output_padding)


@composed(
    f"npu_conv_transpose3d_backward(Tensor input, Tensor grad_output, Tensor weight, {_TRANSPOSED_BACKWARD}, "
    f"bool[3] output_mask) -> {_THREE}"
)
def conv_transpose3d_backward(
    input: Tensor,
    grad_output: Tensor,
    weight: Tensor,
    padding: list[int],
    output_padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
    output_mask: list[bool],
) -> _Gradients:
    """Gradients of a transposed convolution of an input [N, C, D, H, W], of those that output_mask asks for."""
    _check_rank("npu_conv_transpose3d_backward", input, 5)
    return conv_gradients(input, grad_output, weight, stride, padding, dilation, groups, output_mask, output_padding)


class _Sampling:
    """The points between pixels at which a deformable convolution reads its input.

    Axes: n image, g deformable group, k position in the kernel, p position in the output.
    """

    def __init__(
        self,
        operator: str,
        input: Tensor,
        offset: Tensor,
        kernel_size: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        modulated: bool,
    ) -> None:
        self.kernel = kernel_size
        taps = kernel_size[0] * kernel_size[1]
        planes = 3 if modulated else 2
        if input.dim() != 4 or offset.dim() != 4 or min(len(stride), len(padding), len(dilation)) < 4:
            refuse(operator, "input, offset, stride, padding and dilation of four", [input.shape, offset.shape])
        if offset.shape[:2] != (input.shape[0], planes * groups * taps) or input.shape[1] % groups:
            expected = f"offset [{input.shape[0]}, {planes * groups * taps}, H, W] and channels divisible by {groups}"
            refuse(operator, expected, [list(offset.shape), list(input.shape)])
        self.output = (offset.shape[2], offset.shape[3])
        self.planes = wide(input).unflatten(1, (groups, -1)).flatten(3)  # [n, g, channels, pixels]
        self.size = (input.shape[2], input.shape[3])
        parts = wide(offset).unflatten(1, (planes, groups, taps)).flatten(4).unbind(1)  # each [n, g, k, p]
        device = offset.device
        row, column = (torch.arange(n, device=device) for n in self.output)
        down, across = (torch.arange(n, device=device) for n in kernel_size)
        y = (row * stride[2] - padding[0]).view(1, 1, -1, 1) + (down * dilation[2]).view(-1, 1, 1, 1)
        x = (column * stride[3] - padding[2]).view(1, 1, 1, -1) + (across * dilation[3]).view(1, -1, 1, 1)
        shape = (*kernel_size, *self.output)
        self.x = parts[0] + x.expand(shape).reshape(taps, -1)
        self.y = parts[1] + y.expand(shape).reshape(taps, -1)
        self.mask = parts[2] if modulated else torch.ones_like(self.x)

    def corners(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """The four pixels around each point: their numbers, whether they are in the image, their shares of y and x."""
        top, left, corners = self.y.floor(), self.x.floor(), []
        for i in (0, 1):
            for j in (0, 1):
                row, column = top + i, left + j
                inside = (row >= 0) & (row < self.size[0]) & (column >= 0) & (column < self.size[1])
                number = row.clamp(0, self.size[0] - 1) * self.size[1] + column.clamp(0, self.size[1] - 1)
                share_y, share_x = 1 - (self.y - row).abs(), 1 - (self.x - column).abs()
                corners.append((number.long(), inside, share_y, share_x))
        return corners

    def at(self, number: Tensor) -> Tensor:
        """The pixels [n, g, channels, k, p]."""
        index = number.flatten(2).unsqueeze(2).expand(-1, -1, self.planes.shape[2], -1)
        return self.planes.gather(3, index).unflatten(3, number.shape[2:])

    def image(self, values: Tensor) -> Tensor:
        """Values [n, g, channels, k, p] as an image in which the taps of one output are neighbours."""
        values = values.unflatten(4, self.output).unflatten(3, self.kernel).flatten(1, 2)
        return values.permute(0, 1, 4, 2, 5, 3).flatten(4, 5).flatten(2, 3)

    def values(self, image: Tensor) -> Tensor:
        """The inverse of :meth:`image`."""
        image = image.unflatten(3, (self.output[1], self.kernel[1])).unflatten(2, (self.output[0], self.kernel[0]))
        values = image.permute(0, 1, 3, 5, 2, 4).flatten(4, 5).flatten(2, 3)
        return values.unflatten(1, (self.planes.shape[1], -1))

    def forward(self) -> Tensor:
        parts = [
            self.at(number) * (inside * share_y * share_x).unsqueeze(2)
            for number, inside, share_y, share_x in self.corners()
        ]
        return self.image(sum(parts[1:], parts[0]) * self.mask.unsqueeze(2))

    def backward(self, grad_image: Tensor, modulated: bool) -> tuple[Tensor, Tensor]:
        """Gradients by the input's planes and by the offsets, from that by the result of :meth:`forward`."""
        grad = self.values(wide(grad_image))
        planes, index_shape = torch.zeros_like(self.planes), (-1, -1, self.planes.shape[2], -1)
        along_x, along_y, sampled = (torch.zeros_like(self.x) for _ in range(3))
        for corner, (number, inside, share_y, share_x) in enumerate(self.corners()):
            weight = inside * share_y * share_x
            spread = (grad * (weight * self.mask).unsqueeze(2)).flatten(3)
            planes = planes.scatter_add(3, number.flatten(2).unsqueeze(2).expand(index_shape), spread)
            towards = (grad * self.at(number)).sum(2) * inside
            # Going right or down takes from the pixels at the left or top and gives to the others.
            along_x = along_x + towards * share_y * (1 if corner % 2 else -1)
            along_y = along_y + towards * share_x * (1 if corner >= 2 else -1)
            sampled = sampled + towards * share_y * share_x
        parts = [along_x * self.mask, along_y * self.mask, *([sampled] if modulated else [])]
        offsets = torch.stack(parts, 1).flatten(1, 3)
        return planes.flatten(1, 2).unflatten(2, self.size), offsets.unflatten(2, self.output)


_DEFORMABLE = (
    "int[2] kernel_size, int[] stride, int[] padding, int[4] dilation=[1,1,1,1], int groups=1, "
    "int deformable_groups=1, bool modulated=True"
)


@composed(
    f"npu_deformable_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor? bias, {_DEFORMABLE}) -> "
    "(Tensor, Tensor)"
)
def deformable_conv2d(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    bias: Tensor | None,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int] = [1, 1, 1, 1],  # noqa: B006
    groups: int = 1,
    deformable_groups: int = 1,
    modulated: bool = True,
) -> tuple[Tensor, Tensor]:
    """A convolution whose taps read between pixels, moved by offset; and what they read, [N, C, K_h * H, K_w * W].

    offset is [N, 3 * G * K_h * K_w, H, W]: differences of x, those of y and (if modulated) factors, for each of G
    deformable groups and each tap. stride and dilation are [1, 1, y, x], padding is top, bottom, left, right.
    """
    options = (kernel_size, stride, padding, dilation, deformable_groups, modulated)
    taps = _Sampling("npu_deformable_conv2d", input, offset, *options).forward()
    bias = None if bias is None else wide(bias)
    return F.conv2d(taps, wide(weight), bias, kernel_size, groups=groups).to(input.dtype), taps.to(input.dtype)


@composed(
    "npu_deformable_conv2dbk(Tensor input, Tensor grad_output, Tensor offset_out, Tensor weight, Tensor offset, "
    f"{_DEFORMABLE}) -> (Tensor, Tensor, Tensor, Tensor)"
)
def deformable_conv2dbk(
    input: Tensor,
    grad_output: Tensor,
    offset_out: Tensor,
    weight: Tensor,
    offset: Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int] = [1, 1, 1, 1],  # noqa: B006
    groups: int = 1,
    deformable_groups: int = 1,
    modulated: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of npu_deformable_conv2d by input, weight, offset and bias; offset_out is its second result."""
    name = "npu_deformable_conv2dbk"
    sampling = _Sampling(name, input, offset, kernel_size, stride, padding, dilation, deformable_groups, modulated)
    grad_taps, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
        wide(grad_output), wide(offset_out), wide(weight), [weight.shape[0]], kernel_size, [0, 0], [1, 1], False,
        [0, 0], groups, [True, True, True],
    )  # fmt: skip
    grad_input, grad_offset = sampling.backward(grad_taps, modulated)
    grads, inputs = (grad_input, grad_weight, grad_offset), (input, weight, offset)
    dx, dw, do = (grad.to(t.dtype) for grad, t in zip(grads, inputs, strict=True))
    return dx, dw, do, grad_bias.to(weight.dtype)
