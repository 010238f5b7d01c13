"""Views and counts: nodes that a kernel looks through, or computes from its loops' indices."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

aten = torch.ops.aten
prims = torch.ops.prims

VIEWS = {
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.expand.default, aten.permute.default, aten.transpose.int, aten.t.default,
}  # fmt: skip
"""Views that only rename dimensions: a group can look through them."""


def is_view(node: Node) -> bool:
    """Whether a node's result lies in the memory of its first argument, with the same dtype."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.args or not isinstance(node.args[0], Node):
        return False
    returns, first = node.target._schema.returns, node.target._schema.arguments[0]
    if len(returns) != 1 or returns[0].alias_info is None or first.alias_info is None or first.alias_info.is_write:
        return False
    value, base = node.meta.get("val"), node.args[0].meta.get("val")
    return isinstance(value, torch.Tensor) and isinstance(base, torch.Tensor) and value.dtype == base.dtype


def memory_of(node: Node) -> Node:
    """The node whose tensor's memory this one's lies in."""
    while is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def changes_an_operand(node: Node) -> bool:
    """Whether an operator writes to one of its arguments: here always to the first."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def may_alias(node: Node) -> bool:
    """Whether a result may lie in the memory of an argument without being one of the views that are looked through."""
    if node.op != "call_function" or is_view(node):
        return False
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    return any(r.alias_info is not None for r in node.target._schema.returns)


def aliased_by(node: Node) -> list[Node]:
    """The operands in whose memory a result that :func:`may_alias` may lie: of what writes, only what it writes to."""
    return [node.args[0]] if changes_an_operand(node) else node.all_input_nodes  # type: ignore[list-item]


def gives_new_memory(node: Node) -> bool:
    """Whether the result of a node, or the part of one that it takes, is no view of an argument."""
    if node.target is operator.getitem:
        node = node.args[0]  # type: ignore[assignment]
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and not any(r.alias_info for r in target._schema.returns)


def through_views(node: Node) -> Node:
    """What a view that only renames dimensions is a view of."""
    while node.target in VIEWS:
        node = node.args[0]  # type: ignore[assignment]
    return node


def has_one_user(node: Node) -> bool:
    """Whether one operator takes the node, or a view that only renames its dimensions."""
    users = list(node.users)
    return len(users) == 1 and (users[0].target not in VIEWS or has_one_user(users[0]))


def counts(node: Node) -> tuple[int, int] | None:
    """Start and step of a node that counts by known numbers: a function of the index, which no kernel loads."""
    if node.target is prims.iota.default:
        numbers: Any = node.kwargs.get("start"), node.kwargs.get("step")
    elif node.target is aten.arange.start_step:
        numbers = node.args[0], node.args[2] if len(node.args) > 2 else 1
    else:
        return None
    value = node.meta.get("val")
    whole = isinstance(value, torch.Tensor) and not value.dtype.is_floating_point
    return numbers if whole and all(isinstance(n, int) for n in numbers) else None
