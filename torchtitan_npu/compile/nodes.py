"""Nodes of a graph as members of kernels: what they read, and their values in tile instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from graph_autofusion.dtypes import I32
from graph_autofusion.program import TileBuilder, Value
from torchtitan_npu.compile.concatenation import CONCATENATION, Part, is_in_a_part, parts
from torchtitan_npu.compile.lowering import (
    CREATES,
    POINTWISE,
    REDUCTIONS,
    Context,
    DoesNotFuse,
    lower_product,
    lower_reduction,
    tile_dtype,
)
from torchtitan_npu.compile.views import counts, through_views

aten = torch.ops.aten

PRODUCTS: dict[Any, tuple[int, int]] = {aten.mm.default: (0, 1), aten.addmm.default: (1, 2)}
"""Matrix products, with one row a sum over elementwise products; which of their arguments they multiply."""


def tensor_of(node: Node) -> torch.Tensor:
    """The fake tensor that a node gives; raises DoesNotFuse if it gives none."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise DoesNotFuse("gives no single tensor")
    return value


def is_loaded(node: Node) -> bool:
    """Whether a kernel that takes the node reads memory: numbers and counts it computes itself."""
    created = node.target in CREATES or counts(through_views(node)) is not None
    return not created and isinstance(node.meta.get("val"), torch.Tensor)


def reduced_dims(node: Node, rank: int) -> set[int]:
    """The dimensions that a reduction folds."""
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if given is None or (isinstance(given, (list, tuple)) and not given):
        return set(range(rank))
    return {d % rank for d in (given if isinstance(given, (list, tuple)) else [given])} if rank else set()


def product_operands(node: Node) -> tuple[Node, Node]:
    """The row and the matrix that a node of :data:`PRODUCTS` multiplies."""
    arguments: Any = node.args
    first, second = PRODUCTS[node.target]
    return arguments[first], arguments[second]


def operands_of(node: Node) -> list[tuple[Node, Node]]:
    """What a member reads, each with the operator that takes it: the node, or one that is computed in a part of it."""
    if node.target is not CONCATENATION:
        return [(operand, node) for operand in node.all_input_nodes]
    return [read for part in parts(node) for read in part.reads(node)]


Operand = Callable[[Node, Node, Part | None], Value]
"""The value of an operand as an operator takes it; in a part of a concatenation, where the loops are inside of it."""


def _lower_concatenation(builder: TileBuilder, node: Node, operand: Operand, axis: int) -> Value:
    """The part in which the index along an axis of the program lies."""
    dtype = tile_dtype(tensor_of(node).dtype).compute
    index = builder.index(axis, I32)
    value: Value | None = None
    for part in reversed(parts(node)):

        def operand_of_part(argument: Node, consumer: Node, _: Part | None, part: Part = part) -> Value:
            if is_in_a_part(argument) or argument.target in CREATES:
                return lower_node(builder, argument, operand_of_part)
            return operand(argument, consumer, part)

        own = builder.cast(operand_of_part(part.value, node, None), dtype)
        value = own if value is None else builder.apply("where", index.apply("lt", part.high), own, value)
    assert value is not None
    return value


def lower_node(builder: TileBuilder, node: Node, operand: Operand, cat_axis: int = 0) -> Value:
    """The node's value from those of its operands.

    Args:
        cat_axis: of the program, along which the node concatenates.

    Raises:
        DoesNotFuse: it has no tile instructions for this type.
    """
    if node.target is CONCATENATION:
        return _lower_concatenation(builder, node, operand, cat_axis)
    context_arguments: list[Any] = []

    def convert(argument: Any) -> Any:
        if not isinstance(argument, Node):
            context_arguments.append(argument)
            return argument
        value = argument.meta.get("val")
        context_arguments.append(value)
        if isinstance(value, torch.SymInt):
            raise DoesNotFuse("takes a number that is known only when it runs")
        if node.target in CREATES:  # the tensor that it makes another like is not read
            return None
        if argument.target in CREATES:
            return lower_node(builder, argument, operand)
        if not isinstance(value, torch.Tensor):
            raise DoesNotFuse("takes an argument that is no tensor")
        return operand(argument, node, None)

    result = tensor_of(node)
    if result.is_complex() or result.is_sparse:
        raise DoesNotFuse(f"is {result.dtype}, {result.layout}")
    tile_dtype(result.dtype)
    arguments = [convert(a) for a in node.args]
    keywords = {k: convert(v) for k, v in node.kwargs.items()}
    context = Context(builder, result.dtype, context_arguments)
    try:
        if node.target in REDUCTIONS:
            count = 1
            shape = tensor_of(node.all_input_nodes[0]).shape
            for d in reduced_dims(node, len(shape)):
                count *= shape[d]
            if REDUCTIONS[node.target] == "mean" and not isinstance(count, int):
                raise DoesNotFuse("averages over a symbolic size")
            value = lower_reduction(context, REDUCTIONS[node.target], arguments[0], count)
        elif node.target in PRODUCTS:
            first, second = PRODUCTS[node.target]
            value = lower_product(
                context, arguments[first], arguments[second], arguments[0] if first else None, keywords
            )
        else:
            value = POINTWISE[node.target](context, *arguments, **keywords)
    except ValueError as error:
        raise DoesNotFuse(str(error)) from None
    return builder.cast(value, tile_dtype(result.dtype).compute)
