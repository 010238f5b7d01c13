"""The graph optimiser: passes over the functional ATen graph, in the order of :data:`PASSES`.

A pass takes the graph and returns how often it applied. Each can be switched off by name
(``options={"passes": {"name": False}}``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from torchtitan_npu.compile.lowering import REDUCTIONS
from torchtitan_npu.compile.nodes import reduced_dims
from torchtitan_npu.compile.reshapes import same
from torchtitan_npu.compile.views import changes_an_operand

aten = torch.ops.aten
prims = torch.ops.prims

Pass = Callable[[Graph], int]


def replace(node: Node, by: Any) -> None:
    """Lets all users take ``by`` and removes the node."""
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)


def tensor(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether shape, strides, dtype, device and the bits of lazy conjugation and negation are the same."""
    return (
        a.dtype == b.dtype
        and (a.is_conj(), a.is_neg()) == (b.is_conj(), b.is_neg())
        and a.device == b.device
        and a.dim() == b.dim()
        and all(same(x, y) for x, y in zip((*a.shape, *a.stride()), (*b.shape, *b.stride()), strict=True))
    )


def is_written(node: Node) -> bool:
    """Whether a later node changes the tensor in place."""
    return any(changes_an_operand(user) and user.args[0] is node for user in node.users)


def remove_dead_code(graph: Graph) -> int:
    """Nodes that nobody uses and that change nothing."""
    before = len(graph.nodes)
    graph.eliminate_dead_code(_is_impure)
    return before - len(graph.nodes)


def _is_impure(node: Node) -> bool:
    return node.is_impure() or node.op in ("placeholder", "output")


def merge_common_subexpressions(graph: Graph) -> int:
    """Equal operators on equal arguments are computed once; random ones are not equal."""
    known: dict[Any, Node] = {}
    merged = 0
    for node in list(graph.nodes):
        if node.op != "call_function" or is_random_or_changes(node):
            continue
        key = _key(node)
        try:
            first = known.setdefault(key, node)
        except TypeError:  # an argument that cannot be compared
            continue
        if first is not node:
            replace(node, first)
            merged += 1
    return merged


def is_random_or_changes(node: Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target is not operator.getitem
    random = torch.Tag.nondeterministic_seeded in target.tags
    # An empty tensor is memory that somebody writes into: two of them are two.
    return random or target._schema.is_mutable or target.name().startswith(("aten::empty", "aten::new_empty"))


def _key(node: Node) -> Any:
    def frozen(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return tuple(frozen(v) for v in value)
        return (type(value), repr(value)) if isinstance(value, float) else (type(value), value)

    arguments: Any = node.args
    operand = tensor(arguments[0]) if arguments else None
    if node.target in REDUCTIONS and len(arguments) > 1 and operand is not None:  # -1 is the last dimension's number
        arguments = (arguments[0], sorted(reduced_dims(node, operand.dim())), *arguments[2:])
    return node.target, frozen(arguments), tuple((k, frozen(v)) for k, v in sorted(node.kwargs.items()))


def remove_redundant_views(graph: Graph) -> int:
    """Views to the shape that is there, and aliases; a view of a view becomes one of the first."""
    removed = 0
    for node in list(graph.nodes):
        if node.target is aten._unsafe_view.default:  # of a fresh tensor: a view like any other
            node.target = aten.view.default
        if node.target in (aten.alias.default, aten.detach.default) and not escapes(node):
            replace(node, node.args[0])
            removed += 1
            continue
        if node.target not in (aten.view.default, aten.reshape.default, aten.expand.default):
            continue
        base = node.args[0]
        before, after = tensor(base), tensor(node)
        if before is None or after is None:
            continue
        if same_layout(before, after):
            replace(node, base)
            removed += 1
        elif node.target is aten.view.default and base.target is aten.view.default:
            node.args = (base.args[0], node.args[1])
            removed += 1
    return removed


def remove_redundant_copies(graph: Graph) -> int:
    """Clones that change no layout, casts to the dtype that is there, and padding by nothing."""
    removed = 0
    for node in list(graph.nodes):
        if not _copies(node):
            continue
        before, after = tensor(node.args[0]), tensor(node)
        if before is None or after is None or not same_layout(before, after):
            continue
        if escapes(node) or is_written(node) or is_written(node.args[0]):
            continue
        replace(node, node.args[0])
        removed += 1
    return removed


def _copies(node: Node) -> bool:
    """Whether the result has the values of the first argument, if it has its shape and dtype."""
    if node.target is aten.constant_pad_nd.default:
        return not any(node.args[1])  # type: ignore[arg-type]
    return node.target in (aten.clone.default, aten._to_copy.default, prims.convert_element_type.default)


def escapes(node: Node) -> bool:
    """Whether the result, or a view of it, is a result of the graph, where it must not share memory with an input."""
    return any(user.op == "output" or (_may_be_a_view(user) and escapes(user)) for user in node.users)


def _may_be_a_view(node: Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    return any(r.alias_info is not None for r in node.target._schema.returns)


def remove_cast_chains(graph: Graph) -> int:
    """A cast to a wider float and back again to the first type."""
    removed = 0
    casts = (aten._to_copy.default, prims.convert_element_type.default)
    for node in list(graph.nodes):
        inner = node.args[0] if node.target in casts else None
        if not isinstance(inner, Node) or inner.target not in casts:
            continue
        first, middle, last = tensor(inner.args[0]), tensor(inner), tensor(node)
        if first is None or middle is None or last is None or not same_layout(first, last):
            continue
        if _holds(middle.dtype, first.dtype) and not escapes(node):
            replace(node, inner.args[0])
            removed += 1
    return removed


def _holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether one type of floats has all numbers of another, float8 among them, which PyTorch does not promote."""
    if not (wide.is_floating_point and narrow.is_floating_point):
        return False
    more, less = torch.finfo(wide), torch.finfo(narrow)
    return more.eps <= less.eps and more.max >= less.max and more.smallest_normal <= less.smallest_normal


def fold_neutral_operands(graph: Graph) -> int:
    """x + 0, x * 1, x / 1 where they change neither dtype nor layout (x + 0 of floats: -0 would become 0)."""
    neutral = {aten.mul.Tensor: 1, aten.div.Tensor: 1, aten.sub.Tensor: 0, aten.add.Tensor: 0}
    removed = 0
    for node in list(graph.nodes):
        if node.target not in neutral or node.kwargs or isinstance(node.args[1], Node):
            continue
        before, after = tensor(node.args[0]), tensor(node)
        if before is None or after is None or node.args[1] != neutral[node.target] or not same_layout(before, after):
            continue
        if (node.target is aten.add.Tensor and after.dtype.is_floating_point) or escapes(node):
            continue
        replace(node, node.args[0])
        removed += 1
    return removed


PASSES: dict[str, Pass] = {
    "remove_dead_code": remove_dead_code,
    "merge_common_subexpressions": merge_common_subexpressions,
    "remove_redundant_copies": remove_redundant_copies,
    "remove_cast_chains": remove_cast_chains,
    "fold_neutral_operands": fold_neutral_operands,
    "remove_redundant_views": remove_redundant_views,
    "remove_dead_code_again": remove_dead_code,
}
"""The graph optimiser, in order."""


def optimize(graph: Graph, enabled: Callable[[str], bool]) -> dict[str, int]:
    """Runs the passes; returns how often each applied."""
    applied = {name: run(graph) for name, run in PASSES.items() if enabled(name)}
    graph.lint()
    return applied
