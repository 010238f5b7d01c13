"""Gradients under names of their own, as code that was written for Ascend's plug-in calls them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_npu.composed.registry import composed, refuse, wide

_MEAN = 1


def _divided(gradient: Tensor, reduction: int) -> Tensor:
    """Of a mean each element has its share."""
    return gradient / gradient.numel() if reduction == _MEAN else gradient


@composed("npu_silu_backward(Tensor grad_output, Tensor x0, Tensor x1) -> Tensor")
def silu_backward(grad_output: Tensor, x0: Tensor, x1: Tensor) -> Tensor:
    """Gradient of npu_silu by its input x0; x1, its output, is not read."""
    return torch.ops.aten.silu_backward(grad_output, x0)


@composed("npu_mish_backward(Tensor grad, Tensor input) -> Tensor")
def mish_backward(grad: Tensor, input: Tensor) -> Tensor:
    """Gradient of npu_mish."""
    return torch.ops.aten.mish_backward(grad, input)


@composed("npu_linear_backward(Tensor grad, Tensor input, Tensor weight) -> (Tensor, Tensor)")
def linear_backward(grad: Tensor, input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of npu_linear by input [N, in] and weight [out, in]."""
    if grad.dim() != 2 or input.dim() != 2 or weight.dim() != 2:
        refuse("npu_linear_backward", "matrices", [list(t.shape) for t in (grad, input, weight)])
    return grad @ weight, grad.t() @ input


@composed(
    "npu_layernorm_grad(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor mean, Tensor rstd, "
    "Tensor? weight, Tensor? bias) -> (Tensor, Tensor, Tensor)"
)
def layernorm_grad(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: list[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of layer_norm by input, weight and bias (None where not given); mean and rstd are those of its rows."""
    mask = [True, weight is not None, bias is not None]
    return torch.ops.aten.native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias, mask)


@composed(
    "npu_binary_cross_entropy_with_logits_backward(Tensor grad_output, Tensor self, Tensor target, "
    "Tensor? weight_opt, Tensor? pos_weight_opt, int reduction) -> Tensor"
)
def binary_cross_entropy_with_logits_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight_opt: Tensor | None,
    pos_weight_opt: Tensor | None,
    reduction: int,
) -> Tensor:
    """Gradient of binary_cross_entropy_with_logits by self; reduction: 0 none, 1 mean, 2 sum."""
    logits, truth = wide(self), wide(target)
    positive = truth if pos_weight_opt is None else truth * wide(pos_weight_opt)
    gradient = (positive + 1 - truth) * logits.sigmoid() - positive
    if weight_opt is not None:
        gradient = gradient * wide(weight_opt)
    return _divided(gradient * wide(grad_output), reduction).to(self.dtype)


@composed("l1_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction) -> Tensor")
def l1_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int) -> Tensor:
    """Gradient of l1_loss by self; reduction: 0 none, 1 mean, 2 sum."""
    return _divided((self - target).sign() * grad_output, reduction)


_KL_DIV = "Tensor grad_output, Tensor self, Tensor target, int reduction=Mean, *, bool log_target=False"


@composed(f"kl_div_backward({_KL_DIV}) -> Tensor")
def kl_div_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int = _MEAN, *, log_target: bool = False
) -> Tensor:
    """Gradient of kl_div by self; reduction: 0 none, 1 mean, 2 sum."""
    share = target.exp() if log_target else target.clamp_min(0)
    return _divided(-share * grad_output, reduction)


@composed(f"kl_div_target_backward({_KL_DIV}) -> Tensor")
def kl_div_target_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int = _MEAN, *, log_target: bool = False
) -> Tensor:
    """Gradient of kl_div by target; reduction: 0 none, 1 mean, 2 sum."""
    if log_target:
        gradient = target.exp() * (target + 1 - self)
    else:
        gradient = (target.log() + 1 - self).masked_fill(target == 0, 0)
    return _divided(gradient * grad_output, reduction)


def _matrices(mat1: Tensor, mat2: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors among the factors of a product as matrices, and the product's gradient with them."""
    if mat1.dim() == 1:
        mat1, grad = mat1.unsqueeze(0), grad.unsqueeze(-1 if mat2.dim() == 1 else -2)
    if mat2.dim() == 1:
        mat2, grad = mat2.unsqueeze(1), grad.unsqueeze(-1)
    return mat1, mat2, grad


@composed("npu_bmm_v2_mat1_backward(Tensor grad, Tensor mat1, Tensor mat2, SymInt[] size) -> Tensor")
def bmm_v2_mat1_backward(grad: Tensor, mat1: Tensor, mat2: Tensor, size: list[int]) -> Tensor:
    """Gradient of npu_bmmV2 by mat1, whose shape is size: what was broadcast is summed up."""
    _, right, gradient = _matrices(mat1, mat2, grad)
    return (gradient @ right.mT).sum_to_size(size)


@composed("npu_bmm_v2_mat2_backward(Tensor grad, Tensor mat1, Tensor mat2, SymInt[] size) -> Tensor")
def bmm_v2_mat2_backward(grad: Tensor, mat1: Tensor, mat2: Tensor, size: list[int]) -> Tensor:
    """Gradient of npu_bmmV2 by mat2, whose shape is size: what was broadcast is summed up."""
    left, _, gradient = _matrices(mat1, mat2, grad)
    result = left.mT @ gradient
    return (result.squeeze(-1) if mat2.dim() == 1 else result).sum_to_size(size)


@composed("npu_confusion_transpose_backward(Tensor grad, int[] perm, SymInt[] shape, bool transpose_first) -> Tensor")
def confusion_transpose_backward(grad: Tensor, perm: list[int], shape: list[int], transpose_first: bool) -> Tensor:
    """Gradient of npu_confusion_transpose by its input, whose shape is shape."""
    back = sorted(range(len(perm)), key=perm.__getitem__)
    if transpose_first:
        return grad.reshape([shape[d] for d in perm]).permute(back).contiguous()
    return grad.permute(back).reshape(shape).contiguous()


@composed("_npu_dtype_cast(Tensor self, ScalarType dtype) -> Tensor")
def dtype_cast(self: Tensor, dtype: torch.dtype) -> Tensor:
    """self in dtype."""
    return self.to(dtype)


@composed("_npu_dtype_cast_backward(Tensor grad, ScalarType dtype) -> Tensor")
def dtype_cast_backward(grad: Tensor, dtype: torch.dtype) -> Tensor:
    """Gradient of a cast from dtype."""
    return grad.to(dtype)


@composed(
    "npu_dtype_cast_backward(Tensor grad, ScalarType dtype, int? grad_dtype=None, int? input_dtype=None) -> Tensor"
)
def npu_dtype_cast_backward(
    grad: Tensor, dtype: torch.dtype, grad_dtype: int | None = None, input_dtype: int | None = None
) -> Tensor:
    """Gradient of npu_dtype_cast from dtype; grad_dtype and input_dtype name dtypes that PyTorch lacks."""
    if grad_dtype is not None or input_dtype is not None:
        refuse("npu_dtype_cast_backward", "neither grad_dtype nor input_dtype", [grad_dtype, input_dtype])
    return grad.to(dtype)


@composed("npu_gather_backward(Tensor grad, SymInt[] self_size, int dim, Tensor index, bool sparse_grad) -> Tensor")
def gather_backward(grad: Tensor, self_size: list[int], dim: int, index: Tensor, sparse_grad: bool) -> Tensor:
    """Gradient of gather by its input, whose shape is self_size."""
    if sparse_grad:
        refuse("npu_gather_backward", "sparse_grad False", sparse_grad)
    return grad.new_zeros(self_size).scatter_add(dim, index, grad)


@composed("repeat_interleave_backward_int(Tensor grad, Tensor self, SymInt repeats, int? dim=None) -> Tensor")
def repeat_interleave_backward_int(grad: Tensor, self: Tensor, repeats: int, dim: int | None = None) -> Tensor:
    """Gradient of repeat_interleave by self, each element of which came repeats times."""
    if dim is None:
        return grad.reshape(self.numel(), repeats).sum(1).view(self.shape)
    place = dim % self.dim()
    return grad.unflatten(place, (self.shape[place], repeats)).sum(place + 1)


@composed("repeat_interleave_backward_tensor(Tensor grad, Tensor self, Tensor repeats, int? dim=None) -> Tensor")
def repeat_interleave_backward_tensor(grad: Tensor, self: Tensor, repeats: Tensor, dim: int | None = None) -> Tensor:
    """Gradient of repeat_interleave by self; repeats says how often each element (of dim) came."""
    place = 0 if dim is None else dim % self.dim()
    target = self.flatten() if dim is None else self
    size = target.shape[place]
    source = torch.arange(size, device=grad.device).repeat_interleave(
        repeats.expand(size), output_size=grad.shape[place]
    )
    return torch.zeros_like(target, dtype=grad.dtype).index_add(place, source, grad).view(self.shape)


@composed("npu_attn_softmax_backward_(Tensor(a!) self, Tensor grad_output, Tensor values) -> Tensor(a!)")
def attn_softmax_backward_(self: Tensor, grad_output: Tensor, values: Tensor) -> Tensor:
    """In self, weights of npu_attn_softmax_, the gradient of self @ values by the logits."""
    gradient = torch.ops.aten._softmax_backward_data(grad_output @ values.mT, self, -1, self.dtype)
    return self.copy_(gradient)


@composed("npu_attn_softmax_(Tensor(a!) self) -> Tensor(a!)")
def attn_softmax_(self: Tensor) -> Tensor:
    """softmax over the last dimension in place."""
    return self.copy_(F.softmax(self, -1))


def _of_boxes(
    overlap: Callable[..., Tensor], grad: Tensor, bboxes: Tensor, gtboxes: Tensor, *options: bool | int
) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        boxes = [wide(b.detach()).requires_grad_() for b in (bboxes, gtboxes)]
        result = overlap(*boxes, *options)
    first, second = torch.autograd.grad(result, boxes, wide(grad).reshape(result.shape))  # pairs as row or column
    return first.to(bboxes.dtype), second.to(gtboxes.dtype)


@composed(
    "npu_giou_backward(Tensor grad, Tensor bboxes, Tensor gtboxes, bool trans=False, bool is_cross=False, "
    "int mode=0) -> (Tensor, Tensor)"
)
def giou_backward(
    grad: Tensor, bboxes: Tensor, gtboxes: Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0
) -> tuple[Tensor, Tensor]:
    """Gradients of npu_giou by both boxes."""
    return _of_boxes(torch.ops.npu.npu_giou, grad, bboxes, gtboxes, trans, is_cross, mode)


@composed(
    "npu_diou_backward(Tensor grad, Tensor bboxes, Tensor gtboxes, bool trans=False, bool is_cross=False, "
    "int mode=0) -> (Tensor, Tensor)"
)
def diou_backward(
    grad: Tensor, bboxes: Tensor, gtboxes: Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0
) -> tuple[Tensor, Tensor]:
    """Gradients of npu_diou by both boxes."""
    return _of_boxes(torch.ops.npu.npu_diou, grad, bboxes, gtboxes, trans, is_cross, mode)


@composed(
    "npu_ciou_backward(Tensor grad, Tensor bboxes, Tensor gtboxes, Tensor? atan_sub, bool trans=False, "
    "bool is_cross=True, int mode=0) -> (Tensor, Tensor)"
)
def ciou_backward(
    grad: Tensor,
    bboxes: Tensor,
    gtboxes: Tensor,
    atan_sub: Tensor | None,
    trans: bool = False,
    is_cross: bool = True,
    mode: int = 0,
) -> tuple[Tensor, Tensor]:
    """Gradients of npu_ciou by both boxes; atan_sub, which Ascend's forward keeps, is computed again."""
    return _of_boxes(torch.ops.npu.npu_ciou, grad, bboxes, gtboxes, trans, is_cross, mode)
