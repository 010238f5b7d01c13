"""Kernels that users registered: the pass that finds their patterns, and patterns found in torch's programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from graph_autofusion.jit import FusedKernel, registered_kernels, run_on_tensors
from graph_autofusion.patterns import FusionPattern, register_detector
from torchtitan_npu.compile.decompositions import decompositions
from torchtitan_npu.compile.fusion import partition
from torchtitan_npu.compile.group_program import lower_group
from torchtitan_npu.compile.lowering import DoesNotFuse
from torchtitan_npu.compile.passes import optimize
from torchtitan_npu.compile.views import VIEWS
from torchtitan_npu.driver import current_stream_handle

aten = torch.ops.aten

_OPERATORS = {
    "add": aten.add.Tensor, "sub": aten.sub.Tensor, "mul": aten.mul.Tensor, "div": aten.div.Tensor,
    "maximum": aten.maximum.default, "minimum": aten.minimum.default, "square": aten.square.default,
    **{name: getattr(aten, name).default for name in (
        "gelu", "relu", "silu", "sigmoid", "tanh", "exp", "sqrt", "rsqrt", "abs", "neg", "erf", "sin", "cos", "log",
        "reciprocal")},
}  # fmt: skip
_ANCHORS = {
    "convolution": {aten.convolution.default},
    "linear": {aten.addmm.default, aten.mm.default, aten.bmm.default},
    "matmul": {aten.mm.default, aten.bmm.default},
}


class KernelCall:
    """A registered kernel as the target of a node."""

    def __init__(self, kernel: FusedKernel) -> None:
        self.kernel = kernel
        self.__name__ = f"registered_{kernel.tile_program.name}"

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        return run_on_tensors(self.kernel.tile_program, tensors, current_stream_handle())


def use_registered_kernels(graph: Graph) -> int:
    """Replaces chains of nodes that are a registered pattern by one call of its kernel."""
    used = 0
    for kernel in registered_kernels():
        for node in list(graph.nodes):
            used += _replace_chain(kernel, node)
    return used


def _replace_chain(kernel: FusedKernel, first: Node) -> bool:
    """Replaces the chain that begins with the node, if there is one."""
    pattern = kernel.pattern
    assert pattern is not None
    chain = _chain(pattern, first)
    if chain is None:
        return False
    start = chain[0].args[0]
    assert isinstance(start, Node)
    tensors, main = [start], start
    for node in chain:
        if len(node.args) == 2:
            other = node.args[1] if node.args[0] is main else node.args[0]
            if not isinstance(other, Node):
                return False
            tensors.append(other)
        main = node
    if not _fits(kernel, tensors, chain[-1]):
        return False
    last = chain[-1]
    with last.graph.inserting_before(last):
        call = last.graph.call_function(KernelCall(kernel), tuple(tensors))
    call.meta = dict(last.meta)
    last.replace_all_uses_with(call)
    for node in reversed(chain):
        last.graph.erase_node(node)
    return True


def _chain(pattern: FusionPattern, first: Node) -> list[Node] | None:
    """The nodes of the pattern's fused operators, if ``first`` begins them."""
    names = pattern.fused
    if any(name not in _OPERATORS for name in names) or first.target is not _OPERATORS[names[0]]:
        return None
    if pattern.anchor and not _is_anchored(first, pattern.anchor):
        return None
    chain = [first]
    for name in names[1:]:
        users = list(chain[-1].users)
        if len(users) != 1 or users[0].target is not _OPERATORS[name] or users[0].kwargs:
            return None
        chain.append(users[0])
    return None if any(n.kwargs for n in chain) else chain


def _is_anchored(node: Node, anchor: str) -> bool:
    before = node.args[0]
    while isinstance(before, Node) and before.target in VIEWS:
        before = before.args[0]
    return isinstance(before, Node) and before.target in _ANCHORS[anchor]


def _fits(kernel: FusedKernel, tensors: list[Node], last: Node) -> bool:
    """Whether type, shape and layout are those that the kernel takes."""
    result = last.meta.get("val")
    if not isinstance(result, torch.Tensor) or result.device.type != "npu" or not result.is_contiguous():
        return False
    for node, parameter in zip(tensors, kernel.tile_program.inputs, strict=True):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or str(value.dtype) != f"torch.{parameter.dtype.value}":
            return False
        if not value.is_contiguous() or value.shape not in (result.shape, result.shape[-1:]):
            return False
    return True


@register_detector
def detect_in_torch(source: Any, *example_inputs: Any) -> FusionPattern | None:
    """The largest group of operators of a module, FX graph module or function that can be one kernel.

    Raises:
        ValueError: nothing in it can be fused.
    """
    if isinstance(source, GraphModule) and any("val" in n.meta for n in source.graph.nodes):
        module = source
    elif callable(source):
        module = trace(source, *example_inputs)
    else:
        return None
    parts = partition(module.graph, require_npu=False)
    groups = sorted(parts.groups, key=lambda g: len(g.nodes), reverse=True)
    for group in groups:
        try:
            lowered = lower_group(group, parts.stored(group), int)
        except (DoesNotFuse, ValueError):
            continue
        if any(p.window is not None or p.gathered for p in lowered.program.parameters):
            continue  # a kernel that is called with tensors has no place for intervals and sizes of tables
        names = tuple(str(n.target).split(".")[-2] for n in group.nodes)
        return FusionPattern(names, "", lowered.program)
    raise ValueError(f"nothing in {source!r} can be fused: {list(parts.reasons.values())[:5]}")


def trace(function: Callable[..., Any], *example_inputs: Any) -> GraphModule:
    """The optimised ATen graph of a function or module, with fake values; parameters are inputs of the graph."""
    if isinstance(function, torch.nn.Module):
        state = {**dict(function.named_parameters()), **dict(function.named_buffers())}
        called, arguments = _functional(function), (state, *example_inputs)
    else:
        called, arguments = function, example_inputs
    with torch.no_grad():
        module = make_fx(called, decomposition_table=decompositions(), tracing_mode="fake")(*arguments)
    optimize(module.graph, lambda name: True)
    return module


def _functional(module: torch.nn.Module) -> Callable[..., Any]:
    return lambda state, *inputs: torch.func.functional_call(module, state, inputs)
