"""``cross_entropy`` as operators that fuse: neither log-softmax nor a matrix of one-hot classes is ever in memory.

PyTorch's own parts are a kernel that writes log-softmax and an operator that picks one element of each row; the
gradient is a matrix of zeros that the operator writes into, and a kernel over both. In Dynamo's graph the loss is one
node, so that its gradient is derived from the spelling here.
"""

from __future__ import annotations

import inspect

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node

__all__ = ["fuse_cross_entropy"]

SMALLEST = 1 << 19
"""Logits from which the launches more that it takes pay: weights of classes are looked up, which checks the classes."""

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def fuse_cross_entropy(module: GraphModule) -> int:
    """Spells out each cross-entropy of a graph of torch's functions; returns how many there were."""
    count = 0
    for node in module.graph.nodes:
        if node.target is F.cross_entropy and _fits(node):
            node.target = cross_entropy
            count += 1
    if count:
        module.recompile()
    return count


def _fits(node: Node) -> bool:
    """Whether the loss is one of rows of logits and classes that :func:`cross_entropy` takes."""
    given = inspect.signature(F.cross_entropy).bind(*node.args, **node.kwargs).arguments
    logits, target = (_tensor(given[name]) for name in ("input", "target"))
    if logits is None or target is None or given.get("size_average") is not None or given.get("reduce") is not None:
        return False
    if given.get("weight") is not None and given.get("label_smoothing", 0.0) != 0:
        return False
    is_matrix = logits.dim() == 2 and target.dim() == 1 and isinstance(logits.shape[1], int) and logits.shape[1] > 1
    large = not isinstance(logits.shape[0], int) or logits.numel() >= SMALLEST
    types = logits.dtype in _DTYPES and target.dtype == torch.int64
    return is_matrix and large and types and logits.device.type == target.device.type == "npu"


def _tensor(argument: object) -> Tensor | None:
    value = argument.meta.get("example_value") if isinstance(argument, Node) else None
    return value if isinstance(value, Tensor) else None


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """``F.cross_entropy`` of logits [N, C] and classes [N], computed in float32.

    A row's loss is log(sum(exp(x))) - x[target], both of x without the row's largest value. Classes are compared with
    the column's number, which a kernel counts; an operator looks up their weights, and raises for classes that there
    are not.
    """
    classes = input.shape[1]
    counts = target != ignore_index
    known = torch.where(counts, target, 0)
    weights = weight if weight is not None else torch.ones(1, device=input.device).expand(classes)
    weights = torch.where(counts, F.embedding(known, weights.detach().float().unsqueeze(1)).squeeze(1), 0)

    wide = input.float()
    with torch.no_grad():
        largest = wide.amax(1, keepdim=True)
    shifted = wide - largest
    columns = torch.arange(classes, dtype=torch.int32, device=input.device)
    is_target = columns == known.to(torch.int32).unsqueeze(1)
    log_sum = shifted.exp().sum(1).log()
    losses = log_sum - torch.where(is_target, shifted, 0).sum(1)
    if label_smoothing:
        others = log_sum - shifted.sum(1) / classes
        losses = (1 - label_smoothing) * losses + label_smoothing * others
    losses = torch.where(counts, losses * weights, 0)
    if reduction == "none":
        return losses.to(input.dtype)
    total = losses.sum()
    return (total / weights.sum() if reduction == "mean" else total).to(input.dtype)
