"""Concatenation inside a kernel: each part is read, or computed, where the loops are inside of it.

What only a concatenation takes (the minus of a rotated half) is computed in the concatenation's kernel. All lanes
compute all parts, so parts are few and short.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx import Node

from torchtitan_npu.compile.lowering import CREATES, DTYPES, POINTWISE, REDUCTIONS
from torchtitan_npu.compile.views import VIEWS, counts, through_views

CONCATENATION = torch.ops.aten.cat.default
INT32_MAX = (1 << 31) - 1
MOST_PARTS = 4
MOST_DEPTH = 3
"""Operators one behind the other in a part."""


@dataclass(frozen=True)
class Part:
    """An operand, and the indices [low, high) of the result's dimension where it lies."""

    value: Node
    low: int
    high: int

    def reads(self, consumer: Node) -> Iterator[tuple[Node, Node]]:
        """Tensors in memory that it is computed from, each with the operator that takes it."""
        yield from _reads(self.value, consumer)


def _reads(value: Node, consumer: Node) -> Iterator[tuple[Node, Node]]:
    if is_in_a_part(value):
        for operand in value.all_input_nodes:
            yield from _reads(operand, value)
    elif value.target not in CREATES:
        yield value, consumer


def inside(concatenation: Node) -> list[Node]:
    """The operators that are computed in its parts, in no order."""
    found: dict[Node, None] = {}
    waiting = list(concatenation.all_input_nodes)
    while waiting:
        node = waiting.pop()
        if is_in_a_part(node):
            found[node] = None
            waiting += node.all_input_nodes
    return list(found)


def dimension(concatenation: Node) -> int:
    """Along which the parts lie one behind the other."""
    dim = concatenation.args[1] if len(concatenation.args) > 1 else concatenation.kwargs.get("dim", 0)
    assert isinstance(dim, int)
    return dim % concatenation.meta["val"].dim()


def parts(concatenation: Node) -> list[Part]:
    """The operands of a concatenation that :func:`is_fusible`."""
    dim, low, found = dimension(concatenation), 0, []
    for value in concatenation.args[0]:  # type: ignore[union-attr]
        high = low + value.meta["val"].shape[dim]  # type: ignore[union-attr]
        found.append(Part(value, low, high))  # type: ignore[arg-type]
        low = high
    return found


def is_fusible(node: Node) -> bool:
    """Whether a node is a concatenation that a kernel can do, and work is there for the kernel to do beside it."""
    if node.target is not CONCATENATION:
        return False
    operands = node.args[0]
    result = node.meta.get("val")
    assert isinstance(operands, (list, tuple))
    if not isinstance(result, torch.Tensor) or not 2 <= len(operands) <= MOST_PARTS or result.dtype not in DTYPES:
        return False
    dim = dimension(node)
    if not isinstance(result.shape[dim], int) or result.shape[dim] > INT32_MAX:
        return False
    for operand in operands:
        value = operand.meta.get("val") if isinstance(operand, Node) else None
        if not isinstance(value, torch.Tensor) or value.dim() != result.dim() or value.dtype not in DTYPES:
            return False
        if not isinstance(value.shape[dim], int) or value.shape[dim] == 0:
            return False
        if isinstance(operand, Node) and counts(through_views(operand)) is not None:
            return False
    return any(_is_elementwise(user) for user in _users(node)) or any(_could_be_in_a_part(o, 1) for o in operands)  # type: ignore[arg-type]


def is_in_a_part(node: Node) -> bool:
    """Whether an elementwise operator is computed where concatenations take it, and nowhere else."""
    return _could_be_in_a_part(node, 1) and all(is_fusible(c) for c in _concatenations(node))


def _could_be_in_a_part(node: Node, depth: int) -> bool:
    if node.target not in POINTWISE or node.target in CREATES or depth > MOST_DEPTH or not node.users:
        return False
    if any(counts(through_views(operand)) is not None for operand in node.all_input_nodes):
        return False
    return all(user.target is CONCATENATION or _could_be_in_a_part(user, depth + 1) for user in node.users)


def _concatenations(node: Node) -> set[Node]:
    if node.target is CONCATENATION:
        return {node}
    return set().union(*(_concatenations(user) for user in node.users))


def _users(node: Node) -> Iterator[Node]:
    """Of a node and of its views."""
    for user in node.users:
        if user.target in VIEWS:
            yield from _users(user)
        else:
            yield user


def _is_elementwise(node: Node) -> bool:
    return node.target in POINTWISE or node.target in REDUCTIONS
