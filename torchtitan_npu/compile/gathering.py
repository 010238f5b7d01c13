"""Tables that a kernel reads by indices from memory: embedding, index, index_select and gather.

A kernel cannot raise. So before it an operator looks the same indices up in a table that is one element everywhere, and
raises as the operator would that the kernel stands for. The kernel itself holds each index within the table, so that
whatever becomes of the error, no other memory is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from graph_autofusion.program import Value
from torchtitan_npu.compile.lowering import CREATES, DTYPES, DoesNotFuse
from torchtitan_npu.compile.reshapes import Size, is_one, same
from torchtitan_npu.compile.views import counts, through_views

aten = torch.ops.aten

GATHERS = {aten.embedding.default, aten.index.Tensor, aten.index_select.default, aten.gather.default}


@dataclass(frozen=True)
class Index:
    """One index of a gather.

    Attributes:
        node: the tensor of indices.
        dims: for each of its dimensions the result's.
        through: the dimension of the table that it goes through.
    """

    node: Node
    dims: tuple[int, ...]
    through: int


@dataclass(frozen=True)
class Check:
    """An operator before the kernel: it raises for indices that the table does not have.

    Attributes:
        index: what the indices are views of: each is looked up once.
        through: the dimension of the table.
        size: of it.
        wraps: negative indices count from the end.
    """

    index: Node
    through: int
    size: Size
    wraps: bool

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for checks that raise for the same indices."""
        return self.index, self.through, str(self.size), self.wraps


@dataclass(frozen=True)
class Gather:
    """How a node reads a table.

    Attributes:
        table_dims: for each dimension of the table the result's that runs through it; None where an index does.
        wraps: negative indices count from the end.
    """

    table: Node
    table_dims: tuple[int | None, ...]
    indices: tuple[Index, ...]
    wraps: bool

    def size(self, index: Index) -> Size:
        """Of the dimension that an index goes through."""
        return self.table.meta["val"].shape[index.through]

    def checks(self) -> list[Check]:
        """Of the indices that are not known to be in the table."""
        return [
            Check(through_views(i.node), i.through, self.size(i), self.wraps)
            for i in self.indices
            if counts(through_views(i.node)) is None
        ]


def gather_of(node: Node) -> Gather:
    """How a node of :data:`GATHERS` reads its table.

    Raises:
        DoesNotFuse: it does so in a way that kernels do not have.
    """
    arguments: Any = node.args
    table = arguments[0].meta["val"]
    if node.target is aten.embedding.default:
        last = arguments[1].meta["val"].dim()
        gather = Gather(arguments[0], (None, last), (Index(arguments[1], tuple(range(last)), 0),), False)
    elif node.target is aten.index.Tensor:
        gather = _index(arguments[0], arguments[1])
    else:
        through = arguments[1] % max(table.dim(), 1)
        whole = node.target is aten.gather.default
        dims = tuple(range(table.dim())) if whole else (through,)
        rest = tuple(None if d == through else d for d in range(table.dim()))
        gather = Gather(arguments[0], rest, (Index(arguments[2], dims, through),), False)
    _require_fit(gather, node.meta["val"])
    return gather


def _index(table: Node, given: Sequence[Node | None]) -> Gather:
    """The broadcast indices' dimensions stand where the first index does if all are neighbours, else they are first."""
    indices = [(dim, node) for dim, node in enumerate(given) if node is not None]
    if any(node.meta["val"].dtype not in (torch.int64, torch.int32) for _, node in indices):
        raise DoesNotFuse("reads a table by a mask")
    indexed = [dim for dim, _ in indices]
    rank = max(node.meta["val"].dim() for _, node in indices)
    neighbours = indexed[-1] - indexed[0] == len(indexed) - 1
    start = indexed[0] if neighbours else 0
    dims: list[int | None] = []
    rest = [d for d in range(table.meta["val"].dim() - len(indexed) + rank) if not start <= d < start + rank]
    left = iter(rest)
    for dim in range(table.meta["val"].dim()):
        dims.append(None if dim in indexed else next(left))
    own = [Index(n, tuple(range(start + rank - n.meta["val"].dim(), start + rank)), dim) for dim, n in indices]
    return Gather(table, tuple(dims), tuple(own), True)


def _require_fit(gather: Gather, result: torch.Tensor) -> None:
    table = gather.table.meta["val"]
    if table.dtype not in DTYPES or any(same(n, 0) for n in table.shape):
        raise DoesNotFuse(f"reads a table of {table.dtype}, {list(table.shape)}")
    for index in gather.indices:
        value = index.node.meta["val"]
        whole_numbers = value.dtype in (torch.int64, torch.int32)
        if not whole_numbers or index.node is gather.table or len(index.dims) != value.dim():
            raise DoesNotFuse("reads a table in a way that kernels do not")
        if index.node.target in CREATES:
            raise DoesNotFuse("reads a table by indices that no tensor in memory has")
        if counts(through_views(index.node)) is not None:
            _require_counted_in_table(gather, index)
    covered = {d for i in gather.indices for d in _own_dims(i)}
    if not any(d not in covered and not is_one(n) for d, n in enumerate(result.shape)):
        raise DoesNotFuse("reads a table by as many indices as results, and to check them takes as long as to read")


def _own_dims(index: Index) -> list[int]:
    """Dimensions of the result along which the indices differ."""
    value = index.node.meta["val"]
    sizes = zip(index.dims, value.shape, value.stride(), strict=True)
    return [d for d, size, stride in sizes if not is_one(size) and not same(stride, 0)]


def _require_counted_in_table(gather: Gather, index: Index) -> None:
    base = through_views(index.node)
    start, step = counts(base) or (0, 1)
    last = start + step * (base.meta["val"].numel() - 1)
    low, high = (start, last) if step >= 0 else (last, start)
    if not (statically_known_true(low >= 0) and statically_known_true(high < gather.size(index))):
        raise DoesNotFuse("reads a table by a count that is not known to end within it")


def held_within(index: Value, size: Value, wraps: bool) -> Value:
    """The index, and for one that the table of ``size`` does not have its first or last."""
    if wraps:
        index = index.builder.apply("where", index.apply("lt", 0), index + size, index)
    return index.apply("maximum", 0).apply("minimum", size.apply("sub", 1))
