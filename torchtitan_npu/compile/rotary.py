"""Rotary embedding, ``x * cos + rotated(x) * sin``, becomes ``npu_rotary_mul``.

It is looked for in Dynamo's graph, where the halves of ``rotated(x) = cat((-x[..., h:], x[..., :h]), -1)`` are seen for
forward and backward alike. Small float32 tensors stay with the kernel of the automatic fusion, which shares a launch
with its neighbours; of large ones it is slower, as it reads each half of x twice.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

__all__ = ["fuse_rotary"]

_Target = str | Callable[..., Any]
_HALVES = (torch.float16, torch.bfloat16)
_LARGE = 1 << 20  # elements from which on float32, too, is faster in the operator
_LARGE_WITH_GRADIENT = 1 << 16  # the same where its gradient is asked for, which is 4 times as fast
_ADD: set[_Target] = {operator.add, operator.iadd, torch.add, "add", "add_"}
_TIMES: set[_Target] = {operator.mul, operator.imul, torch.mul, "mul", "mul_"}
_NEGATIVE: set[_Target] = {operator.neg, torch.neg, "neg"}


def fuse_rotary(module: GraphModule) -> int:
    """Replaces each rotary embedding of a graph of torch's functions; returns how many there were."""
    count = 0
    for node in list(module.graph.nodes):
        if node.target in _ADD and len(node.args) == 2 and not node.kwargs:
            count += _replace(module.graph, node)
    if count:
        module.recompile()
    return count


def _replace(graph: Graph, total: Node) -> bool:
    """Replaces the embedding that a sum ends, if it does."""
    for first, second in (total.args, total.args[::-1]):
        for x, cosine in _factors(first):
            for rotated, sine in _factors(second):
                chain = _rotation(rotated, x)
                if chain is None or not _fits(x, cosine, sine):
                    continue
                with graph.inserting_before(total):
                    fused = _fused(graph, x, cosine, sine)
                fused.meta = dict(total.meta)
                total.replace_all_uses_with(fused)
                for node in (total, first, second, *chain):
                    assert isinstance(node, Node)
                    graph.erase_node(node)
                return True
    return False


def _fused(graph: Graph, x: Node, cosine: Node, sine: Node) -> Node:
    """The operator, whose result is dense: of x as it lies in memory, so that the result lies like it."""
    target = torch.ops.npu.npu_rotary_mul.default
    if x.meta["example_value"].is_contiguous():
        return graph.call_function(target, (x, cosine, sine))
    x, cosine, sine = (graph.call_method("transpose", (node, 1, 2)) for node in (x, cosine, sine))
    return graph.call_method("transpose", (graph.call_function(target, (x, cosine, sine)), 1, 2))


def _factors(product: Any) -> list[tuple[Any, Any]]:
    """Both orders of the factors of a product that is used once."""
    if not isinstance(product, Node) or product.target not in _TIMES or len(product.users) != 1:
        return []
    if len(product.args) != 2 or product.kwargs:
        return []
    first, second = product.args
    return [(first, second), (second, first)]


def _rotation(rotated: Any, x: Any) -> list[Node] | None:
    """The nodes of ``cat((-x[..., h:], x[..., :h]), -1)`` for this x, users first."""
    value = _tensor(x)
    if value is None or not isinstance(rotated, Node) or rotated.target is not torch.cat or len(rotated.users) != 1:
        return None
    given = dict(zip(("tensors", "dim"), rotated.args, strict=False)) | rotated.kwargs
    parts: Any = given.get("tensors")
    if given.get("dim") not in (-1, value.dim() - 1) or not isinstance(parts, (tuple, list)) or len(parts) != 2:
        return None
    minus, low = parts
    if not isinstance(minus, Node) or minus.target not in _NEGATIVE:
        return None
    high, size = minus.args[0], value.shape[-1]
    if not isinstance(size, int) or size % 2:
        return None
    halves = ((high, slice(size // 2, None, None)), (low, slice(None, size // 2, None)))
    if not all(_is_part(part, x, interval) for part, interval in halves) or len(minus.users) != 1:
        return None
    assert isinstance(high, Node)
    return [rotated, minus, high, low]


def _is_part(part: Any, x: Node, interval: slice) -> bool:
    """Whether a node is an interval of the last dimension of x, and used once."""
    if not isinstance(part, Node) or part.target is not operator.getitem or len(part.users) != 1:
        return False
    return part.args == (x, (Ellipsis, interval))


def _fits(x: Any, cosine: Any, sine: Any) -> bool:
    """Whether these are tensors that the operator takes, of types and sizes where it is the faster one."""
    value, cos, sin = _tensor(x), _tensor(cosine), _tensor(sine)
    if value is None or cos is None or sin is None or not (value.dtype in _HALVES or _is_large(value)):
        return False
    if {t.dtype for t in (cos, sin)} != {value.dtype} or {t.device.type for t in (value, cos, sin)} != {"npu"}:
        return False
    if cos.requires_grad or sin.requires_grad or cos.dim() > value.dim() or value.dim() > 4:
        return False
    if not value.is_contiguous() and not (value.dim() == cos.dim() == 4 and value.transpose(1, 2).is_contiguous()):
        return False
    if cos.shape != sin.shape or cos.dim() == 0 or cos.shape[-1] != value.shape[-1]:
        return False
    return torch.broadcast_shapes(value.shape, cos.shape) == value.shape


def _is_large(value: Tensor) -> bool:
    """Whether float32 of fixed sizes is as large as that."""
    elements = value.numel()
    enough = _LARGE_WITH_GRADIENT if value.requires_grad else _LARGE
    return value.dtype is torch.float32 and isinstance(elements, int) and elements >= enough


def _tensor(argument: Any) -> Tensor | None:
    value = argument.meta.get("example_value") if isinstance(argument, Node) else None
    return value if isinstance(value, Tensor) else None
