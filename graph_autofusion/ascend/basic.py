"""Rewrites a program with the few instructions that every Ascend backend has."""

from __future__ import annotations

import math
from collections.abc import Callable

from graph_autofusion.dtypes import DType
from graph_autofusion.program import Axis, TileBuilder, TileProgram, Value

BASIC = {
    "neg", "abs", "exp", "log", "sqrt", "tanh", "erf", "sin", "cos", "floor", "ceil", "add", "sub", "mul", "div",
    "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "where",
}  # fmt: skip

_EXPANSIONS: dict[str, Callable[..., Value]] = {
    "square": lambda x: x * x,
    "reciprocal": lambda x: x.builder.constant(1.0, x.dtype) / x,
    "rsqrt": lambda x: x.builder.constant(1.0, x.dtype) / x.apply("sqrt"),
    "relu": lambda x: x.apply("maximum", 0.0),
    "sigmoid": lambda x: x.builder.constant(1.0, x.dtype) / ((-x).apply("exp") + 1.0),
    "silu": lambda x: x / ((-x).apply("exp") + 1.0),
    "gelu": lambda x: x * 0.5 * ((x * math.sqrt(0.5)).apply("erf") + 1.0),
    "fma": lambda a, b, c: a * b + c,
}


def basic_program(program: TileProgram, backend: str) -> TileProgram:
    """The same program in basic instructions.

    Raises:
        ValueError: an instruction, a type or a kind of loop that the backend does not have.
    """
    if len(program.axes) != 2 or program.axes[0].reduced or program.vector != 1:
        raise ValueError(f"{program.name}: the {backend} printer takes programs of rows and columns")
    t = TileBuilder(program.name, *_axes(program.axes))
    values: list[Value | None] = []
    for node in program.nodes:
        args = [values[a] for a in node.args]
        if node.op in ("load", "store"):
            p = program.parameters[node.attr]
            if p.gathered or p.window is not None or p.dtype not in (DType.F32, DType.F16, DType.BF16):
                raise ValueError(f"{program.name}, {p.name}: the {backend} printer takes whole float tensors")
            if node.op == "load":
                values.append(t.load(p.name, p.dtype, p.strides))
            else:
                t.store(p.name, _given(args[0]), p.dtype, p.strides)
                values.append(None)
        elif node.op == "const":
            values.append(t.constant(node.attr, node.dtype))
        elif node.op.startswith("reduce."):
            values.append(t.reduce(node.op[7:], _given(args[0])))
        elif node.op in BASIC:
            values.append(t.apply(node.op, *map(_given, args)))
        elif node.op in _EXPANSIONS:
            values.append(_EXPANSIONS[node.op](*args))
        else:
            raise ValueError(f"{program.name}: the {backend} printer has no {node.op}")
    return t.build()


def _axes(axes: tuple[Axis, ...]) -> tuple[list[str], list[str]]:
    return [a.name for a in axes if not a.reduced], [a.name for a in axes if a.reduced]


def _given(value: Value | None) -> Value:
    assert value is not None
    return value
