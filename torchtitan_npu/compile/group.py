"""A group of nodes that becomes one tile program.

A group has a domain, the axes of its loops. Every member's dimensions are mapped to them, so that a row's mean and the
row itself meet in one loop nest. A node joins if its dimensions can be mapped; if not, :class:`DoesNotFuse` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from graph_autofusion.dtypes import I32
from graph_autofusion.program import Stride, TileBuilder, Value
from torchtitan_npu.compile.concatenation import CONCATENATION, Part, inside, is_in_a_part, parts
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
            trial = lower_node(self._trial, node, self._trial_operand)
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
        return [a for a, _ in operands_of(node) if self.axes_of(a) is None and is_loaded(a)]

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
        for operand, _ in operands_of(node):
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


def is_loaded(node: Node) -> bool:
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


def operands_of(node: Node) -> list[tuple[Node, Node]]:
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
                return lower_node(builder, argument, operand_of_part)
            return operand(argument, consumer, part)

        own = builder.cast(operand_of_part(part.value, node, None), dtype)
        value = own if value is None else builder.apply("where", index.apply("lt", part.high), own, value)
    assert value is not None
    return value


def lower_node(builder: TileBuilder, node: Node, operand: Operand, cat_axis: int = 0) -> Value:
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
            return lower_node(builder, argument, operand)
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
