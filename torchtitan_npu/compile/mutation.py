"""Tensors of which a graph changes a part, such as a cache of keys: written where they lie.

AOTAutograd makes the graph functional: ``cache.index_copy_(…)`` is a new tensor of the cache's size, which a ``copy_``
behind everything else brings back into the input. Here the operator writes into the input itself, and the copy is gone;
likewise where nobody needs an intermediate tensor as it was. What kernels compute anew as a whole they write into
inputs by themselves (:mod:`torchtitan_npu.compile.reuse`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from torchtitan_npu.compile.concatenation import is_in_a_part
from torchtitan_npu.compile.passes import escapes, tensor
from torchtitan_npu.compile.reshapes import same
from torchtitan_npu.compile.views import gives_new_memory, is_view, may_alias, memory_of

aten = torch.ops.aten

_library = torch.library.Library("torchtitan_npu", "FRAGMENT")
_library.define(
    "slice_copy_(Tensor(a!) self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1)"
    " -> Tensor(a!)"
)
_library.define("select_copy_(Tensor(a!) self, Tensor src, int dim, SymInt index) -> Tensor(a!)")
_library.define("after_(Tensor(a!) self, Tensor written) -> Tensor(a!)")


@torch.library.impl(_library, "slice_copy_", "CompositeExplicitAutograd")
def _slice_copy_(
    self: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    aten.slice(self, dim, start, end, step).copy_(src)
    return self


@torch.library.impl(_library, "select_copy_", "CompositeExplicitAutograd")
def _select_copy_(self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    self.select(dim, index).copy_(src)
    return self


@torch.library.impl(_library, "after_", "CompositeExplicitAutograd")
def _after_(self: Tensor, written: Tensor) -> Tensor:
    """The tensor, when a part of it has been written."""
    return self


AFTER = torch.ops.torchtitan_npu.after_.default
IN_PLACE: dict[Any, Any] = {
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_put.default: aten.index_put_.default,
    aten._unsafe_index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_fill.int_Scalar: aten.index_fill_.int_Scalar,
    aten.index_fill.int_Tensor: aten.index_fill_.int_Tensor,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter_reduce.two: aten.scatter_reduce_.two,
    aten.masked_scatter.default: aten.masked_scatter_.default,
    aten.slice_scatter.default: torch.ops.torchtitan_npu.slice_copy_.default,
    aten.select_scatter.default: torch.ops.torchtitan_npu.select_copy_.default,
}
"""Operators that change a part of their first operand, and what does so in place."""
_WRITING = frozenset(IN_PLACE.values())
_VIEW_OF: dict[Any, Any] = {aten.slice_scatter.default: aten.slice.Tensor, aten.select_scatter.default: aten.select.int}
"""The view that an operator puts its second operand in place of."""


@dataclass(frozen=True)
class _Write:
    """An operator that can write in place, and what it overwrites: the input, or what an earlier one made of it."""

    node: Node
    version: Node
    inner: Node | None = None  # has written the part that the node would put in its place


def write_in_place(graph: Graph) -> int:
    """Operators of :data:`IN_PLACE` write into what they change, where nobody needs it as it was any more.

    That is an input into which the result is copied in the end, or a tensor that the graph made.
    """
    position = {node: number for number, node in enumerate(graph.nodes)}
    written = 0
    for change in [node for node in graph.nodes if node.target is aten.copy_.default]:
        writes = _writes(change)
        if writes and not escapes(writes[-1].node) and _in_order(writes, change, position):
            written += _write(writes)
            change.replace_all_uses_with(writes[-1].node)
            graph.erase_node(change)
    for node in [node for node in graph.nodes if node.target in IN_PLACE]:
        write = _Write(node, node.args[0])
        if _is_made_here(write.version) and _in_order([write], None, position):
            written += _write([write])
    return written


def _write(writes: list[_Write]) -> int:
    """Turns operators into what writes in place; returns how many."""
    for write in writes:
        if write.inner is None:
            write.node.target = IN_PLACE[write.node.target]
        else:
            write.node.target, write.node.args = AFTER, (write.version, write.inner)
    return sum(write.inner is None for write in writes)


def _is_made_here(node: Node) -> bool:
    """Whether a tensor is the graph's own, as a whole."""
    if node.target in _WRITING:
        return _is_made_here(node.args[0])  # type: ignore[arg-type]
    return node.op == "call_function" and gives_new_memory(node)


def _writes(change: Node) -> list[_Write]:
    """The operators that make an input's new value out of the old one, in order; empty if others take part."""
    base, value = change.args[:2]
    before, after = tensor(base), tensor(value)
    if not isinstance(base, Node) or base.op != "placeholder" or before is None or after is None:
        return []
    if before.dtype != after.dtype or not all(same(a, b) for a, b in zip(before.shape, after.shape, strict=True)):
        return []
    found: list[_Write] = []
    while value is not base:
        if not isinstance(value, Node) or value.target not in IN_PLACE:
            return []
        found += _backwards(value, value.args[0])  # type: ignore[arg-type]
        value = value.args[0]
    return found[::-1]


def _backwards(node: Node, version: Node) -> Iterator[_Write]:
    """The node, and before it what computes the part of a version that the node puts in its place."""
    inner = node.args[1] if node.target in _VIEW_OF else None
    if isinstance(inner, Node) and inner.target in IN_PLACE and list(inner.users) == [node]:
        view = inner.args[0]
        assert isinstance(view, Node)
        if view.target is _VIEW_OF.get(node.target) and view.args == (node.args[0], *node.args[2:]):
            yield _Write(node, version, inner)
            yield from _backwards(inner, version)
            return
    yield _Write(node, version)


def _in_order(writes: list[_Write], change: Node | None, position: dict[Node, int]) -> bool:
    """Whether all others that read what is overwritten come before, and no operator reads it in another way itself."""
    versions = {w.version for w in writes} | {w.node for w in writes}
    chain = {w.node for w in writes} | {change}
    for write in (w for w in writes if w.inner is None):
        node = write.node
        if any(memory_of(value) in versions for value in _nodes_in((node.args[1:], node.kwargs))):
            return False
        for reader in readers(write.version):
            if reader in chain:
                continue
            if reader.op == "output" or position[reader] > position[node] or may_alias(reader) or is_in_a_part(reader):
                return False
    return True


def _nodes_in(arguments: Any) -> list[Node]:
    found: list[Node] = []
    map_arg(arguments, found.append)
    return found


def readers(node: Node) -> Iterator[Node]:
    """Who takes a tensor or a view of it."""
    for user in node.users:
        if is_view(user):
            yield from readers(user)
        else:
            yield user


def must_precede(node: Node) -> list[Node]:
    """Who has to have read what an operator of :func:`write_in_place` overwrites."""
    if node.target not in _WRITING:
        return []
    version = memory_of(node.args[0])  # type: ignore[arg-type]
    return [reader for reader in readers(version) if reader is not node and reader.target is not AFTER]
