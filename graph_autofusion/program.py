"""The tile program: what one fused kernel computes, without saying how.

A program has axes, tensor parameters and a list of nodes. It stands for a loop nest over the axes: every node is a
value at each point of it. A load reads a parameter at the point's index times the strides (a stride of zero
broadcasts), a reduction folds a value over all reduced axes and is from then on one value for each point of the other
axes, a store writes. Sizes and strides are numbers of the launch, so one program, and one compiled kernel, serves all
shapes; only what changes the code is part of the program: which strides are zero and which are one.

A user writes one with :class:`TileBuilder`::

    t = TileBuilder("scaled_softmax", axes=("row",), reduced=("col",))
    x = t.load("x", F32) * 0.125
    e = (x - x.max()).exp()
    t.store("out", e / e.sum(), F32)
    program = t.build()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from graph_autofusion.dtypes import BOOL, I64, DType
from graph_autofusion.instructions import INSTRUCTIONS, REDUCTIONS

Number = float | int | bool


class Stride(Enum):
    """What a program knows of a parameter's stride along an axis."""

    ZERO = "0"  # the same element along the whole axis
    ONE = "1"
    ANY = "n"  # a number of the launch


@dataclass(frozen=True)
class Axis:
    name: str
    reduced: bool = False


@dataclass(frozen=True)
class Parameter:
    """A tensor with one way of indexing it; a tensor that is read in two ways is two parameters.

    Attributes:
        window: a load outside the launch's interval [low, high) along this axis is 0 and touches no memory
            (concatenation, padding); None: all of the axis is there.
        gathered: the load takes an index value, which counts in strides of the launch (embedding).
        in_place: an output that may lie in the memory of an input that is read at the same indices.
    """

    name: str
    dtype: DType
    strides: tuple[Stride, ...]
    is_output: bool = False
    window: int | None = None
    gathered: bool = False
    in_place: bool = False


@dataclass(frozen=True)
class Node:
    """One instruction. ``args`` are positions of earlier nodes.

    ``op`` is an elementwise instruction, ``reduce.NAME``, or one of: ``load`` and ``store`` (``attr``: number of the
    parameter), ``const`` (``attr``: the number), ``scalar`` (a number of the launch; ``attr``: which), ``index`` (the
    index along an axis; ``attr``: which), ``cast`` (``attr``: DType to which the value is rounded on the way).
    """

    op: str
    args: tuple[int, ...]
    dtype: DType
    attr: Any = None


@dataclass(frozen=True)
class TileProgram:
    name: str
    axes: tuple[Axis, ...]
    parameters: tuple[Parameter, ...]
    nodes: tuple[Node, ...]
    vector: int  # the axis whose neighbours lie in the lanes of a register
    scalars: tuple[DType, ...] = ()
    varies: tuple[frozenset[int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "varies", _axes_of_nodes(self))

    @property
    def reduced(self) -> frozenset[int]:
        """Numbers of the reduced axes."""
        return frozenset(i for i, axis in enumerate(self.axes) if axis.reduced)

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if not p.is_output)

    def is_row(self, node: int) -> bool:
        """Whether the program reduces and the value is the same along all reduced axes."""
        reduced = self.reduced
        return bool(reduced) and not (self.varies[node] & reduced)

    def __str__(self) -> str:
        return print_program(self)


def _axes_of_nodes(program: TileProgram) -> tuple[frozenset[int], ...]:
    """For each node the axes along which its value varies."""
    varies: list[frozenset[int]] = []
    for node in program.nodes:
        axes = frozenset().union(*(varies[a] for a in node.args))
        if node.op in ("load", "store"):
            parameter = program.parameters[node.attr]
            axes |= {i for i, stride in enumerate(parameter.strides) if stride is not Stride.ZERO}
            if parameter.window is not None:
                axes |= {parameter.window}
        elif node.op == "index":
            axes |= {node.attr}
        elif node.op.startswith("reduce."):
            axes -= program.reduced
        varies.append(axes)
    return tuple(varies)


def print_program(program: TileProgram) -> str:
    """The program as text, one instruction a line, named as in PTO-ISA."""
    axes = ", ".join(f"{a.name}{' reduced' if a.reduced else ''}" for a in program.axes)
    lines = [f"tile_program {program.name}({axes}), lanes along {program.axes[program.vector].name}"]
    for p in program.parameters:
        kind = "out" if p.is_output else "in "
        extra = f", window of {program.axes[p.window].name}" if p.window is not None else ""
        extra += ", gathered" if p.gathered else ""
        lines.append(f"  {kind} {p.name}: {p.dtype.value}[{', '.join(s.value for s in p.strides)}]{extra}")
    for i, node in enumerate(program.nodes):
        args = ", ".join(f"%{a}" for a in node.args)
        if node.op == "store":
            lines.append(f"  TSTORE {program.parameters[node.attr].name}, {args}")
            continue
        lines.append(f"  %{i}: {node.dtype.value} = {_right_side(program, node, args)}")
    return "\n".join(lines)


def _right_side(program: TileProgram, node: Node, args: str) -> str:
    if node.op == "load":
        name = "MGATHER" if node.args else "TLOAD"
        return f"{name} {program.parameters[node.attr].name}{', ' + args if args else ''}"
    if node.op == "const":
        return f"TEXPANDS {node.attr}"
    if node.op == "scalar":
        return f"TEXPANDS scalar {node.attr}"
    if node.op == "index":
        return f"TCI {program.axes[node.attr].name}"
    if node.op == "cast":
        return f"TCVT {args}" + (f" through {node.attr.value}" if node.attr else "")
    if node.op.startswith("reduce."):
        return f"{REDUCTIONS[node.op[7:]].pto} {args}"
    return f"{INSTRUCTIONS[node.op].pto} {args}"


@dataclass(frozen=True)
class Value:
    """A node of a program under construction, with operators."""

    builder: TileBuilder = field(repr=False)
    id: int
    dtype: DType

    def apply(self, op: str, *others: Value | Number) -> Value:
        return self.builder.apply(op, self, *others)

    def cast(self, dtype: DType) -> Value:
        return self.builder.cast(self, dtype)

    def __add__(self, other: Value | Number) -> Value:
        return self.apply("add", other)

    def __sub__(self, other: Value | Number) -> Value:
        return self.apply("sub", other)

    def __mul__(self, other: Value | Number) -> Value:
        return self.apply("mul", other)

    def __truediv__(self, other: Value | Number) -> Value:
        return self.apply("div", other)

    def __neg__(self) -> Value:
        return self.apply("neg")

    def __gt__(self, other: Value | Number) -> Value:
        return self.apply("gt", other)

    def __lt__(self, other: Value | Number) -> Value:
        return self.apply("lt", other)

    def __getattr__(self, name: str) -> Any:
        """``x.exp()``, ``x.maximum(y)``, ``x.sum()``: every instruction and reduction is a method."""
        if name in REDUCTIONS:
            return lambda: self.builder.reduce(name, self)
        if name in INSTRUCTIONS:
            return lambda *others: self.apply(name, *others)
        raise AttributeError(f"there is no tile instruction {name!r}; graph_autofusion.INSTRUCTIONS lists them")


class TileBuilder:
    """Builds a :class:`TileProgram` node by node; equal nodes are one.

    Args:
        name: of the kernel, a C identifier.
        axes: names of the parallel axes, outermost first.
        reduced: names of the axes that reductions fold, inside the others.
        vector: the axis along which lanes lie; the last one by default.
    """

    def __init__(
        self, name: str, axes: Sequence[str] = ("row", "col"), reduced: Sequence[str] = (), vector: str | None = None
    ) -> None:
        self.name = name
        self.axes = (*(Axis(a) for a in axes), *(Axis(a, True) for a in reduced))
        names = [axis.name for axis in self.axes]
        self.vector = names.index(vector) if vector is not None else len(names) - 1
        self._parameters: list[Parameter] = []
        self._nodes: list[Node] = []
        self._scalars: list[DType] = []
        self._known: dict[Node, int] = {}

    def load(
        self,
        name: str,
        dtype: DType,
        strides: Sequence[Stride] | None = None,
        window: int | None = None,
        index: Value | None = None,
    ) -> Value:
        """Reads an input; its elements become values of ``dtype.compute``. Without strides: dense, row-major."""
        parameter = Parameter(name, dtype, self._strides(strides), window=window, gathered=index is not None)
        args = () if index is None else (self.cast(index, I64).id,)
        return self._node("load", args, dtype.compute, self._parameter(parameter))

    def store(self, name: str, value: Value, dtype: DType, strides: Sequence[Stride] | None = None) -> None:
        """Writes an output. Without strides: dense over the axes along which the value can vary."""
        if strides is None and self._is_row(value):
            inner = [not a.reduced for a in self.axes]
            last = max((i for i, parallel in enumerate(inner) if parallel), default=-1)
            strides = [
                Stride.ZERO if not parallel else Stride.ONE if i == last else Stride.ANY
                for i, parallel in enumerate(inner)
            ]
        number = self._parameter(Parameter(name, dtype, self._strides(strides), is_output=True))
        self._nodes.append(Node("store", (self.cast(value, dtype.compute).id,), dtype, number))

    def constant(self, number: Number, dtype: DType) -> Value:
        return self._node("const", (), dtype, float(number) if dtype.is_float else int(number))

    def scalar(self, dtype: DType) -> Value:
        """A number that each launch passes."""
        self._scalars.append(dtype)
        return self._node("scalar", (), dtype, len(self._scalars) - 1)

    def index(self, axis: int, dtype: DType = I64) -> Value:
        """The index along an axis; int32 takes half the registers, where the axis is known to be short enough."""
        return self._node("index", (), dtype, axis)

    def cast(self, value: Value, dtype: DType) -> Value:
        """Converts; to float16 and bfloat16 it rounds, and the value goes on in float32."""
        if value.dtype is dtype:
            return value
        rounded = dtype if dtype.compute is not dtype else None
        return self._node("cast", (value.id,), dtype.compute, rounded)

    def apply(self, op: str, *args: Value | Number) -> Value:
        """An elementwise instruction. Numbers take the type of the other arguments.

        Raises:
            ValueError: an unknown instruction, a wrong number of arguments or types that it does not take.
        """
        row = INSTRUCTIONS.get(op)
        if row is None:
            raise ValueError(f"unknown tile instruction {op!r}")
        if len(args) != row.arity:
            raise ValueError(f"{op} takes {row.arity} arguments, not {len(args)}")
        data = args[1:] if op == "where" else args
        dtypes = {a.dtype for a in data if isinstance(a, Value)}
        if len(dtypes) != 1:
            raise ValueError(f"{op} on {sorted(d.value for d in dtypes)}: expected one type; cast first")
        dtype = dtypes.pop()
        if dtype not in row.accepts:
            raise ValueError(f"{op} on {dtype.value}: it takes {sorted(d.value for d in row.accepts)}")
        values = [a if isinstance(a, Value) else self.constant(a, dtype) for a in args]
        if op == "where" and values[0].dtype is not BOOL:
            raise ValueError(f"where takes a bool condition, not {values[0].dtype.value}")
        return self._node(op, tuple(v.id for v in values), row.result(dtype))

    def reduce(self, name: str, value: Value) -> Value:
        """Folds over all reduced axes."""
        if value.dtype not in REDUCTIONS[name].accepts:
            raise ValueError(f"the reduction {name} does not take {value.dtype.value}")
        return self._node(f"reduce.{name}", (value.id,), value.dtype)

    def build(self) -> TileProgram:
        """The finished program.

        Raises:
            ValueError: it breaks a rule of :mod:`graph_autofusion.spec`.
        """
        from graph_autofusion.spec import validate

        program = self._program()
        validate(program)
        return program

    def _program(self) -> TileProgram:
        return TileProgram(
            self.name, self.axes, tuple(self._parameters), tuple(self._nodes), self.vector, tuple(self._scalars)
        )

    def _is_row(self, value: Value) -> bool:
        return self._program().is_row(value.id)

    def _strides(self, strides: Sequence[Stride] | None) -> tuple[Stride, ...]:
        if strides is not None:
            return tuple(strides)
        return (Stride.ANY,) * (len(self.axes) - 1) + (Stride.ONE,)

    def _parameter(self, parameter: Parameter) -> int:
        if parameter in self._parameters:
            return self._parameters.index(parameter)
        self._parameters.append(parameter)
        return len(self._parameters) - 1

    def _node(self, op: str, args: tuple[int, ...], dtype: DType, attr: Any = None) -> Value:
        node = Node(op, args, dtype, attr)
        # -0.0 and 0.0 are equal, True and 1 too: constants are told apart by their text.
        key = Node(op, args, dtype, repr(attr)) if op == "const" else node
        if key not in self._known:
            self._known[key] = len(self._nodes)
            self._nodes.append(node)
        return Value(self, self._known[key], dtype)
