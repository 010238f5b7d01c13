"""A group of nodes that becomes one tile program.

A group has a domain, the axes of its loops. Every member's dimensions are mapped to them, so that a row's mean and the
row itself meet in one loop nest. A node joins if its dimensions can be mapped; if not, :class:`DoesNotFuse` says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from graph_autofusion.dtypes import I32, I64
from graph_autofusion.program import Stride, TileBuilder, TileProgram, Value
from torchtitan_npu.compile.concatenation import CONCATENATION, Part, dimension, inside, is_in_a_part, parts
from torchtitan_npu.compile.lowering import (
    CREATES,
    POINTWISE,
    REDUCTIONS,
    Context,
    DoesNotFuse,
    lower_product,
    lower_reduction,
    tile_dtype,
)
from torchtitan_npu.compile.views import VIEWS, counts, through_views

aten = torch.ops.aten
prims = torch.ops.prims
Axes = tuple[int | None, ...]  # for each dimension its axis of the domain; None for one of size 1
Size = int | torch.SymInt

PRODUCTS: dict[Any, tuple[int, int]] = {aten.mm.default: (0, 1), aten.addmm.default: (1, 2)}
"""Matrix products, with one row a sum over elementwise products; which of their arguments they multiply."""

MOST_NODES = 48
MOST_TENSORS = 24


def tensor_of(node: Node) -> torch.Tensor:
    """The fake tensor that a node gives; raises DoesNotFuse if it gives none."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise DoesNotFuse("gives no single tensor")
    return value


def same(a: Size, b: Size) -> bool:
    return a is b or (a == b if isinstance(a, int) and isinstance(b, int) else statically_known_true(a == b))


def is_one(size: Size) -> bool:
    return same(size, 1)


class Group:
    """Nodes in one loop nest."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.nodes: list[Node] = []
        self.domain: list[Size] = []
        self.reduced: frozenset[int] | None = None  # axes that the group's reductions fold
        self.axes: dict[Node, Axes] = {}
        self.tensors: set[Node] = set()  # read from memory
        self._trial = TileBuilder("trial", axes=("x",))
        self._values: dict[Node, Value] = {}

    def add(self, node: Node) -> None:
        """Makes the node a member.

        Raises:
            DoesNotFuse: it cannot be; the group is as before.
        """
        if len(self.nodes) >= MOST_NODES:
            raise DoesNotFuse(f"the kernel has {MOST_NODES} operators already")
        value = tensor_of(node)
        if any(same(n, 0) for n in value.shape):
            raise DoesNotFuse("is empty")
        before = list(self.domain), self.reduced
        try:
            axes = self._axes(node)
            tensors = self.tensors | set(self._outside(node))
            if len(tensors) > MOST_TENSORS:
                raise DoesNotFuse(f"the kernel would read more than {MOST_TENSORS} tensors")
            trial = _lower_node(self._trial, node, self._trial_operand)
        except DoesNotFuse:
            self.domain, self.reduced = before
            raise
        self.axes[node], self._values[node], self.tensors = axes, trial, tensors
        self.nodes.append(node)

    def operators(self) -> list[Node]:
        """Members, and what is computed in the parts of concatenations."""
        return [o for n in self.nodes for o in (*(inside(n) if n.target is CONCATENATION else ()), n)]

    def _trial_operand(self, node: Node, consumer: Node, part: Part | None = None) -> Value:
        member = through_views(node)
        if member in self._values:
            return self._values[member]
        return self._trial.load(node.name, tile_dtype(tensor_of(node).dtype), (Stride.ANY,))

    def _outside(self, node: Node) -> list[Node]:
        """Tensor operands that come from memory."""
        return [a for a, _ in _operands(node) if self.axes_of(a) is None and _is_loaded(a)]

    def _axes(self, node: Node) -> Axes:
        if node.target in REDUCTIONS:
            return self._axes_of_reduction(node)
        return self._axes_of_product(node) if node.target in PRODUCTS else self._axes_of_pointwise(node)

    def _axes_of_product(self, node: Node) -> Axes:
        """Of one row and a matrix: the loops are over the row's products with each column."""
        if self.nodes:
            raise DoesNotFuse("multiplies matrices, which begins a kernel")
        left, right = product_operands(node)
        row, matrix = tensor_of(left), tensor_of(right)
        if not (is_one(row.shape[0]) and row.dtype == matrix.dtype and row.dtype.is_floating_point):
            raise DoesNotFuse("is a matrix operator of CANN")
        if not (same(matrix.stride()[0], 1) or is_one(matrix.shape[0])) or is_one(matrix.shape[0]):
            raise DoesNotFuse("is a matrix operator of CANN: the columns of its matrix are not contiguous")
        if is_one(matrix.shape[1]) or left is right or row.dtype == torch.float64:
            raise DoesNotFuse("is a matrix operator of CANN")
        self.domain = [matrix.shape[1], matrix.shape[0]]
        self.reduced = frozenset({1})
        return (None, 0)

    # ---- dimensions

    def axes_of(self, node: Node) -> Axes | None:
        """The axes of a member or of a view of one; None for what comes from elsewhere."""
        if node in self.axes:
            return self.axes[node]
        if node.target in VIEWS:
            base = node.args[0]
            assert isinstance(base, Node)
            axes = self.axes_of(base)
            return None if axes is None else self._through_view(node, base, axes)
        return None

    def _through_view(self, node: Node, base: Node, axes: Axes) -> Axes:
        shape, before = tensor_of(node).shape, tensor_of(base).shape
        if node.target in (aten.permute.default, aten.transpose.int, aten.t.default):
            return _permuted(node, axes)
        if node.target is aten.expand.default:
            padded = (None,) * (len(shape) - len(axes)) + axes
            return self._fit(list(padded), shape)
        sizes = [n for n, axis in zip(before, axes, strict=True) if axis is not None]
        named = [axis for axis in axes if axis is not None]
        kept = [n for n in shape if not is_one(n)]
        if len(kept) != len(sizes) or not all(same(a, b) for a, b in zip(kept, sizes, strict=True)):
            raise DoesNotFuse(f"a view reshapes {list(before)} to {list(shape)} between operators")
        rest = iter(named)
        return tuple(None if is_one(n) else next(rest) for n in shape)

    def _fit(self, axes: list[int | None], shape: Sequence[Size]) -> Axes:
        """Finds axes for dimensions that have none yet: of the same size, not used by another."""
        for dim in range(len(shape) - 1, -1, -1):
            if axes[dim] is None and not is_one(shape[dim]):
                free = [a for a in range(len(self.domain)) if a not in axes and same(self.domain[a], shape[dim])]
                if not free:
                    raise DoesNotFuse(f"shape {list(shape)} does not fit the loops over {self.domain}")
                axes[dim] = free[-1]
        return tuple(axes)

    def _axes_of_pointwise(self, node: Node) -> Axes:
        shape = tensor_of(node).shape
        axes: list[int | None] = [None] * len(shape)
        for operand, _ in _operands(node):
            inside = self.axes_of(operand)
            if inside is None:
                continue
            if node.target is CONCATENATION:
                raise DoesNotFuse("concatenates what the kernel itself computes")
            for dim, axis in enumerate(inside, len(shape) - len(inside)):
                if axis is not None and axes[dim] not in (None, axis):
                    raise DoesNotFuse("two operands run over different axes")
                axes[dim] = axis if axis is not None else axes[dim]
        if not self.nodes:
            self.domain = [n for n in shape if not is_one(n)]
            numbers = iter(range(len(self.domain)))
            return tuple(None if is_one(n) else next(numbers) for n in shape)
        fitted = self._fit(axes, shape)
        self._require_whole({a for a in fitted if a is not None})
        return fitted

    def _require_whole(self, used: set[int]) -> None:
        everything = set(range(len(self.domain)))
        if used not in (everything, everything - (self.reduced or frozenset())):
            raise DoesNotFuse("runs over some of the axes only")

    def _axes_of_reduction(self, node: Node) -> Axes:
        operand = node.args[0]
        assert isinstance(operand, Node)
        shape = tensor_of(operand).shape
        inside = self.axes_of(operand)
        if inside is None:
            if self.nodes:
                raise DoesNotFuse("reduces a tensor that is in memory")
            self.domain = [n for n in shape if not is_one(n)]
            numbers = iter(range(len(self.domain)))
            inside = tuple(None if is_one(n) else next(numbers) for n in shape)
        dims = reduced_dims(node, len(shape))
        folded = frozenset(axis for d in dims if (axis := inside[d]) is not None)
        if self.reduced not in (None, folded):
            raise DoesNotFuse("reduces over other axes than the kernel does")
        if not folded:
            raise DoesNotFuse("reduces dimensions of size 1 only")
        if not folded <= {a for a in inside if a is not None}:
            raise DoesNotFuse("reduces a value that is reduced already")
        self.reduced = folded
        self._require_whole({a for a in inside if a is not None})
        for member in self.nodes:
            self._require_whole({a for a in self.axes[member] if a is not None})
        if len(tensor_of(node).shape) == len(shape):
            return tuple(None if d in dims else axis for d, axis in enumerate(inside))
        return tuple(axis for d, axis in enumerate(inside) if d not in dims)


def _permuted(node: Node, axes: Axes) -> Axes:
    rank = len(axes)
    arguments: Any = node.args
    if node.target is aten.permute.default:
        order = [d % rank for d in arguments[1]]
    else:
        order = list(range(rank))
        a, b = (0, -1) if node.target is aten.t.default else arguments[1:3]
        if rank > 1:
            order[a], order[b] = order[b], order[a]
    return tuple(axes[d] for d in order)


def _is_loaded(node: Node) -> bool:
    """Whether a kernel that takes the node reads memory: numbers and counts it computes itself."""
    created = node.target in CREATES or counts(through_views(node)) is not None
    return not created and isinstance(node.meta.get("val"), torch.Tensor)


def reduced_dims(node: Node, rank: int) -> set[int]:
    """The dimensions that a reduction folds."""
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if given is None or (isinstance(given, (list, tuple)) and not given):
        return set(range(rank))
    return {d % rank for d in (given if isinstance(given, (list, tuple)) else [given])} if rank else set()


def product_operands(node: Node) -> tuple[Node, Node]:
    """The row and the matrix that a node of :data:`PRODUCTS` multiplies."""
    arguments: Any = node.args
    first, second = PRODUCTS[node.target]
    return arguments[first], arguments[second]


def _operands(node: Node) -> list[tuple[Node, Node]]:
    """What a member reads, each with the operator that takes it: the node, or one that is computed in a part of it."""
    if node.target is not CONCATENATION:
        return [(operand, node) for operand in node.all_input_nodes]
    return [read for part in parts(node) for read in part.reads(node)]


Operand = Callable[[Node, Node, Part | None], Value]
"""The value of an operand as an operator takes it; in a part of a concatenation, where the loops are inside of it."""


def _lower_concatenation(builder: TileBuilder, node: Node, operand: Operand, axis: int) -> Value:
    """The part in which the index along an axis of the program lies."""
    dtype = tile_dtype(tensor_of(node).dtype).compute
    index = builder.index(axis, I32)
    value: Value | None = None
    for part in reversed(parts(node)):

        def operand_of_part(argument: Node, consumer: Node, _: Part | None, part: Part = part) -> Value:
            if is_in_a_part(argument) or argument.target in CREATES:
                return _lower_node(builder, argument, operand_of_part)
            return operand(argument, consumer, part)

        own = builder.cast(operand_of_part(part.value, node, None), dtype)
        value = own if value is None else builder.apply("where", index.apply("lt", part.high), own, value)
    assert value is not None
    return value


def _lower_node(builder: TileBuilder, node: Node, operand: Operand, cat_axis: int = 0) -> Value:
    """The node's value from those of its operands.

    Args:
        cat_axis: of the program, along which the node concatenates.

    Raises:
        DoesNotFuse: it has no tile instructions for this type.
    """
    if node.target is CONCATENATION:
        return _lower_concatenation(builder, node, operand, cat_axis)
    context_arguments: list[Any] = []

    def convert(argument: Any) -> Any:
        if not isinstance(argument, Node):
            context_arguments.append(argument)
            return argument
        value = argument.meta.get("val")
        context_arguments.append(value)
        if isinstance(value, torch.SymInt):
            raise DoesNotFuse("takes a number that is known only when it runs")
        if node.target in CREATES:  # the tensor that it makes another like is not read
            return None
        if argument.target in CREATES:
            return _lower_node(builder, argument, operand)
        if not isinstance(value, torch.Tensor):
            raise DoesNotFuse("takes an argument that is no tensor")
        return operand(argument, node, None)

    result = tensor_of(node)
    if result.is_complex() or result.is_sparse:
        raise DoesNotFuse(f"is {result.dtype}, {result.layout}")
    tile_dtype(result.dtype)
    arguments = [convert(a) for a in node.args]
    keywords = {k: convert(v) for k, v in node.kwargs.items()}
    context = Context(builder, result.dtype, context_arguments)
    try:
        if node.target in REDUCTIONS:
            count = 1
            shape = tensor_of(node.all_input_nodes[0]).shape
            for d in reduced_dims(node, len(shape)):
                count *= shape[d]
            if REDUCTIONS[node.target] == "mean" and not isinstance(count, int):
                raise DoesNotFuse("averages over a symbolic size")
            value = lower_reduction(context, REDUCTIONS[node.target], arguments[0], count)
        elif node.target in PRODUCTS:
            first, second = PRODUCTS[node.target]
            value = lower_product(
                context, arguments[first], arguments[second], arguments[0] if first else None, keywords
            )
        else:
            value = POINTWISE[node.target](context, *arguments, **keywords)
    except ValueError as error:
        raise DoesNotFuse(str(error)) from None
    return builder.cast(value, tile_dtype(result.dtype).compute)


@dataclass(frozen=True)
class TensorUse:
    """A tensor of the graph as a parameter of the group's kernel.

    Attributes:
        strides: in elements, one an axis.
        offset: elements from the tensor's first to the one with index 0, which a window may leave out.
        window: [low, high) of a parameter with one.
    """

    node: Node
    strides: tuple[int, ...]
    offset: int = 0
    window: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Lowered:
    """A group for given sizes."""

    program: TileProgram
    sizes: tuple[int, ...]
    uses: tuple[TensorUse, ...]  # one a parameter of the program


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
        self.stored = stored
        self.number_of = number_of
        self.sizes = [number_of(n) for n in group.domain]

    def lower(self) -> Lowered:
        reads = [
            (operand, self._read_strides(operand, consumer, node))
            for node in self.group.nodes
            for operand, consumer in self._outer_operands(node)
        ]
        counted = [strides for operand, strides in reads if not _is_loaded(operand)]
        reads = [(operand, strides) for operand, strides in reads if _is_loaded(operand)]
        writes = [(node, self._strides(node, self.group.axes[node])) for node in self.stored]
        uses = list(dict.fromkeys([*reads, *writes]))
        apart = [self._alone(self._cat_axis(n)) for n in self.group.nodes if n.target is CONCATENATION]
        order = _loop_order(self.sizes, [s for _, s in uses])
        all_strides = [*(s for _, s in uses), *counted, *apart]
        merged = _merge_axes(self.sizes, self.group.reduced or frozenset(), order, all_strides)
        builder = TileBuilder(
            _name(self.group), merged.parallel_names, merged.reduced_names, merged.choose_lanes(uses, len(writes))
        )
        parameters: list[TensorUse] = []
        values: dict[Node, Value] = {}
        for member in self.group.nodes:
            cat_axis = merged.axis_of(self._cat_axis(member)) if member.target is CONCATENATION else 0

            def operand(
                argument: Node, consumer: Node, part: Part | None, member: Node = member, cat_axis: int = cat_axis
            ) -> Value:
                base = through_views(argument)
                if base in values and part is None:
                    return values[base]
                strides = merged.apply(self._read_strides(argument, consumer, member))
                if counts(base) is not None:
                    return _count(builder, base, strides)
                use = TensorUse(argument, strides)
                if part is not None:
                    use = TensorUse(argument, strides, -part.low * strides[cat_axis], (part.low, part.high))
                if use not in parameters:
                    parameters.append(use)
                name, window = f"x{parameters.index(use)}", None if part is None else cat_axis
                dtype = tile_dtype(tensor_of(argument).dtype)
                return builder.load(name, dtype, [_kind(s) for s in strides], window)

            values[member] = _lower_node(builder, member, operand, cat_axis)
        for position, (node, strides) in enumerate(writes):
            merged_strides = merged.apply(strides)
            parameters.append(TensorUse(node, merged_strides))
            dtype = tile_dtype(tensor_of(node).dtype)
            builder.store(f"out{position}", values[node], dtype, [_kind(s) for s in merged_strides])
        return Lowered(builder.build(), merged.sizes, tuple(parameters))

    def _outer_operands(self, node: Node) -> list[tuple[Node, Node]]:
        """Tensors that no member computes, each with the operator that takes it."""
        outer = [(a, consumer) for a, consumer in _operands(node) if self.group.axes_of(a) is None]
        return [(a, c) for a, c in outer if _is_loaded(a) or counts(through_views(a)) is not None]

    def _cat_axis(self, concatenation: Node) -> int:
        axis = self.group.axes[concatenation][dimension(concatenation)]
        assert axis is not None
        return axis

    def _alone(self, axis: int) -> tuple[int, ...]:
        """Strides that let an axis merge with no other: windows are intervals of it."""
        return tuple(int(a == axis) for a in range(len(self.sizes)))

    def _read_strides(self, operand: Node, consumer: Node, member: Node) -> tuple[int, ...]:
        """Strides along the domain's axes of what a member, or an operator in a part of it, takes from memory."""
        consumer_axes = self.group.axes[member]
        if consumer.target in PRODUCTS and operand in product_operands(consumer):
            consumer_axes = (None, 1) if operand is product_operands(consumer)[0] else (1, 0)
        if consumer.target in REDUCTIONS:
            numbers = iter(range(len(self.sizes)))
            shape = tensor_of(operand).shape
            consumer_axes = tuple(None if is_one(n) else next(numbers) for n in shape)
        rank = len(tensor_of(operand).shape)
        return self._strides(operand, consumer_axes[len(consumer_axes) - rank :])

    def _strides(self, node: Node, axes: Axes) -> tuple[int, ...]:
        tensor = tensor_of(node)
        strides = [0] * len(self.sizes)
        for size, stride, axis in zip(tensor.shape, tensor.stride(), axes, strict=True):
            if axis is not None and not is_one(size):
                strides[axis] = self.number_of(stride)
        return tuple(strides)


def _count(builder: TileBuilder, count: Node, strides: Sequence[int]) -> Value:
    """The element of a count at the point of the loops, in the type of its values."""
    start, step = counts(count) or (0, 1)
    value = builder.constant(start, I64)
    for axis, stride in enumerate(strides):
        if stride:
            index = builder.index(axis)
            value = value.apply("add", index if stride * step == 1 else index.apply("mul", stride * step))
    return builder.cast(value, tile_dtype(tensor_of(count).dtype).compute)


def _kind(stride: int) -> Stride:
    return {0: Stride.ZERO, 1: Stride.ONE}.get(stride, Stride.ANY)


@dataclass(frozen=True)
class _MergedAxes:
    """How the axes of a domain become those of a program: parallel ones first, neighbours merged."""

    runs: tuple[tuple[int, ...], ...]  # axes of the domain that are one of the program
    sizes: tuple[int, ...]
    reduced: tuple[bool, ...]

    @property
    def parallel_names(self) -> list[str]:
        return [f"a{i}" for i, reduced in enumerate(self.reduced) if not reduced]

    @property
    def reduced_names(self) -> list[str]:
        return [f"a{i}" for i, reduced in enumerate(self.reduced) if reduced]

    def apply(self, strides: Sequence[int]) -> tuple[int, ...]:
        """Strides along the program's axes: those of the innermost axis of each run."""
        return tuple(strides[run[-1]] if run else 0 for run in self.runs)

    def axis_of(self, axis: int) -> int:
        """The program's axis that an axis of the domain is part of."""
        return next(i for i, run in enumerate(self.runs) if axis in run)

    def _elements(self, strides: Sequence[int]) -> int:
        count = 1
        for size, stride in zip(self.sizes, strides, strict=True):
            count *= size if stride else 1
        return count

    def choose_lanes(self, uses: Sequence[tuple[Node, tuple[int, ...]]], writes: int) -> str:
        """The axis along which most elements have neighbours; later ones win, as they are the inner loops.

        Without reductions what is written counts twice: storing apart costs more than loading apart.
        """
        last_reduced = max((i for i, r in enumerate(self.reduced) if r), default=-1)
        merged = [self.apply(strides) for _, strides in uses]
        weights = [self._elements(strides) for strides in merged]
        if last_reduced < 0:
            weights[len(merged) - writes :] = [2 * w for w in weights[len(merged) - writes :]]

        def score(axis: int) -> tuple[int, int]:
            return sum(w for w, strides in zip(weights, merged, strict=True) if strides[axis] == 1), axis

        candidates = [i for i, reduced in enumerate(self.reduced) if not reduced or i == last_reduced]
        return f"a{max(candidates, key=score)}"


def _loop_order(sizes: Sequence[int], all_strides: Sequence[Sequence[int]]) -> list[int]:
    """The axes as the largest tensor lies in memory, outermost first; of several the last, which is written."""

    def elements(number: int) -> tuple[int, int]:
        return math.prod(n for n, s in zip(sizes, all_strides[number], strict=True) if s), number

    if not all_strides:
        return list(range(len(sizes)))
    largest = all_strides[max(range(len(all_strides)), key=elements)]
    return sorted(range(len(sizes)), key=lambda axis: -largest[axis])


def _merge_axes(
    sizes: Sequence[int], reduced: frozenset[int], order: Sequence[int], all_strides: Sequence[Sequence[int]]
) -> _MergedAxes:
    """Parallel axes, then reduced ones; neighbours are one where all tensors step through them as through one."""
    runs: list[tuple[int, ...]] = []
    for axis in sorted(order, key=lambda axis: axis in reduced):
        if sizes[axis] == 1 and axis not in reduced:
            continue
        if runs and (runs[-1][-1] in reduced) == (axis in reduced):
            outer = runs[-1][-1]
            if all(s[outer] == s[axis] * sizes[axis] for s in all_strides):
                runs[-1] = (*runs[-1], axis)
                continue
        runs.append((axis,))
    if not runs:
        return _MergedAxes(((),), (1,), (False,))
    products = []
    for run in runs:
        product = 1
        for axis in run:
            product *= sizes[axis]
        products.append(product)
    return _MergedAxes(tuple(runs), tuple(products), tuple(run[-1] in reduced for run in runs))


def _name(group: Group) -> str:
    """Names of the operators, as far as they fit."""
    parts: list[str] = []
    for node in group.nodes:
        part = str(node.target).split(".")[-2].strip("_")
        if not parts or parts[-1] != part:
            parts.append(part)
    return "fused_" + "_".join(parts)[:60].rstrip("_")
