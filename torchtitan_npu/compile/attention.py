"""Attention that a model spells out, softmax(q kᵀ · scale + mask) v, becomes ``scaled_dot_product_attention``.

It is looked for in Dynamo's graph, where one spelling stands for the forward and the backward of all dtypes, and where
casts, dropout that is switched off and the two ways to hide a position are single nodes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, GraphModule, Node

__all__ = ["fuse_attention"]

SMALLEST = 64 * 64
"""Scores of one head from which the fused operator is faster than its parts."""
FEW_QUERIES, MANY_KEYS = 8, 256
"""Or where its kernel for decoding is."""

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_Target = str | Callable[..., Any]
_MATMUL: set[_Target] = {torch.matmul, operator.matmul, torch.bmm, "matmul"}
_SOFTMAX: set[_Target] = {F.softmax, torch.softmax, "softmax"}
_CAST: set[_Target] = {"to", "float", "half", "bfloat16", "type", "type_as", "contiguous"}
_ADD: set[_Target] = {operator.add, operator.iadd, torch.add, "add", "add_"}
_TIMES: set[_Target] = {operator.mul, operator.imul, torch.mul, "mul", "mul_"}
_OVER: set[_Target] = {operator.truediv, operator.itruediv, torch.div, "div", "div_"}
_MASKED_FILL: set[_Target] = {torch.masked_fill, "masked_fill", "masked_fill_"}
_CHANGES: set[_Target] = {
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.setitem,
}  # fmt: skip


class _Unlike(Exception):
    """The nodes are no attention that the fused operator could stand for."""


@dataclass
class _Found:
    """An attention, from the products of query and key to the product with the values."""

    query: Node
    transposed_key: Node
    scale: float = 1.0
    added: list[Node] = field(default_factory=list)
    hidden: list[tuple[Node, float | Node, bool]] = field(default_factory=list)  # where, the score there, if where is
    chain: list[Node] = field(default_factory=list)  # replaced nodes


def fuse_attention(module: GraphModule) -> int:
    """Replaces each attention of a graph of torch's functions; returns how many there were."""
    count = 0
    for node in list(module.graph.nodes):
        if node.target not in _SOFTMAX:
            continue
        try:
            _replace(module.graph, node)
        except _Unlike:
            continue
        count += 1
    if count:
        module.recompile()
    return count


def _replace(graph: Graph, softmax: Node) -> None:
    (scores,), dim = _positional(softmax, 1), softmax.args[1] if len(softmax.args) > 1 else softmax.kwargs.get("dim")
    if dim not in (-1, 3):
        raise _Unlike
    found = _scores(_node(scores), 1.0)
    value, out, between = _product_with_values(softmax)
    found.chain += [softmax, *between, out]
    _require_shapes(found, value, out)
    with graph.inserting_before(out):
        key = graph.call_method("transpose", (found.transposed_key, -1, -2))
        options: dict[str, Any] = {"attn_mask": _mask(graph, found), "scale": found.scale}
        fused = graph.call_function(F.scaled_dot_product_attention, (found.query, key, value), options)
    fused.meta = dict(out.meta)
    out.replace_all_uses_with(fused)
    for node in sorted(found.chain, reverse=True):
        graph.erase_node(node)


# ---- the scores, from the softmax back


def _scores(node: Node, scale: float) -> _Found:
    """What the scores are made of. ``scale``: the factor that later nodes give them."""
    if len(node.users) != 1:
        raise _Unlike
    target = node.target
    if target in _CAST:
        (cast,) = _positional(node, 1)
        found = _scores(_node(cast), scale)
    elif node.kwargs:  # an argument by its name, or an option such as rounding_mode
        raise _Unlike
    elif target in _MATMUL:
        query, key = _positional(node, 2)
        found = _Found(_node(query), _node(key), scale)
    elif target in _TIMES or target in _OVER:
        scores, by = _positional(node, 2)
        factor = _number(by)
        found = _scores(_node(scores), scale * factor if target in _TIMES else scale / factor)
    elif target in _ADD and scale == 1:
        first, second = _positional(node, 2)
        found = _with_added(_node(first), _node(second))
    elif target in _MASKED_FILL and scale == 1:
        scores, where, value = _positional(node, 3)
        found = _scores(_node(scores), scale)
        found.hidden.append((_node(where), _score(value), True))
    elif target is torch.where and scale == 1:
        where, scores, value = _positional(node, 3)
        found = _scores(_node(scores), scale)
        found.hidden.append((_node(where), _score(value), False))
    else:
        raise _Unlike
    found.chain.append(node)
    return found


def _positional(node: Node, count: int) -> tuple[Any, ...]:
    """The first arguments, if so many are given by their place."""
    if len(node.args) < count:
        raise _Unlike
    return node.args[:count]


def _with_added(first: Node, second: Node) -> _Found:
    for scores, mask in ((first, second), (second, first)):
        try:
            found = _scores(scores, 1.0)
        except _Unlike:
            continue
        found.added.append(mask)
        return found
    raise _Unlike


def _node(argument: Any) -> Node:
    if not isinstance(argument, Node):
        raise _Unlike
    return argument


def _number(argument: Any) -> float:
    if isinstance(argument, (int, float)) and argument:
        return float(argument)
    if isinstance(argument, Node) and argument.target is torch.full:
        size, value = _positional(argument, 2)
        if not size:
            return _number(value)
    raise _Unlike


def _score(argument: Any) -> float | Node:
    """Of a position that is hidden: a number, or a tensor of one."""
    if isinstance(argument, (int, float)):
        return float(argument)
    if _tensor(argument).dim():
        raise _Unlike
    return _node(argument)


# ---- the product, from the softmax on


def _product_with_values(softmax: Node) -> tuple[Node, Node, list[Node]]:
    """The values, the product, and the nodes before it."""
    node = softmax
    between: list[Node] = []
    while True:
        if len(node.users) != 1:
            raise _Unlike
        (user,) = node.users
        if user.args[:1] != (node,):
            raise _Unlike
        if user.target in _MATMUL:
            _, value = _positional(user, 2)
            return _node(value), user, between
        if user.target not in _CAST and not _is_dropout_switched_off(user):
            raise _Unlike
        node = user
        between.append(node)


def _is_dropout_switched_off(node: Node) -> bool:
    if node.target is not F.dropout:
        return False
    given: dict[str, Any] = dict(zip(("p", "training"), node.args[1:], strict=False)) | node.kwargs
    return bool(given.get("p", 0.5) == 0 or given.get("training", True) is False)


# ---- what the fused operator takes


def _tensor(node: Any) -> torch.Tensor:
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor):
        raise _Unlike
    return value


def _require_shapes(found: _Found, value: Node, out: Node) -> None:
    q, k, v = _tensor(found.query), _tensor(found.transposed_key), _tensor(value)
    masks = [_tensor(m) for m in (*found.added, *(where for where, _, _ in found.hidden))]
    if not q.dim() == k.dim() == v.dim() == 4 or q.dtype not in _DTYPES:
        raise _Unlike
    if not q.dtype == k.dtype == v.dtype == _tensor(out).dtype == _tensor(found.chain[0]).dtype:
        raise _Unlike  # of mixed types, or under autocast
    if q.shape[:2] != k.shape[:2] or q.shape[:2] != v.shape[:2] or q.shape[3] != v.shape[3]:
        raise _Unlike
    if any(m.requires_grad or m.device != q.device for m in masks):
        raise _Unlike
    if _is_small(q.shape[2], k.shape[3]):
        raise _Unlike
    if any(_changes(user) for node in (found.query, found.transposed_key, value) for user in node.users):
        raise _Unlike  # they are read later than they were


def _is_small(queries: int | torch.SymInt, keys: int | torch.SymInt) -> bool:
    if not (isinstance(queries, int) and isinstance(keys, int)):
        return False
    return queries * keys < SMALLEST and not (queries <= FEW_QUERIES and keys >= MANY_KEYS)


def _changes(node: Node) -> bool:
    is_method = node.op == "call_method" and str(node.target).endswith("_")
    return is_method or node.target in _CHANGES


def _mask(graph: Graph, found: _Found) -> Node | None:
    """What is added to the scores, in the query's dtype."""
    dtype = _tensor(found.query).dtype
    parts = list(_terms(graph, found, dtype))
    mask = parts[0] if parts else None
    for part in parts[1:]:
        mask = graph.call_function(operator.add, (mask, part))
    return mask


def _terms(graph: Graph, found: _Found, dtype: torch.dtype) -> Iterator[Node]:
    for mask in found.added:
        yield mask if _tensor(mask).dtype == dtype else graph.call_method("to", (mask, dtype))
    for where, score, hides in found.hidden:
        options: dict[str, Any] = {"dtype": dtype, "device": _tensor(where).device}
        there = score if isinstance(score, Node) else graph.call_function(torch.full, ((), score), options)
        nothing = graph.call_function(torch.full, ((), 0.0), options)
        choice = (where, there, nothing) if hides else (where, nothing, there)
        yield graph.call_method("to", (graph.call_function(torch.where, choice), dtype))
