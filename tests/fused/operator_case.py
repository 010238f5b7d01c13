"""Checks one operator of ``torch.ops.npu`` against a reference in float64: values, gradients, fake shapes, replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from tolerance import assert_close, tolerance
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

import torch_npu

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Case:
    """``make()`` gives the arguments, with float64 tensors where the operator's dtype goes."""

    op: str
    name: str
    make: Callable[[], tuple[Any, ...]]
    reference: Callable[..., Any]  # of the same arguments; one result or a tuple, None for what is not compared
    keywords: dict[str, Any] = field(default_factory=dict)
    gradients: tuple[int, ...] = ()  # arguments whose gradients are compared
    cotangents: tuple[int, ...] = (0,)  # results that take part in the gradient
    dtypes: tuple[torch.dtype, ...] = FLOATS
    terms: int = 1  # summed into one result, for the tolerance
    gradient_terms: int = 0  # the same for gradients; 0: as terms
    scale: float = 1.0  # magnitude of the results, where their terms cancel

    def __str__(self) -> str:
        return f"{self.op}-{self.name}"

    def arguments(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """On the CPU, rounded to the dtype."""
        torch.manual_seed(0)
        return tree_map(lambda x: x.to(dtype) if _is_float64(x) else x, self.make())


def _is_float64(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float64


def to_npu(values: Any) -> Any:
    """Tensors moved to the device, with their strides."""

    def move(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if x.is_contiguous():
            return x.npu()
        base = torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
        return torch.as_strided(base.npu(), x.shape, x.stride(), x.storage_offset())

    return tree_map(move, values)


def widened(values: Any) -> Any:
    """Floating-point tensors in float64."""
    return tree_map(lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, values)


def as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def close(actual: Tensor, expected: Tensor, case: Case, dtype: torch.dtype, terms: int) -> None:
    """Errors are those of the arguments' dtype, relative to the magnitude of the terms.

    Statistics in float32 are statistics of values that were rounded.
    """
    assert actual.shape == expected.shape, f"{case}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if not actual.is_floating_point():
        torch.testing.assert_close(actual.cpu(), expected, check_dtype=False, rtol=0, atol=0)
        return
    allowed = tolerance(dtype, terms)
    absolute = 2 * torch.finfo(dtype).eps * case.scale * max(terms, 1) ** 0.5 + 1e-6
    assert_close(actual, expected, terms=terms, rtol=allowed.relative, atol=absolute)


def check(case: Case, dtype: torch.dtype) -> None:
    """Values, and that a fake tensor has the shapes, dtypes and devices of the results; nothing may fall back."""
    host = case.arguments(dtype)
    expected = as_tuple(case.reference(*widened(host), **case.keywords))
    operator = getattr(torch_npu, case.op)
    with torch_npu.fallback_policy("error"):
        results = as_tuple(operator(*to_npu(host), **case.keywords))
    for actual, wanted in zip(results, expected, strict=False):
        if wanted is not None:
            close(actual, wanted, case, dtype, case.terms)
    device = to_npu(host)  # outside the mode, which refuses to see real tensors
    with FakeTensorMode() as mode:
        fake = tree_map(lambda x: mode.from_tensor(x) if isinstance(x, Tensor) else x, device)
        shapes = as_tuple(operator(*fake, **case.keywords))
    for actual, shape in zip(results, shapes, strict=True):
        if isinstance(actual, Tensor):
            assert (actual.shape, actual.dtype, actual.device.type) == (shape.shape, shape.dtype, shape.device.type)


def check_gradients(case: Case, dtype: torch.dtype) -> None:
    """Gradients against autograd of the float64 reference, for the same cotangents."""
    host = case.arguments(dtype)
    reference, actual = list(widened(host)), list(to_npu(host))
    for arguments in (reference, actual):
        for i in case.gradients:
            arguments[i] = arguments[i].detach().requires_grad_()
    expected = as_tuple(case.reference(*reference, **case.keywords))
    results = as_tuple(getattr(torch_npu, case.op)(*actual, **case.keywords))
    cotangents = [torch.randn(expected[i].shape, dtype=torch.float64).to(results[i].dtype) for i in case.cotangents]
    torch.autograd.backward([expected[i] for i in case.cotangents], [c.double() for c in cotangents])
    torch.autograd.backward([results[i] for i in case.cotangents], [c.npu() for c in cotangents])
    for i in case.gradients:
        assert actual[i].grad.dtype == actual[i].dtype
        close(actual[i].grad, reference[i].grad, case, dtype, case.gradient_terms or case.terms)


def with_strides(tensor: Tensor) -> Tensor:
    """The same values with a gap behind each element of the last dimension."""
    wide = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] * 2, dtype=tensor.dtype)
    wide[..., ::2] = tensor
    return wide[..., ::2]
