"""Rewrites a program with the few instructions that every Ascend backend has."""

from __future__ import annotations

import math
from collections.abc import Callable

from graph_autofusion.dtypes import DType
from graph_autofusion.program import Axis, Stride, TileBuilder, TileProgram, Value

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


INDICES = (DType.I64, DType.I32)


def basic_program(program: TileProgram, backend: str, gathers: bool = False) -> TileProgram:
    """The same program in basic instructions.

    Args:
        gathers: the backend has rows of tables, and integers that are one number a row: their indices.

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
            is_index = p.dtype in INDICES and p.strides[1] is Stride.ZERO and not p.is_output and gathers
            is_row_of_table = p.strides == (Stride.ZERO, Stride.ONE) and gathers
            if p.window is not None or not (is_index or p.dtype in (DType.F32, DType.F16, DType.BF16)):
                raise ValueError(f"{program.name}, {p.name}: the {backend} printer takes whole float tensors")
            if p.gathered and not is_row_of_table:
                tables = "of tables rows" if gathers else "no tables"
                raise ValueError(f"{program.name}, {p.name}: the {backend} printer takes {tables}")
            if node.op == "load":
                values.append(t.load(p.name, p.dtype, p.strides, index=args[0] if args else None))
            else:
                t.store(p.name, _given(args[0]), p.dtype, p.strides)
                values.append(None)
        elif node.op == "const":
            values.append(t.constant(node.attr, node.dtype))
        elif node.op == "scalar" and node.dtype is DType.I64 and gathers:
            values.append(t.scalar(node.dtype))
        elif node.op == "cast" and node.dtype is DType.I64 and program.nodes[node.args[0]].dtype is DType.I32:
            values.append(_given(args[0]).cast(DType.I64))
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
