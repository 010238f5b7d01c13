"""A group of nodes that becomes one tile program.

A group has a domain, the axes of its loops. Every member's dimensions are mapped to them, so that a row's mean and the
row itself meet in one loop nest. A view between two members that splits a dimension cuts the axis that runs through it;
one that joins dimensions gives runs of axes. A node joins if its dimensions can be mapped; if not,
:class:`DoesNotFuse` says why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from graph_autofusion.program import Stride, TileBuilder, Value
from torchtitan_npu.compile.concatenation import CONCATENATION, Part, dimension, inside
from torchtitan_npu.compile.gathering import GATHERS, gather_of
from torchtitan_npu.compile.lowering import REDUCTIONS, DoesNotFuse, tile_dtype
from torchtitan_npu.compile.nodes import (
    PRODUCTS,
    is_loaded,
    lower_node,
    operands_of,
    product_operands,
    reduced_dims,
    tensor_of,
)
from torchtitan_npu.compile.reshapes import Size, is_one, regroup, same
from torchtitan_npu.compile.views import has_one_user, through_views

aten = torch.ops.aten
Axes = tuple[tuple[int, ...], ...]
"""For each dimension the axes of the domain that run through it, outermost first; none for one of size 1."""

MOST_NODES = 48
MOST_TENSORS = 24


class Group:
    """Nodes in one loop nest, over the dimensions of a shape or, without one, of the first node."""

    def __init__(self, number: int, shape: Sequence[Size] = ()) -> None:
        self.number = number
        self.nodes: list[Node] = []
        self.domain: list[Size] = [n for n in shape if not is_one(n)]
        self.reduced: frozenset[int] | None = None  # axes that the group's reductions fold
        self.axes: dict[Node, Axes] = {}
        self.read_axes: dict[tuple[Node, Node], Axes] = {}  # of (member, operand) that does not lie as its result does
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
        before = self.domain, self.reduced, self.axes, self.read_axes
        self.axes, self.read_axes = dict(self.axes), dict(self.read_axes)
        try:
            axes = self._axes(node)
            tensors = self.tensors | set(self._outside(node))
            if len(tensors) > MOST_TENSORS:
                raise DoesNotFuse(f"the kernel would read more than {MOST_TENSORS} tensors")
            trial = self._trial_value(node)
        except DoesNotFuse:
            self.domain, self.reduced, self.axes, self.read_axes = before
            raise
        self.axes[node], self._values[node], self.tensors = axes, trial, tensors
        self.nodes.append(node)

    def operators(self) -> list[Node]:
        """Members, and what is computed in the parts of concatenations."""
        return [o for n in self.nodes for o in (*(inside(n) if n.target is CONCATENATION else ()), n)]

    def _trial_value(self, node: Node) -> Value:
        if node.target in GATHERS:
            return self._trial.load(node.name, tile_dtype(tensor_of(node).dtype), (Stride.ANY,))
        return lower_node(self._trial, node, self._trial_operand)

    def _trial_operand(self, node: Node, consumer: Node, part: Part | None = None) -> Value:
        member = through_views(node)
        if member in self._values:
            return self._values[member]
        return self._trial.load(node.name, tile_dtype(tensor_of(node).dtype), (Stride.ANY,))

    def _outside(self, node: Node) -> list[Node]:
        """Tensor operands that come from memory."""
        return [a for a, _ in operands_of(node) if not self.computes(a) and is_loaded(a)]

    def _axes(self, node: Node) -> Axes:
        if node.target in REDUCTIONS:
            return self._axes_of_reduction(node)
        if node.target in GATHERS:
            return self._axes_of_gather(node)
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
        self.read_axes |= {(node, left): ((), (1,)), (node, right): ((1,), (0,))}
        return ((), (0,))

    def _axes_of_gather(self, node: Node) -> Axes:
        """Of rows of a table: the table and its indices run through some of the result's dimensions each."""
        gather = gather_of(node)
        if self.computes(gather.table) or any(self.computes(i.node) for i in gather.indices):
            raise DoesNotFuse("reads a table that the kernel itself computes, or by indices that it computes")
        shape = tensor_of(node).shape
        axes = self._fit_anywhere(shape) if self._has_loops() else self._found(shape)
        if not has_one_user(node):  # which is in the kernel: rows that it shares among others are read, not stored
            self._require_whole(set(_flat(axes)))
        self.read_axes[node, gather.table] = tuple(() if d is None else axes[d] for d in gather.table_dims)
        for index in gather.indices:
            self.read_axes[node, index.node] = tuple(axes[d] for d in index.dims)
        return axes

    # ---- dimensions

    def _has_loops(self) -> bool:
        return bool(self.nodes or self.domain)

    def computes(self, node: Node) -> bool:
        """Whether a node is a member or a view of one."""
        return through_views(node) in self.axes

    def _axes_inside(self, node: Node) -> Axes | None:
        """The axes of a member or of a view of one, for which axes may be cut; None for what comes from elsewhere."""
        if not self.computes(node) or node in self.axes:
            return self.axes.get(node)
        base = node.args[0]
        assert isinstance(base, Node)
        axes = self._axes_inside(base)
        assert axes is not None
        return self._through_view(node, base, axes)

    def _through_view(self, node: Node, base: Node, axes: Axes) -> Axes:
        shape, before = tensor_of(node).shape, tensor_of(base).shape
        if node.target in (aten.permute.default, aten.transpose.int, aten.t.default):
            return _permuted(node, axes)
        if node.target is aten.expand.default:
            padded: Axes = ((),) * (len(shape) - len(axes)) + axes
            return self._fit(list(padded), shape)
        regrouped = self._regroup(_flat(axes), shape)
        if regrouped is None:
            raise DoesNotFuse(f"a view reshapes {list(before)} to {list(shape)} between operators")
        return regrouped

    def _regroup(self, through: Sequence[int], shape: Sequence[Size]) -> Axes | None:
        """Axes for the dimensions of a shape that runs through some axes, one behind the other; None if it cannot."""
        found = regroup([self.domain[a] for a in through], [n for n in shape if not is_one(n)])
        if found is None:
            return None
        pieces, counts = found
        cut = self._cut({axis: sizes for axis, sizes in zip(through, pieces, strict=True) if len(sizes) > 1})
        rest, taken = iter([piece for axis in through for piece in cut[axis]]), iter(counts)
        return tuple(() if is_one(n) else tuple(next(rest) for _ in range(next(taken))) for n in shape)

    def _cut(self, sizes: dict[int, list[Size]]) -> dict[int, tuple[int, ...]]:
        """Replaces axes by several; what each axis has become."""
        for member in self.nodes:
            if member.target is CONCATENATION and sizes.keys() & self.axes[member][dimension(member)]:
                raise DoesNotFuse("a view splits the dimension along which the kernel concatenates")
        became: dict[int, tuple[int, ...]] = {}
        domain: list[Size] = []
        for axis, size in enumerate(self.domain):
            pieces = sizes.get(axis, [size])
            became[axis] = tuple(range(len(domain), len(domain) + len(pieces)))
            domain += pieces

        def renamed(axes: Axes) -> Axes:
            return tuple(tuple(piece for axis in run for piece in became[axis]) for run in axes)

        if sizes:
            self.domain = domain
            self.axes = {member: renamed(axes) for member, axes in self.axes.items()}
            self.read_axes = {read: renamed(axes) for read, axes in self.read_axes.items()}
            if self.reduced is not None:
                self.reduced = frozenset(piece for axis in self.reduced for piece in became[axis])
        return became

    def _fit(self, axes: list[tuple[int, ...]], shape: Sequence[Size]) -> Axes:
        """Finds axes for dimensions that have none yet: of the same size together, not used by another."""
        for dim in range(len(shape) - 1, -1, -1):
            if not axes[dim] and not is_one(shape[dim]):
                axes[dim] = self._free_run(set(_flat(axes)), shape[dim])
                if not axes[dim]:
                    raise DoesNotFuse(f"shape {list(shape)} does not fit the loops over {self.domain}")
        return tuple(axes)

    def _free_run(self, used: set[int], size: Size) -> tuple[int, ...]:
        """The last axis, or the last run of neighbours, of a size and not used; empty if there is none."""
        count = len(self.domain)
        for length in range(1, count + 1):
            for first in range(count - length, -1, -1):
                run = range(first, first + length)
                if used.isdisjoint(run) and same(math.prod(self.domain[a] for a in run), size):
                    return tuple(run)
        return ()

    def _axes_of_pointwise(self, node: Node) -> Axes:
        shape = tensor_of(node).shape
        operands = [operand for operand, _ in operands_of(node) if self.computes(operand)]
        if not self._has_loops():
            return self._found(shape)
        if operands and node.target is CONCATENATION:
            raise DoesNotFuse("concatenates what the kernel itself computes")
        for operand in operands:
            self._axes_inside(operand)  # cuts all that are to be cut before the first is used
        axes: list[tuple[int, ...]] = [()] * len(shape)
        for operand in operands:
            inside = self._axes_inside(operand) or ()
            for dim, run in enumerate(inside, len(shape) - len(inside)):
                if run and axes[dim] not in ((), run):
                    raise DoesNotFuse("two operands run over different axes")
                axes[dim] = run or axes[dim]
        fitted = self._fit_anywhere(shape) if not operands else self._fit(axes, shape)
        self._require_whole(set(_flat(fitted)))
        if node.target is CONCATENATION and len(fitted[dimension(node)]) != 1:
            raise DoesNotFuse("concatenates along a dimension that a view splits or joins")
        return fitted

    def _found(self, shape: Sequence[Size]) -> Axes:
        """The axes of the first tensor: one a dimension."""
        self.domain = [n for n in shape if not is_one(n)]
        numbers = iter(range(len(self.domain)))
        return tuple(() if is_one(n) else (next(numbers),) for n in shape)

    def _fit_anywhere(self, shape: Sequence[Size]) -> Axes:
        """Axes for a tensor that takes nothing of the kernel's."""
        try:
            return self._fit([()] * len(shape), shape)
        except DoesNotFuse:
            regrouped = self._regroup(range(len(self.domain)), shape)
            if regrouped is None:
                raise
            return regrouped

    def _require_whole(self, used: set[int]) -> None:
        everything = set(range(len(self.domain)))
        if used not in (everything, everything - (self.reduced or frozenset())):
            raise DoesNotFuse("runs over some of the axes only")

    def _axes_of_reduction(self, node: Node) -> Axes:
        operand = node.args[0]
        assert isinstance(operand, Node)
        shape = tensor_of(operand).shape
        inside = self._axes_inside(operand)
        if inside is None:
            if self.nodes:
                raise DoesNotFuse("reduces a tensor that is in memory")
            inside = self.read_axes[node, operand] = self._found(shape)
        dims = reduced_dims(node, len(shape))
        folded = frozenset(axis for d in dims for axis in inside[d])
        if self.reduced not in (None, folded):
            raise DoesNotFuse("reduces over other axes than the kernel does")
        if not folded:
            raise DoesNotFuse("reduces dimensions of size 1 only")
        self.reduced = folded
        self._require_whole(set(_flat(inside)))
        for member in self.nodes:
            if member.target not in GATHERS:
                self._require_whole(set(_flat(self.axes[member])))
        if len(tensor_of(node).shape) == len(shape):
            return tuple(() if d in dims else run for d, run in enumerate(inside))
        return tuple(run for d, run in enumerate(inside) if d not in dims)


def _flat(axes: Sequence[tuple[int, ...]]) -> list[int]:
    return [axis for run in axes for axis in run]


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
