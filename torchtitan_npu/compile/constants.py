"""Nodes of an inference graph that depend on frozen inputs only, and new ones."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from torchtitan_npu.compile.passes import escapes, is_random_or_changes, is_written, tensor
from torchtitan_npu.compile.views import is_view

LARGE = 1 << 20
"""Bytes from which on a constant is only kept if it is not many times what it is computed from (masks, expansions)."""
MOST_GROWTH = 4


def constant_nodes(graph: Graph, frozen: Sequence[int]) -> set[Node]:
    """Frozen inputs and what depends on nothing else."""
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    constants = {inputs[i] for i in frozen if i < len(inputs) and not is_written(inputs[i])}
    for node in graph.nodes:
        if node.op == "call_function" and all(a in constants for a in node.all_input_nodes) and _is_foldable(node):
            constants.add(node)
    return constants


def _is_foldable(node: Node) -> bool:
    if node.target is operator.getitem:
        return True
    if is_random_or_changes(node) or escapes(node):
        return False
    value = tensor(node)
    if value is None:
        return isinstance(node.meta.get("val"), (tuple, list))
    if value.device.type != "npu" or not all(isinstance(n, int) for n in value.shape):
        return False
    before = sum(v.nbytes for a in node.all_input_nodes if (v := tensor(a)) is not None)
    return is_view(node) or value.nbytes <= max(LARGE, MOST_GROWTH * before)


def call(like: Node, target: Any, *args: Any, **options: Any) -> Node:
    """A new node, and the fake value of its result."""
    node = like.graph.call_function(target, args, options)
    value = like.meta["val"]
    arguments, named = torch.fx.node.map_arg((args, options), lambda n: n.meta["val"])
    with value.fake_mode:
        node.meta["val"] = target(*arguments, **named)
    return node
