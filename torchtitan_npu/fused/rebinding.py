"""Copies of methods in which global names mean other functions: for operators that are written as functions."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

from torchtitan_npu.fused.offer import Refused


def innermost(forward: Callable[..., Any]) -> types.FunctionType:
    """The function behind a method and its decorators."""
    function = inspect.unwrap(forward)
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType):
        raise Refused(f"its forward is a {type(function).__name__}, not a function")
    return function


def global_function(forward: Callable[..., Any], name: str) -> Callable[..., Any] | None:
    """The function that ``forward`` calls by a global name; None where it does not."""
    function = inspect.unwrap(forward)
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType) or name not in function.__code__.co_names:
        return None
    found = function.__globals__.get(name)
    return found if callable(found) else None


def with_functions(forward: Callable[..., Any], functions: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """A copy of ``forward`` (a function or method, decorated or not) that calls ``functions`` by these global names.

    Other globals are those of now. Raises Refused for decorators that do not keep what they wrap in a closure.
    """
    if isinstance(forward, types.MethodType):
        return types.MethodType(with_functions(forward.__func__, functions), forward.__self__)
    if not isinstance(forward, types.FunctionType):
        raise Refused(f"its forward is a {type(forward).__name__}, not a function")
    wrapped = getattr(forward, "__wrapped__", None)
    cells, names = forward.__closure__, forward.__globals__
    if wrapped is None:
        # Without the module's name Dynamo looks names up here and not in the module.
        names = {k: v for k, v in names.items() if k != "__name__"} | dict(functions)
    else:
        inner = with_functions(wrapped, functions)
        if not any(c.cell_contents is wrapped for c in cells or ()):
            raise Refused(f"its forward is decorated by {forward.__qualname__}, which hides what it calls")
        cells = tuple(types.CellType(inner) if c.cell_contents is wrapped else c for c in cells or ())
    copy = types.FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, cells)
    copy.__kwdefaults__ = forward.__kwdefaults__
    copy.__module__, copy.__qualname__, copy.__doc__ = forward.__module__, forward.__qualname__, forward.__doc__
    copy.__dict__.update(forward.__dict__)
    if wrapped is not None:
        copy.__dict__["__wrapped__"] = inner
    return copy
