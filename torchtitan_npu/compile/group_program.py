"""The tile program of a group for given sizes, and what of the graph its parameters are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch.fx import Node

from graph_autofusion.dtypes import I32, I64
from graph_autofusion.launch_words import Binding
from graph_autofusion.program import Stride, TileBuilder, TileProgram, Value
from torchtitan_npu.compile.concatenation import CONCATENATION, Part, dimension
from torchtitan_npu.compile.gathering import GATHERS, gather_of, held_within
from torchtitan_npu.compile.group import Axes, Group
from torchtitan_npu.compile.loops import MergedAxes, loop_order, merge_axes
from torchtitan_npu.compile.lowering import tile_dtype
from torchtitan_npu.compile.nodes import is_loaded, lower_node, operands_of, tensor_of
from torchtitan_npu.compile.reshapes import Size, is_one
from torchtitan_npu.compile.views import counts, through_views


@dataclass(frozen=True)
class TensorUse:
    """A tensor of the graph as a parameter of the group's kernel.

    Attributes:
        strides: in elements, one an axis.
        offset: elements from the tensor's first to the one with index 0, which a window may leave out.
        window: [low, high) of a parameter with one.
        index_stride: elements between two values of the index of a table; None for what is no table.
    """

    node: Node
    strides: tuple[int, ...]
    offset: int = 0
    window: tuple[int, int] = (0, 0)
    index_stride: int | None = None

    def binding(self) -> Binding:
        """As an argument of a launch, without its address."""
        return Binding(0, self.strides, self.window, self.index_stride or 0)


@dataclass(frozen=True)
class Lowered:
    """A group for given sizes."""

    program: TileProgram
    sizes: tuple[int, ...]
    uses: tuple[TensorUse, ...]  # one a parameter of the program
    scalars: tuple[int, ...] = ()  # numbers of the launch: sizes of tables


def lower_group(group: Group, stored: Sequence[Node], number_of: Callable[[Size], int]) -> Lowered:
    """The tile program of a group, with its axes merged where all tensors allow it.

    Args:
        stored: members whose values are needed outside.
        number_of: the number that a size is in this instance.
    """
    return _GroupLowering(group, stored, number_of).lower()


class _GroupLowering:
    def __init__(self, group: Group, stored: Sequence[Node], number_of: Callable[[Size], int]) -> None:
        self.group = group
        self.number_of = number_of
        self.sizes = [number_of(n) for n in group.domain]
        self.writes = [(node, self._strides(node, group.axes[node])) for node in stored]
        self.merged, lanes = self._loops()
        names = self.merged.parallel_names, self.merged.reduced_names
        self.builder = TileBuilder(_name(group), *names, lanes)
        self.parameters: list[TensorUse] = []
        self.values: dict[Node, Value] = {}
        self.scalars: list[int] = []
        self.known: dict[Size | str, Value] = {}  # scalars by the size that they are

    def lower(self) -> Lowered:
        for member in self.group.nodes:
            self.values[member] = self._gathered(member) if member.target in GATHERS else self._value(member)
        for position, (node, strides) in enumerate(self.writes):
            merged_strides = self.merged.apply(strides)
            self.parameters.append(TensorUse(node, merged_strides))
            dtype = tile_dtype(tensor_of(node).dtype)
            self.builder.store(f"out{position}", self.values[node], dtype, [_kind(s) for s in merged_strides])
        return Lowered(self.builder.build(), self.merged.sizes, tuple(self.parameters), tuple(self.scalars))

    def _loops(self) -> tuple[MergedAxes, str]:
        """The program's axes, and the one along which the lanes lie."""
        reads = [(a, self._read_strides(a, node)) for node in self.group.nodes for a in self._outer_operands(node)]
        counted = [strides for operand, strides in reads if not is_loaded(operand)]
        loaded = [(operand, strides) for operand, strides in reads if is_loaded(operand)]
        uses = list(dict.fromkeys([*loaded, *self.writes]))
        apart = [self._alone(self._cat_axis(n)) for n in self.group.nodes if n.target is CONCATENATION]
        order = loop_order(self.sizes, [s for _, s in uses])
        all_strides = [*(s for _, s in uses), *counted, *apart]
        merged = merge_axes(self.sizes, self.group.reduced or frozenset(), order, all_strides)
        return merged, merged.choose_lanes(uses, len(self.writes))

    def _value(self, member: Node) -> Value:
        cat_axis = self.merged.axis_of(self._cat_axis(member)) if member.target is CONCATENATION else 0

        def operand(argument: Node, consumer: Node, part: Part | None) -> Value:
            return self._operand(argument, member, part, cat_axis)

        return lower_node(self.builder, member, operand, cat_axis)

    def _operand(self, argument: Node, member: Node, part: Part | None = None, cat_axis: int = 0) -> Value:
        """What a member takes: another's value, a count, or a tensor from memory."""
        base = through_views(argument)
        if base in self.values and part is None:
            return self.values[base]
        strides = self.merged.apply(self._read_strides(argument, member))
        if counts(base) is not None:
            return _count(self.builder, base, strides)
        use = TensorUse(argument, strides)
        if part is not None:
            use = TensorUse(argument, strides, -part.low * strides[cat_axis], (part.low, part.high))
        return self._load(use, None if part is None else cat_axis)

    def _load(self, use: TensorUse, window: int | None = None, index: Value | None = None) -> Value:
        if use not in self.parameters:
            self.parameters.append(use)
        name, dtype = f"x{self.parameters.index(use)}", tile_dtype(tensor_of(use.node).dtype)
        return self.builder.load(name, dtype, [_kind(s) for s in use.strides], window, index)

    def _gathered(self, member: Node) -> Value:
        """Elements of a table; several indices are one, in elements."""
        gather = gather_of(member)
        table = tensor_of(gather.table)
        position: Value | None = None
        step = 1
        for index in gather.indices:
            value = self.builder.cast(self._operand(index.node, member), I64)
            if counts(through_views(index.node)) is None:
                value = held_within(value, self._scalar(gather.size(index)), gather.wraps)
            stride = table.stride()[index.through]
            if len(gather.indices) == 1:
                step = self.number_of(stride)
            else:
                value = value * self._scalar(stride)
            position = value if position is None else position + value
        strides = self.merged.apply(self._read_strides(gather.table, member))
        return self._load(TensorUse(gather.table, strides, index_stride=step), index=position)

    def _scalar(self, size: Size) -> Value:
        """A size as a number of the launch."""
        key = size if isinstance(size, int) else str(size)
        if key not in self.known:
            self.known[key] = self.builder.scalar(I64)
            self.scalars.append(self.number_of(size))
        return self.known[key]

    def _outer_operands(self, node: Node) -> list[Node]:
        """Tensors that no member computes."""
        outer = [operand for operand, _ in operands_of(node) if not self.group.computes(operand)]
        return [a for a in outer if is_loaded(a) or counts(through_views(a)) is not None]

    def _cat_axis(self, concatenation: Node) -> int:
        (axis,) = self.group.axes[concatenation][dimension(concatenation)]
        return axis

    def _alone(self, axis: int) -> tuple[int, ...]:
        """Strides that let an axis merge with no other: windows are intervals of it."""
        return tuple(int(a == axis) for a in range(len(self.sizes)))

    def _read_strides(self, operand: Node, member: Node) -> tuple[int, ...]:
        """Strides along the domain's axes of what a member, or an operator in a part of it, takes from memory."""
        axes = self.group.read_axes.get((member, operand))
        if axes is None:
            axes = self.group.axes[member]
            axes = axes[len(axes) - len(tensor_of(operand).shape) :]
        return self._strides(operand, axes)

    def _strides(self, node: Node, axes: Axes) -> tuple[int, ...]:
        tensor = tensor_of(node)
        strides = [0] * len(self.sizes)
        for size, stride, run in zip(tensor.shape, tensor.stride(), axes, strict=True):
            if is_one(size):
                continue
            step = self.number_of(stride)
            for axis in reversed(run):
                strides[axis] = step
                step *= self.sizes[axis]
        return tuple(strides)


def _count(builder: TileBuilder, count: Node, strides: Sequence[int]) -> Value:
    """The element of a count at the point of the loops, in the type of its values."""
    start, step = counts(count) or (0, 1)
    dtype = tile_dtype(tensor_of(count).dtype).compute
    wide = I32 if dtype is I32 else I64
    value: Value | None = None if start == 0 else builder.constant(start, wide)
    for axis, stride in enumerate(strides):
        if stride:
            index = builder.index(axis, wide)
            term = index if stride * step == 1 else index.apply("mul", stride * step)
            value = term if value is None else value.apply("add", term)
    return builder.cast(builder.constant(0, wide) if value is None else value, dtype)


def _kind(stride: int) -> Stride:
    return {0: Stride.ZERO, 1: Stride.ONE}.get(stride, Stride.ANY)


def _name(group: Group) -> str:
    """Names of the operators, as far as they fit."""
    parts: list[str] = []
    for node in group.nodes:
        part = str(node.target).split(".")[-2].strip("_")
        if not parts or parts[-1] != part:
            parts.append(part)
    return "fused_" + "_".join(parts)[:60].rstrip("_")
