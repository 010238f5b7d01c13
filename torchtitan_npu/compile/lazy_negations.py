"""Lazily negated tensors (``z.conj().imag``): a bit of the tensor says so, and the memory holds the opposite.

Operators of PyTorch look at that bit, kernels read memory as it is. Before anything else is done to a graph, its
operators are therefore given the negation by name, as an operator that fuses like others. Lazily conjugated tensors
need no such care: kernels take no complex numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils._pytree import tree_map

from torchtitan_npu.compile.views import is_view

aten = torch.ops.aten


def spell_out_negations(graph: Graph) -> int:
    """Gives operators ``neg`` of what lies in memory in place of lazily negated tensors; returns how often."""
    spelled = 0
    for node in list(graph.nodes):
        if node.op != "call_function" or is_view(node):
            continue
        written = node.args[0] if node.target is aten.copy_.default else None  # by an operator, which looks at the bit
        for operand in node.all_input_nodes:
            if operand is not written and _is_negated(operand):
                node.replace_input_with(operand, _negation(graph, node, operand))
                spelled += 1
    return spelled


def _is_negated(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_neg()


def _negation(graph: Graph, before: Node, operand: Node) -> Node:
    for target in (aten._neg_view.default, aten.neg.default):
        with graph.inserting_before(before):
            operand = graph.call_function(target, (operand,))
        operand.meta["val"] = _value(operand)
    return operand


def _value(node: Node) -> Any:
    """The fake tensor that the operator gives for those of its arguments."""
    arguments = tree_map(lambda a: a.meta["val"] if isinstance(a, Node) else a, node.args)
    with arguments[0].fake_mode:
        return node.target(*arguments, **node.kwargs)  # type: ignore[operator]


def take_tangents_as_they_lie(graph: Graph) -> tuple[int, ...]:
    """Makes a backward graph one of gradients that are not lazily negated; returns which inputs these are.

    AOTAutograd traces gradients with the bits of the results, but those that come have bits of their own.
    """
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    changed: set[Node] = set()
    for node in graph.nodes:
        first = node.args[0] if node.args else None
        if node in inputs and node.name.startswith("tangents") and _is_negated(node):
            node.meta["val"] = torch._neg_view(node.meta["val"])
        elif is_view(node) and first in changed:
            node.meta["val"] = _value(node)
        else:
            continue
        changed.add(node)
    return tuple(i for i, n in enumerate(inputs) if n.name.startswith("tangents") and _is_real(n))


def _is_real(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def resolve_tangents(arguments: list[Any], tangents: Sequence[int]) -> None:
    """Replaces the lazily negated ones among them by tensors whose memory holds their values."""
    for number in tangents:
        if arguments[number].is_neg():
            arguments[number] = arguments[number].resolve_neg()
