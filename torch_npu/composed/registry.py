"""Registration of operators that are composed of ATen's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from torch_npu import _C
from torch_npu.dtypes import NUMBERS

__all__ = ["Composed", "composed", "dtype_numbered", "operators", "refuse", "refuse_options", "wide"]

_library = torch.library.Library("npu", "FRAGMENT")

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Composed:
    """An operator of ``torch.ops.npu``."""

    schema: str  # that of Ascend's plug-in: "npu_pad(Tensor input, int[] paddings) -> Tensor"
    subject: str  # the module: "shapes"
    meaning: str  # one line
    is_opaque: bool  # runs as a whole: graphs see the operator, not what it is made of


operators: list[Composed] = []


def composed(schema: str, *, fake: Callable[..., Any] | None = None) -> Callable[[Function], Function]:
    """Registers the decorated function as the operator ``npu::<schema>``, whose meaning its docstring's first line is.

    Autograd, autocast, captures and ``torch.compile`` see the operators of ATen that the function calls.

    Args:
        schema: with the names, types and defaults of Ascend's plug-in. The function has the same defaults, as PyTorch
            leaves out trailing arguments that equal them.
        fake: for a function that reads values on the host, which no trace can: makes its outputs without values. The
            operator then is one node of graphs, and has no gradient.
    """

    def register(function: Function) -> Function:
        name = schema.partition("(")[0]
        _library.define(schema)
        if fake is None:
            _library.impl(name, function, "CompositeImplicitAutograd")
        else:
            _library.impl(name, function, "CompositeExplicitAutograd")
            torch.library.register_fake(f"npu::{name}", fake, lib=_library)
            _C._refuse_gradients(name)
        meaning = (function.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        subject = function.__module__.rpartition(".")[2]
        operators.append(Composed(schema, subject, " ".join(meaning.split()), fake is not None))
        return function

    return register


def refuse(operator: str, expected: str, seen: object) -> NoReturn:
    """Raises the ValueError of an argument that does not fit."""
    raise ValueError(f"{operator}: expected {expected}, got {seen}")


def refuse_options(operator: str, options: dict[str, Any]) -> None:
    """Raises the NotImplementedError of arguments with other values than their defaults.

    PyTorch leaves out keyword arguments that equal their defaults: a function's ``**options`` are those that do not.
    """
    if options:
        seen = ", ".join(f"{name}={value!r}" for name, value in sorted(options.items()) if not _is_tensor(value))
        tensors = ", ".join(name for name, value in sorted(options.items()) if _is_tensor(value))
        given = ", ".join(part for part in (seen, tensors) if part)
        raise NotImplementedError(f"{operator}: {given} is not supported; leave it out")


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


# What PyTorch makes of a torch.dtype that is given for an ``int``, and the vendor's own numbers.
_NUMBERED = {
    0: torch.uint8, 1: torch.int8, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32,
    15: torch.bfloat16, 23: torch.float8_e5m2, 24: torch.float8_e4m3fn, 44: torch.float8_e8m0fnu,
}  # fmt: skip
_NUMBERED |= {
    number: dtype for name, number in NUMBERS.items() if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}


def dtype_numbered(operator: str, argument: str, number: int, allowed: tuple[torch.dtype, ...]) -> torch.dtype:
    """The dtype that a caller gave for an argument whose schema says ``int``."""
    dtype = _NUMBERED.get(number)
    if dtype not in allowed:
        seen = number if dtype is None else dtype
        raise NotImplementedError(f"{operator}: {argument} must be one of {list(allowed)}, got {seen}")
    return dtype


def wide(x: Tensor) -> Tensor:
    """``x`` in the dtype that is computed in: float32 for float16 and bfloat16, so that results are rounded once."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
