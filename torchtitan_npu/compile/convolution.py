"""Convolutions of frozen weights: batch norms become part of them, and residuals and relu of one packed operator."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from torchtitan_npu.compile.constants import call, constant_nodes
from torchtitan_npu.compile.passes import tensor
from torchtitan_npu.compile.reshapes import same

aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)

# ---- batch norms


def fold_batch_norms(graph: Graph, frozen: Sequence[int]) -> int:
    """Convolutions whose channels are then scaled and shifted by constants: done to weight and bias instead."""
    constants = constant_nodes(graph, frozen)
    folded = 0
    for node in list(graph.nodes):
        if node.target is aten.convolution.default and not node.args[6] and node.args[1] in constants:
            folded += _fold_channels(node, constants)
    return folded


def _fold_channels(convolution: Node, constants: set[Node]) -> bool:
    result = tensor(convolution)
    if result is None or not (convolution.args[2] is None or convolution.args[2] in constants):
        return False
    # Norms of float16 and bfloat16 are computed in float32, to which the first step casts or promotes.
    user = _sole_user(convolution)
    value = tensor(user)
    widens = result.dtype in _HALF and value is not None and value.dtype == torch.float32
    computed = value if widens and value is not None else result
    cast = user if widens and user is not None and user.target in _CASTS else None
    steps, last = [], cast or convolution
    while (step := _scales_channels(last, computed, constants)) is not None:
        steps.append(step)
        last = step[0]
    narrowed = _sole_user(last) if widens else None
    if not steps or (widens and (narrowed is None or not _casts_to(narrowed, result.dtype))):
        return False
    chain = [n for n in (convolution, cast, *(node for node, _, _ in steps), narrowed) if n is not None]
    x, weight, bias, *others = convolution.args
    with convolution.graph.inserting_before(chain[-1]):
        if widens:
            weight = call(convolution, _CAST, weight, torch.float32)
            bias = None if bias is None else call(convolution, _CAST, bias, torch.float32)
        for node, target, other in steps:
            weight, bias = _scaled(node, target, other, weight, bias, computed)
        if widens:
            weight = call(convolution, _CAST, weight, result.dtype)
            bias = None if bias is None else call(convolution, _CAST, bias, result.dtype)
        new = convolution.graph.call_function(aten.convolution.default, (x, weight, bias, *others))
    new.meta = dict(convolution.meta)
    chain[-1].replace_all_uses_with(new)
    for node in reversed(chain):
        node.graph.erase_node(node)
    return True


_CAST = torch.ops.prims.convert_element_type.default
_CASTS = (_CAST, aten._to_copy.default)


def _casts_to(node: Node, dtype: torch.dtype) -> bool:
    value = tensor(node)
    return node.target in _CASTS and value is not None and value.dtype == dtype


def _scaled(node: Node, target: Any, other: Any, weight: Any, bias: Any, result: Tensor) -> tuple[Any, Any]:
    """Weight and bias of a convolution whose channels are scaled or shifted by a constant."""
    channels = result.shape[1]
    if isinstance(other, Node):
        other = call(node, aten.reshape.default, other, [channels])
    if target in (aten.mul.Tensor, aten.div.Tensor):
        rows = other
        if isinstance(other, Node):
            rows = call(node, aten.reshape.default, other, [channels] + [1] * (result.dim() - 1))
        return call(node, target, weight, rows), None if bias is None else call(node, target, bias, other)
    if bias is not None:
        return weight, call(node, target, bias, other)
    if isinstance(other, Node):
        return weight, other if target is aten.add.Tensor else call(node, aten.neg.default, other)
    sign = 1 if target is aten.add.Tensor else -1
    options = {"dtype": result.dtype, "device": result.device}
    return weight, call(node, aten.full.default, [channels], sign * other, **options)


def _scales_channels(node: Node, result: Tensor, constants: set[Node]) -> tuple[Node, Any, Any] | None:
    """The only user, if it adds, subtracts, multiplies or divides by a constant a channel; what and by what."""
    user = next(iter(node.users), None)
    if user is None or len(node.users) != 1 or user.kwargs:
        return None
    if user.target not in (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor):
        return None
    first, second = user.args
    if first is not node:
        if user.target not in (aten.add.Tensor, aten.mul.Tensor):
            return None
        first, second = second, first
    value = tensor(user)
    if value is None or value.dtype != result.dtype or value.dim() != result.dim():
        return None
    if not all(map(same, value.shape, result.shape)):
        return None
    if isinstance(second, Node):
        by = tensor(second)
        if second not in constants or by is None or torch.promote_types(by.dtype, result.dtype) != result.dtype:
            return None
        shape = (1,) * (result.dim() - by.dim()) + tuple(by.shape)
        if any(n != 1 for d, n in enumerate(shape) if d != 1) or shape[1] != result.shape[1]:
            return None
    return user, user.target, second


# ---- packing

_DTYPES = (torch.float32, *_HALF)
# Operators beside pointwise ones whose results have the layout of their argument, or need none.
_ANY_LAYOUT = {
    torch.ops.npu.npu_conv2d_packed.default, operator.getitem, aten.max_pool2d_with_indices.default,
    aten.avg_pool2d.default, aten._adaptive_avg_pool2d.default, aten.mean.dim, *_CASTS,
}  # fmt: skip


def pack_convolutions(graph: Graph, frozen: Sequence[int]) -> int:
    """2-d convolutions with constant weights: packed once, with residual and relu behind them; channels last."""
    constants = constant_nodes(graph, frozen)
    packed = [
        _pack(node)
        for node in list(graph.nodes)
        if node.target is aten.convolution.default and _is_packed(node, constants)
    ]
    if packed:
        _spread_layouts(graph, packed)
    return len(packed)


def _is_packed(node: Node, constants: set[Node]) -> bool:
    x, weight, bias, _, _, _, transposed, *_ = node.args
    given, value, result = tensor(x), tensor(weight), tensor(node)
    if given is None or value is None or result is None or transposed or weight not in constants:
        return False
    sizes = (*given.shape, *value.shape)
    return (
        given.dim() == 4
        and given.device.type == "npu"
        and given.dtype in _DTYPES
        and all(isinstance(n, int) and n > 0 for n in sizes)
        and value.dtype == given.dtype
        and (bias is None or bias in constants)
    )


def _pack(node: Node) -> Node:
    arguments: tuple[Any, ...] = node.args
    x, weight, bias, stride, padding, dilation, _, _, groups = arguments
    chain, residual, activation = [node], None, ""
    if (other := _residual(node)) is not None:
        residual = other
        chain.append(next(iter(node.users)))
    follows = _sole_user(chain[-1])
    if follows is not None and follows.target is aten.relu.default:
        activation = "relu"
        chain.append(follows)
    last = chain[-1]
    image, size = tensor(x), tensor(weight)
    assert image is not None, "asked by _is_packed"
    assert size is not None
    options = [[*value] * (3 - len(value)) for value in (stride, padding, dilation)]
    with node.graph.inserting_before(last):
        layout = call(node, torch.ops.npu.npu_conv2d_pack_weight.default, weight, [*image.shape], *options, groups)
        fused = call(
            node, torch.ops.npu.npu_conv2d_packed.default, x, layout, [*size.shape], bias, *options, groups,
            residual=residual, activation=activation,
        )  # fmt: skip
    last.replace_all_uses_with(fused)
    for old in reversed(chain):
        node.graph.erase_node(old)
    fused.meta = {**last.meta, "val": fused.meta["val"], "before": last.meta["val"]}
    return fused


def _sole_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _residual(node: Node) -> Node | None:
    """What is added to a convolution's result and to nothing else, if it has its shape and dtype."""
    added = _sole_user(node)
    if added is None or added.target is not aten.add.Tensor or added.kwargs:
        return None
    first, second = added.args
    other = second if first is node else first
    value, result = tensor(other), tensor(node)
    if not isinstance(other, Node) or other is node or value is None or result is None:
        return None
    fits = value.dtype == result.dtype and value.dim() == result.dim() and all(map(same, value.shape, result.shape))
    return other if fits else None


def _spread_layouts(graph: Graph, packed: Sequence[Node]) -> None:
    """Gives the users of packed convolutions their values anew; those that need the earlier layout get a copy."""
    before = {node: node.meta.pop("before") for node in packed}
    changed = {node for node, value in before.items() if value.stride() != node.meta["val"].stride()}
    for node in list(graph.nodes):
        touched = [a for a in node.all_input_nodes if a in changed]
        if not touched:
            continue
        if not _takes_any_layout(node):
            for argument in touched:
                with graph.inserting_before(node):
                    copy = call(argument, aten.clone.default, argument, memory_format=_format(before[argument]))
                node.replace_input_with(argument, copy)
            continue
        before.setdefault(node, node.meta["val"])
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        with packed[0].meta["val"].fake_mode:
            node.meta["val"] = node.target(*args, **kwargs)
        if isinstance(node.meta["val"], Tensor):
            if node.meta["val"].stride() != before[node].stride():
                changed.add(node)
        else:
            changed.add(node)


def _takes_any_layout(node: Node) -> bool:
    if node.target in _ANY_LAYOUT:
        return True
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags


def _format(value: Tensor) -> torch.memory_format:
    plain = value.is_contiguous() or not value.is_contiguous(memory_format=torch.channels_last)
    return torch.contiguous_format if plain else torch.channels_last
