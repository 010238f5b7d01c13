"""Calls that name CUDA, as calls that name npu, and a record of them."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

_DEVICE = re.compile(r"cuda(:\d+)?")
_TYPE = re.compile(r"torch\.cuda\.(\w+)Tensor")

_KINDS = frozenset({str, torch.device, dict})  # what can name a device

NpuNames = Callable[[Any], Any]


def npu(value: Any) -> Any:
    """``value``; the npu device, or the name of one, for a CUDA device, and so for a ``map_location`` of such."""
    if type(value) is str:
        if _DEVICE.fullmatch(value):
            return "npu" + value.removeprefix("cuda")
        return f"torch.npu.{kind[1]}Tensor" if (kind := _TYPE.fullmatch(value)) else value
    if type(value) is torch.device and value.type == "cuda":
        return torch.device("npu") if value.index is None else torch.device("npu", value.index)
    if type(value) is dict:
        return {npu(key): npu(entry) for key, entry in value.items()}
    return value


def backend(value: Any) -> Any:
    """The backend of ``torch.distributed`` for one that is CUDA's: "nccl" → "hccl"."""
    if type(value) is not str or "nccl" not in value.lower():
        return npu(value)
    return re.sub("nccl", "hccl", value, flags=re.IGNORECASE).replace("cuda:", "npu:")


@dataclass
class Redirection:
    """A call that named CUDA and went to npu."""

    name: str  # "torch.ones"
    given: str  # "'cuda:0'": what named CUDA
    used: str  # "'npu:0'"
    first_line: str  # of Python, as in "train.py:12 in main"
    calls: int = 1


_redirections: dict[tuple[str, str], Redirection] = {}


class RedirectionReport(list[Redirection]):
    """The entries, in the order of their first calls. Prints as a table."""

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table(title="calls that named CUDA and went to npu")
        for name in ("function", "given", "used", "calls", "first Python line"):
            table.add_column(name, justify="right" if name == "calls" else "left")
        for e in self:
            table.add_row(e.name, e.given, e.used, str(e.calls), e.first_line)
        console = Console(width=160)
        with console.capture() as capture:
            console.print(table if self else "no call named CUDA")
        return capture.get()


def report() -> RedirectionReport:
    """Every call that named CUDA and went to npu since the start or the last :func:`clear_report`.

    Code inside ``torch.compile`` counts when it is traced.
    """
    return RedirectionReport(_redirections.values())


def clear_report() -> None:
    """Empties the record."""
    _redirections.clear()


@torch._disable_dynamo
def note(name: str, given: Any, used: Any) -> None:
    """Adds a call to the record."""
    key = (name, repr(given))
    entry = _redirections.get(key)
    if entry is not None:
        entry.calls += 1
    else:
        _redirections[key] = Redirection(name, repr(given), repr(used), _python_line())


def _python_line() -> str:
    """The innermost frame outside torch and torch_npu."""
    frame = sys._getframe(1)
    while frame.f_back is not None and re.search(r"[/\\]torch(_npu)?[/\\]", frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _translated(name: str, value: Any, translate: NpuNames) -> Any:
    used = translate(value)
    if used is not value and used != value and not torch.compiler.is_compiling():
        note(name, value, used)
    return used


def activities(value: Any) -> Any:
    """The activities of a profiler with that of npu for CUDA's."""
    kinds = torch.profiler.ProfilerActivity
    if isinstance(value, (list, tuple, set)) and kinds.CUDA in value:
        return [kinds.PrivateUse1 if kind == kinds.CUDA else kind for kind in value]
    return value


def function_on_npu(
    function: Callable[..., Any], name: str, translate: NpuNames = npu, kinds: frozenset[type] = _KINDS
) -> Callable[..., Any]:
    """``function``, whose arguments may name CUDA. Those of other types than ``kinds`` cost next to nothing."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for value in args:
            if type(value) in kinds:
                break
        else:
            for value in kwargs.values():
                if type(value) in kinds:
                    break
            else:
                return function(*args, **kwargs)
        return function(
            *[_translated(name, a, translate) for a in args],
            **{key: _translated(name, a, translate) for key, a in kwargs.items()},
        )

    return call


def class_on_npu(base: type, name: str) -> type:
    """``base``, whose constructor may be given names of CUDA. Objects are those of ``base``."""

    class Meta(type(base)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, base)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, base)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

    make = function_on_npu(base, name)
    return Meta(base.__name__, (base,), {"__doc__": base.__doc__, "__module__": base.__module__})
