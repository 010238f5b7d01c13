"""Operators of lists of tensors (``_foreach_add``), which optimizers call, as operators of each tensor.

So that what an optimizer does to one parameter is one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

_NAMES = (
    "abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "ceil", "clamp_max", "clamp_min", "cos", "cosh", "div",
    "erf", "erfc", "exp", "expm1", "floor", "frac", "lerp", "log", "log10", "log1p", "log2", "maximum", "minimum",
    "mul", "neg", "norm", "pow", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "sub", "tan",
    "tanh", "trunc",
)  # fmt: skip
_OTHERS: dict[str, Callable[..., Tensor]] = {
    "norm": torch.linalg.vector_norm,
    "maximum.Scalar": torch.clamp_min,
    "maximum.ScalarList": torch.clamp_min,
    "minimum.Scalar": torch.clamp_max,
    "minimum.ScalarList": torch.clamp_max,
    "addcdiv": lambda x, a, b, value=1: torch.addcdiv(x, a, b, value=value),
    "addcmul": lambda x, a, b, value=1: torch.addcmul(x, a, b, value=value),
}
"""What one tensor takes, where it is not the function of the same name."""
_NOT = ("addcdiv.Tensor", "addcmul.Tensor")  # their numbers are a tensor, for which one tensor has no operator


def decompositions() -> Iterator[tuple[Any, Callable[..., Any]]]:
    """For each operator of lists a function that does it tensor by tensor."""
    for name in _NAMES:
        packet = getattr(aten, f"_foreach_{name}")
        for overload in packet.overloads():
            full = f"{name}.{overload}"
            if not overload.endswith("out") and full not in _NOT:
                one = _OTHERS.get(full) or _OTHERS.get(name) or getattr(torch, name)
                yield getattr(packet, overload), _for_each(getattr(packet, overload), one)


def _for_each(operator: Any, one: Callable[..., Tensor]) -> Callable[..., Any]:
    is_list = [isinstance(argument.type, torch.ListType) for argument in operator._schema.arguments]

    def call(*arguments: Any, **options: Any) -> Any:
        lists = [a for a, listed in zip(arguments, is_list, strict=False) if listed]
        if any(isinstance(v, Tensor) and v.device.type != "npu" for values in lists for v in values):
            return NotImplemented
        count = len(lists[0])
        each = [a if listed else [a] * count for a, listed in zip(arguments, is_list, strict=False)]
        return [one(*given, **options) for given in zip(*each, strict=True)]

    return call
