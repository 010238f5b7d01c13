"""Composite operators as the elementwise ones and reductions that can be fused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._prims_common import is_non_overlapping_and_dense_or_false

from torchtitan_npu.compile import foreach

aten = torch.ops.aten

# Beyond core ATen: what is elementwise or a reduction inside.
_ALSO: list[Any] = [
    aten._softmax, aten._softmax_backward_data, aten._log_softmax, aten._log_softmax_backward_data, aten.gelu_backward,
    aten.native_layer_norm_backward, aten.native_group_norm_backward,
    aten._native_batch_norm_legit_no_training,
    aten._native_batch_norm_legit.default, aten.native_dropout_backward, aten.mse_loss, aten.mse_loss_backward,
    aten.silu_backward, aten.hardswish, aten.hardsigmoid, aten.hardswish_backward, aten.elu, aten.elu_backward,
    aten.softplus, aten.softplus_backward, aten.mish, aten.leaky_relu_backward,
    aten.addcmul, aten.addcdiv, aten.lerp, aten.square, aten.frac,
    aten.logaddexp, aten.xlogy, aten.glu, aten.glu_backward, aten.smooth_l1_loss, aten.huber_loss,
    aten.log_sigmoid_forward,
    aten.nan_to_num, aten.hardtanh_backward, aten._fused_rms_norm, aten._fused_rms_norm_backward, aten.rsub,
    aten.masked_fill, aten.logit, aten.celu, aten.selu, aten.threshold, aten.norm, aten.linalg_vector_norm,
    aten.squeeze.default, aten.stack, aten.slice_backward,
    aten.select_backward, aten.embedding_dense_backward,
]  # fmt: skip
# These have tile instructions, or an operator of CANN that is better than their parts.
_NOT: list[Any] = [
    aten.gelu, aten.silu, aten.addmm, aten.baddbmm, aten.addmv, aten.sigmoid_backward, aten.tanh_backward, aten.lerp,
    aten.clamp, aten.clamp_min, aten.clamp_max, aten.embedding_dense_backward, aten.stack,
    aten.addcmul, aten.addcdiv, aten.masked_fill, aten.leaky_relu, aten.hardtanh, aten.threshold_backward,
    aten._scaled_dot_product_flash_attention_for_cpu, aten.rsub,
    aten._unsafe_index,
    aten.convolution_backward, aten.nll_loss_forward, aten.nll_loss_backward,
    aten.index_add, aten.index_copy, aten.select_scatter, aten.slice_scatter, aten.index_fill, aten.masked_scatter,
    aten.max_pool2d_with_indices_backward, aten.isin, aten.bernoulli,
]  # fmt: skip
# Their parts are gathers of single elements, and backward sums of these.
_RESAMPLING: list[Any] = [
    aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d, aten._upsample_nearest_exact1d,
    aten._upsample_nearest_exact2d, aten._upsample_nearest_exact3d, aten.upsample_linear1d, aten.upsample_bilinear2d,
    aten.upsample_trilinear3d, aten.upsample_bicubic2d, aten._upsample_bilinear2d_aa, aten._upsample_bicubic2d_aa,
]  # fmt: skip
_GATHERING: list[Any] = [
    aten.reflection_pad1d, aten.reflection_pad2d, aten.reflection_pad3d, aten.reflection_pad1d_backward,
    aten.reflection_pad2d_backward, aten.reflection_pad3d_backward, aten.replication_pad1d, aten.replication_pad2d,
    aten.replication_pad3d, aten.replication_pad1d_backward, aten.replication_pad2d_backward,
    aten.replication_pad3d_backward, aten.roll, aten.im2col, aten.col2im, aten.grid_sampler_2d, aten.unfold_backward,
]  # fmt: skip


OWN: dict[Any, Callable[..., Any]] = {}
"""Statistics in two passes over the row, which is in the cache by the second."""


def decomposes(operator: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        OWN[operator] = function
        return function

    return register


def _centered(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor, int]:
    """Mean, difference from it, and over how many elements; in float32 for 16-bit floats."""
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    count = 1
    for d in dims:
        count *= x.shape[d]
    mean = x.mean(dims, keepdim=True)
    return mean, x - mean, count


def _dims(x: Tensor, dim: Any) -> list[int]:
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(x.dim()))
    return [d % x.dim() for d in (dim if isinstance(dim, (list, tuple)) else [dim])]


@decomposes(aten.var_mean.correction)
def _var_mean(x: Tensor, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if x.is_complex() or x.dim() == 0:
        return NotImplemented
    dims = _dims(x, dim)
    mean, difference, count = _centered(x, dims)
    divisor = count - (1 if correction is None else correction)
    variance = (difference * difference).sum(dims, keepdim=True) / (divisor if divisor > 0 else 0)
    if not keepdim:
        shape = [n for d, n in enumerate(x.shape) if d not in dims]
        variance, mean = variance.view(shape), mean.view(shape)
    return variance.to(x.dtype), mean.to(x.dtype)


@decomposes(aten.var.correction)
def _var(x: Tensor, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Tensor:
    both = _var_mean(x, dim, correction=correction, keepdim=keepdim)
    return both if both is NotImplemented else both[0]


@decomposes(aten.std.correction)
def _std(x: Tensor, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Tensor:
    variance = _var(x, dim, correction=correction, keepdim=keepdim)
    return variance if variance is NotImplemented else variance.sqrt()


@decomposes(aten.native_layer_norm.default)
def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(x.dim() - len(shape), x.dim()))
    mean, difference, count = _centered(x, dims)
    rstd = torch.rsqrt((difference * difference).sum(dims, keepdim=True) / count + eps)
    out = difference * rstd
    out = out if weight is None else out * weight
    out = out if bias is None else out + bias
    return out.to(x.dtype), mean, rstd


@decomposes(aten.native_group_norm.default)
def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, hw: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    mean, difference, count = _centered(x.reshape(n, groups, c // groups, hw), [2, 3])
    rstd = torch.rsqrt((difference * difference).sum([2, 3], keepdim=True) / count + eps)
    out = difference * rstd
    out = out if weight is None else out * weight.view(1, groups, c // groups, 1)
    out = out if bias is None else out + bias.view(1, groups, c // groups, 1)
    return out.to(x.dtype).view(x.shape), mean.view(n, groups).to(x.dtype), rstd.view(n, groups).to(x.dtype)


@decomposes(aten.split.Tensor)
def _split(x: Tensor, size: int, dim: int = 0) -> Any:
    if not isinstance(x.shape[dim], int) or not isinstance(size, int) or size == 0:
        return NotImplemented
    return [x.narrow(dim, i, min(size, x.shape[dim] - i)) for i in range(0, max(x.shape[dim], 1), size)]


@decomposes(aten.split_with_sizes.default)
def _split_with_sizes(x: Tensor, sizes: list[int], dim: int = 0) -> list[Tensor]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [x.narrow(dim, start, size) for start, size in zip(starts, sizes, strict=True)]


@decomposes(aten.stack.default)
def _stack(tensors: list[Tensor], dim: int = 0) -> Tensor:
    """A concatenation, which kernels hold."""
    return torch.cat([t.unsqueeze(dim) for t in tensors], dim)


def _resample_whole() -> None:
    """Lets tracing of npu tensors go by the C++ kernels of operators that resample.

    PyTorch also registers their decompositions as kernels for tracing, of all devices at once, which no table switches
    off; a kernel for one device goes before.
    """
    keys = torch._C.DispatchKey
    ours: Any = getattr(keys, "AutogradPrivateUse1")  # noqa: B009  PyTorch's stub leaves it out
    for packet in _RESAMPLING:
        for name in {"default", "vec"} & set(packet.overloads()):
            overload = getattr(packet, name)
            key = keys.CompositeImplicitAutograd if name == "vec" else keys.Autograd
            overload.py_impl(ours)(functools.partial(overload._op_dk, key))


@decomposes(aten.select_backward.default)
def _select_backward(gradient: Tensor, sizes: list[int], dim: int, index: int) -> Tensor:
    """Zeros but for one index of a dimension: part of the kernel that takes them, and in no memory of its own.

    The mask stays as small as the dimension, as kernels for other layers take the same one.
    """
    if not all(isinstance(n, int) for n in (*sizes, index)):
        return NotImplemented
    dim = dim % len(sizes)
    places = torch.arange(sizes[dim], device=gradient.device).view(-1, *[1] * (len(sizes) - dim - 1))
    return torch.where(places == index % sizes[dim], gradient.unsqueeze(dim), gradient.new_zeros(()))


@decomposes(aten.full_like.default)
def _full_like(
    x: Tensor,
    value: Any,
    *,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format | None = None,
    **options: Any,
) -> Tensor:
    """Only the sizes are taken from ``x``: what makes it need not have run."""
    plain = memory_format in (None, torch.preserve_format, torch.contiguous_format)
    if not x.is_contiguous() or not plain or any(options.values()):
        return NotImplemented
    return torch.full(x.shape, value, dtype=dtype or x.dtype, device=x.device)


@decomposes(aten.copy.default)
def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """The source's values in x's layout. Of a part of a tensor (``cache[:, 3]``) nobody but its whole takes them."""
    if x.device != source.device:
        return NotImplemented
    values = source.to(x.dtype).expand(x.shape)
    if x.is_contiguous():
        return values.clone(memory_format=torch.contiguous_format)
    return NotImplemented if is_non_overlapping_and_dense_or_false(x) else values.clone()


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for AOTAutograd."""
    table = {**core_aten_decompositions(), **get_decompositions(_ALSO)}
    _resample_whole()
    unwanted = {
        getattr(packet, overload) for packet in (*_NOT, *_RESAMPLING, *_GATHERING) for overload in packet.overloads()
    }
    kept = {operator: function for operator, function in table.items() if operator not in unwanted}
    return {**kept, **dict(foreach.decompositions()), **OWN}
