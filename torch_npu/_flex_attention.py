"""``torch.nn.attention.flex_attention`` on npu: PyTorch's definition; compiled, with a kernel around its softmax.

PyTorch keeps the devices in a list inside of a function, without a hook, so that :func:`install` wraps the function
that looks at it. Autocast is registered as PyTorch registers it for its own devices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn.attention.flex_attention as module
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward

AUTOCAST: DispatchKey = getattr(DispatchKey, "AutocastPrivateUse1")  # noqa: B009  PyTorch's stub leaves it out


def install() -> None:
    """Lets ``flex_attention`` take npu tensors."""
    setattr(module, "_validate_device", _taking_npu(module._validate_device))  # noqa: B010
    flex_attention.py_impl(AUTOCAST)(_autocast)
    flex_attention_backward.fallthrough(AUTOCAST)


def _taking_npu(validate: Callable[[Tensor, Tensor, Tensor], None]) -> Callable[[Tensor, Tensor, Tensor], None]:
    @wraps(validate)
    def checked(query: Tensor, key: Tensor, value: Tensor) -> None:
        if query.device.type != "npu":
            validate(query, key, value)

    return checked


def _autocast(query: Tensor, key: Tensor, value: Tensor, *functions_and_options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value in the autocast dtype; the definition has dtypes of its own for what is inside."""
    query, key, value = in_autocast_dtype(query, key, value)
    with torch._C._ExcludeDispatchKeyGuard(DispatchKeySet(AUTOCAST)):
        result: tuple[Tensor, Tensor, Tensor] = flex_attention(query, key, value, *functions_and_options)
    return result


def in_autocast_dtype(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All but float64, which autocast leaves."""
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return tuple(t if t.dtype == torch.float64 else t.to(dtype) for t in tensors)
