"""A matrix product whose result only an activation takes becomes ``npu_linear_activation``."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from torchtitan_npu.compile.lowering import POINTWISE, REDUCTIONS
from torchtitan_npu.compile.passes import replace, tensor
from torchtitan_npu.compile.reshapes import is_one, same
from torchtitan_npu.compile.views import VIEWS

aten = torch.ops.aten

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def fuse_linear_activation(graph: Graph) -> int:
    """Products and relu or gelu as one operator; returns how many there were.

    Not where other elementwise work follows, which is one kernel with the activation, not for one row, where the
    product is a kernel itself, and not where a gradient needs what the activation takes.
    """
    count = 0
    for node in list(graph.nodes):
        activation = _activation(node)
        if activation and not any(_is_elementwise(user) for user in _users(node)):
            count += _replace(graph, node, activation)
    return count


def _activation(node: Node) -> str:
    """The operator's name of an activation; empty for other nodes. SiLU is no epilogue of a product there."""
    if node.target is aten.relu.default:
        return "relu"
    if node.target is aten.gelu.default:
        return "gelu_tanh" if node.kwargs.get("approximate", "none") == "tanh" else "gelu_erf"
    return ""


def _replace(graph: Graph, node: Node, activation: str) -> bool:
    product = node.args[0]
    while isinstance(product, Node) and product.target is aten.view.default and len(product.users) == 1:
        product = product.args[0]
    if not isinstance(product, Node) or len(product.users) != 1 or product.kwargs:
        return False
    arguments: Any = product.args
    if product.target is aten.addmm.default:
        bias, x, matrix = arguments
    elif product.target is aten.mm.default:
        bias, (x, matrix) = None, arguments
    else:
        return False
    if not _fits(bias, x, matrix):
        return False
    with graph.inserting_before(product):
        weight = matrix.args[0]
        target = torch.ops.npu.npu_linear_activation.default
        fused = graph.call_function(target, (x, weight, bias, activation))
    fused.meta = dict(product.meta)
    replace(product, fused)
    replace(node, node.args[0])
    return True


def _fits(bias: Any, x: Any, matrix: Any) -> bool:
    """Whether it is a product of several rows with a weight [n, k], on this device."""
    rows, columns = tensor(x), tensor(matrix)
    if rows is None or columns is None or not _is_transposed(matrix):
        return False
    added = None if bias is None else tensor(bias)
    if bias is not None and (added is None or added.dim() != 1 or not same(added.shape[0], columns.shape[1])):
        return False
    return rows.device.type == "npu" and rows.dtype in _DTYPES and not is_one(rows.shape[0])


def _is_transposed(matrix: Node) -> bool:
    if matrix.target is aten.permute.default:
        dims: Any = matrix.args[1]
        return [dim % 2 for dim in dims] == [1, 0]  # [0, 1] is a permutation of a matrix, too
    return matrix.target is aten.t.default


def _users(node: Node) -> list[Node]:
    """Of a node and of its views."""
    return [n for user in node.users for n in (_users(user) if user.target in VIEWS else [user])]


def _is_elementwise(node: Node) -> bool:
    return node.target in POINTWISE or node.target in REDUCTIONS
