"""Constant folding for inference (option ``freezing``): what depends on parameters and buffers only is computed once.

Passes of their own prepare it: convolutions take up batch norms and are packed, matrices that one row is multiplied
with lie column by column. Before each run the memory and the versions of the parameters that were folded are compared
with those that were seen, and if any is not the same all is computed anew.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from torchtitan_npu.compile.constants import call, constant_nodes
from torchtitan_npu.compile.convolution import fold_batch_norms, pack_convolutions
from torchtitan_npu.compile.lowering import CREATES
from torchtitan_npu.compile.nodes import PRODUCTS, product_operands
from torchtitan_npu.compile.passes import remove_dead_code, tensor
from torchtitan_npu.compile.reshapes import is_one, same
from torchtitan_npu.compile.views import is_view
from torchtitan_npu.driver import npu
from torchtitan_npu.sinking.watch import computed_before

aten = torch.ops.aten

Plan = Callable[[list[Any]], tuple[Any, ...]]


@dataclass(frozen=True)
class Folded:
    """A graph in two: constants from frozen inputs, and the rest, which takes them after its own inputs.

    Attributes:
        count: of the constants.
        leaves: numbers of the inputs that the constants are computed from.
        kept: numbers of the inputs that the rest still takes.
    """

    constants: GraphModule
    rest: GraphModule
    count: int
    leaves: tuple[int, ...]
    kept: tuple[int, ...]


# ---- what folding prepares


def lay_out_columns(graph: Graph, frozen: Sequence[int]) -> int:
    """Constant matrices that one row is multiplied with: column by column, which the kernel of such a product reads."""
    constants = constant_nodes(graph, frozen)
    changed = 0
    for node in list(graph.nodes):
        if node.target not in PRODUCTS:
            continue
        row, matrix = product_operands(node)
        given, value = tensor(row), tensor(matrix)
        if matrix not in constants or given is None or value is None or not is_one(given.shape[0]):
            continue
        if same(value.stride()[0], 1) or is_one(value.shape[0]) or is_one(value.shape[1]):
            continue
        with graph.inserting_before(node):
            turned = call(matrix, aten.permute.default, matrix, [1, 0])
            copied = call(matrix, aten.clone.default, turned, memory_format=torch.contiguous_format)
            columns = call(matrix, aten.permute.default, copied, [1, 0])
        node.update_arg(PRODUCTS[node.target][1], columns)
        changed += 1
    return changed


PREPARATIONS: dict[str, Callable[[Graph, Sequence[int]], int]] = {
    "fold_batch_norms": fold_batch_norms,
    "pack_convolutions": pack_convolutions,
    "lay_out_columns": lay_out_columns,
}
FOLDING = (*PREPARATIONS, "fold_constants")
"""Names of the passes that ``freezing`` adds, in order."""


# ---- folding


def fold_constants(module: GraphModule, frozen: Sequence[int]) -> Folded | None:
    """Takes what depends on frozen inputs only out of a graph; None if there is nothing."""
    graph = module.graph
    constants = constant_nodes(graph, frozen)
    computed = {n for n in constants if _is_work(n)}
    border = [n for n in graph.nodes if n in computed and tensor(n) is not None and _leaves(n, constants)]
    if not border:
        return None
    prologue = _prologue(graph, border)
    for node in border:
        with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
            folded = graph.placeholder(f"folded_{node.name}")
        folded.meta = {"val": node.meta["val"]}
        node.replace_all_uses_with(folded)
    remove_dead_code(graph)
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    given = inputs[: len(inputs) - len(border)]
    kept = tuple(i for i, n in enumerate(given) if n.users or i not in frozen)
    for i, node in enumerate(given):
        if i not in kept:
            graph.erase_node(node)
    graph.lint()
    leaves = tuple(i for i, n in enumerate(given) if n.name in {p.name for p in prologue.nodes if p.users})
    for node in [n for n in prologue.nodes if n.op == "placeholder" and not n.users]:
        prologue.erase_node(node)
    return Folded(GraphModule(module, prologue), module, len(border), leaves, kept)


def _is_work(node: Node) -> bool:
    """Whether a constant is more than an input, a view or a number: what is worth keeping."""
    if node.op == "placeholder" or node.target in CREATES or is_view(node):
        return False
    return node.target is not operator.getitem or not isinstance(node.meta.get("val"), (tuple, list))


def _leaves(node: Node, constants: set[Node]) -> bool:
    """Whether something that is no constant uses the node or a view of it."""
    return any(u not in constants or (is_view(u) and _leaves(u, constants)) for u in node.users)


def _prologue(graph: Graph, border: Sequence[Node]) -> Graph:
    """The part of a graph that computes some of its nodes, from all inputs."""
    needed: set[Node] = set()
    waiting = list(border)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    part = Graph()
    copies: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op == "placeholder" or node in needed:
            copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(tuple(copies[n] for n in border))
    return part


_folds = torch.zeros(())
"""Written, and so of another version, at each refold()."""


def refold() -> None:
    """Makes all folded constants be computed anew at their next use.

    Only needed after parameters were written in a way that counts up no version: through ``parameter.data``, or by
    other libraries that know the memory's address.
    """
    _folds.zero_()


class FoldedPlan:
    """A plan that runs on folded constants."""

    def __init__(self, folded: Folded, plan: Plan) -> None:
        self._folded = folded
        self._plan = plan
        self._seen: list[int] = []
        self._values: tuple[Tensor, ...] = ()
        self._lock = threading.Lock()
        self._boxed_call = True  # see Plan

    def __call__(self, arguments: list[Any]) -> tuple[Any, ...]:
        leaves = [arguments[i] for i in self._folded.leaves]
        given = [arguments[i] for i in self._folded.kept]
        arguments.clear()
        # A graph of the caller's own is to see later values of the parameters.
        if npu.is_current_stream_capturing() and not self._is_folded(leaves):
            return self._plan([*given, *self._folded.constants(*leaves)])
        with self._lock:
            self._refresh(leaves)
            return self._plan([*given, *self._values])

    def _is_folded(self, leaves: Sequence[Tensor]) -> bool:
        """Whether the graph that is being recorded can read the constants as they are."""
        return bool(self._seen) and self._seen == self._state_of(leaves) and computed_before([*leaves, _folds])

    def _state_of(self, leaves: Sequence[Tensor]) -> list[int]:
        """What is the same as long as no parameter changes."""
        try:
            return [_folds._version, *map(Tensor.data_ptr, leaves), *map(_version, leaves)]
        except RuntimeError:  # tensors of inference mode have no version, so that nobody knows
            return []

    def _refresh(self, leaves: Sequence[Tensor]) -> None:
        """Computes the constants anew if a parameter is not what it was; they stay where they are."""
        seen = self._state_of(leaves)
        if seen and seen == self._seen:
            return
        with torch.no_grad():
            values = self._folded.constants(*leaves)
            if self._values:
                for value, new in zip(self._values, values, strict=True):
                    value.copy_(new)
            else:
                self._values = values
        torch.accelerator.synchronize()  # other streams may run the plan next
        self._seen = seen


_version = operator.attrgetter("_version")
