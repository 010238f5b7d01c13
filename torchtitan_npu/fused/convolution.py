"""Convolutions with batch norm, the addition of a residual and relu behind them, for inference: one operator each."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from torchtitan_npu.fused.offer import Forward, Offer, Refused


class Folded(nn.Module):
    """A convolution whose weight contains the batch norm behind it, packed for the operator.

    Before each call the memory and the versions of both modules' tensors are compared with those that were folded, and
    if any is not the same all is computed anew. (A write through ``tensor.data`` has no version: PyTorch does not know
    of it, either.)
    """

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv, self.norm = conv, norm
        self._seen: tuple[tuple[int, int], ...] = ()
        self._packed_for: tuple[torch.Size, int] | None = None
        self._packed: Tensor | None = None
        self._bias: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """Those that are folded."""
        conv, norm = self.conv, self.norm
        found = (conv.weight, conv.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var)
        return [t for t in found if t is not None]

    def applies(self) -> bool:
        """Not in training, nor where a gradient of the tensors is wanted, nor in another dtype."""
        wanted = torch.is_grad_enabled() and any(t.requires_grad for t in self.tensors())
        return not (self.norm.training or wanted or torch.is_autocast_enabled("npu"))

    def forward(self, x: Tensor, residual: Tensor | None = None, activation: str = "") -> Tensor:
        conv = self.conv
        weight, bias = self._weights(x)
        adds = residual is None or self._result_size(x) == residual.shape
        options = (conv.weight.shape, bias, conv.stride, conv.padding, conv.dilation, conv.groups)
        if adds:
            return torch.ops.npu.npu_conv2d_packed(x, weight, *options, residual=residual, activation=activation)
        y = torch.ops.npu.npu_conv2d_packed(x, weight, *options) + residual
        return y.relu() if activation else y

    def _result_size(self, x: Tensor) -> tuple[int, ...]:
        conv = self.conv
        assert not isinstance(conv.padding, str), "such a convolution is not folded"
        spatial = (
            (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for size, padding, dilation, kernel, stride in zip(
                x.shape[2:], conv.padding, conv.dilation, conv.kernel_size, conv.stride, strict=True
            )
        )
        return (x.shape[0], conv.out_channels, *spatial)

    def _weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        seen = tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in self.tensors())
        # The best layout is another one for other images or threads, and reordering in each call is slow.
        layout_of = x.shape, torch.get_num_threads()
        if self._packed is None or self._bias is None or seen != self._seen or layout_of != self._packed_for:
            self._packed, self._bias = self._fold(x)
            self._seen, self._packed_for = seen, layout_of
        return self._packed, self._bias

    def _fold(self, x: Tensor) -> tuple[Tensor, Tensor]:
        conv, norm = self.conv, self.norm
        assert norm.running_mean is not None, "a norm without statistics is not folded"
        assert norm.running_var is not None
        with torch.inference_mode(False), torch.no_grad():
            weight, bias = torch.nn.utils.fuse_conv_bn_weights(
                conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
            )
            packed = torch.ops.npu.npu_conv2d_pack_weight(
                weight, x.shape, conv.stride, conv.padding, conv.dilation, conv.groups
            )
        return packed, bias.detach()


def _folds(conv: Any, norm: Any) -> bool:
    """Whether two modules behind each other can be folded."""
    return (
        isinstance(conv, nn.Conv2d)
        and isinstance(norm, nn.BatchNorm2d)
        and norm.num_features == conv.out_channels
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
    )


def conv_batch_norm(module: nn.Module) -> Offer | None:
    """2-d convolutions and the batch norms behind them, with residuals and relu where the forward shows them."""
    inlined = list(_inlined(module))
    pairs = [pair for m in (module, *inlined) for pair in pairwise(m.children()) if _folds(*pair)]
    if not pairs:
        return None
    if any(norm.training for _, norm in pairs):
        raise Refused("batch norm is in training mode; call model.eval() first")
    if any(norm.running_mean is None for _, norm in pairs):
        raise Refused("batch norm keeps no running statistics")
    first = next(m for m in module.modules() if isinstance(m, nn.Conv2d))
    # A wrong swap gives another function altogether; whole networks of right ones sum up many roundings.
    offer = partial(Offer, sample=(1, first.in_channels, 32, 32), units=1024, half_units=16)
    traced = _trace(module, inlined)
    if traced is not None:
        forward = _traced_forward(module, traced)
        return None if forward is None else offer([{module: forward}], covers=inlined)
    own = [pair for pair in pairwise(module.children()) if _folds(*pair)]
    return offer([_pairs_alone(own)]) if own else None


# ---- where the forward can be traced


def _inlined(module: nn.Module) -> Iterator[nn.Module]:
    """Submodules that are parts of one step: a convolution with its norm, or a sequence of such."""
    for child in module.children():
        if _is_part(child):
            yield child
            yield from _inlined(child)


def _is_part(module: nn.Module) -> bool:
    if not any(True for _ in module.children()):
        return False
    convolutions = sum(isinstance(m, nn.Conv2d) for m in module.modules())
    if convolutions <= 1:
        return convolutions == 1
    return isinstance(module, nn.Sequential) and all(not any(True for _ in c.children()) or _is_part(c) for c in module)


class _Tracer(fx.Tracer):
    def __init__(self, inlined: list[nn.Module]) -> None:
        super().__init__()
        self._inlined = {id(m) for m in inlined}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return id(m) not in self._inlined


def _trace(module: nn.Module, inlined: list[nn.Module]) -> fx.GraphModule | None:
    """The forward as a graph with parts inlined; None where it depends on values or takes more than an image."""
    try:
        graph = _Tracer(inlined).trace(module)
    except (fx.proxy.TraceError, TypeError, ValueError, RuntimeError, AttributeError, NotImplementedError):
        return None
    if sum(n.op == "placeholder" for n in graph.nodes) != 1:
        return None
    return fx.GraphModule(module, graph)


def _traced_forward(module: nn.Module, traced: fx.GraphModule) -> Forward | None:
    """A forward with folded convolutions; None if there are none, or each is part of one submodule alone."""
    _drop_identities(traced)
    chains = []
    for node in reversed(list(traced.graph.nodes)):
        if _is_folded_step(traced, node):
            chains.append(_Chain.of(traced, node))
            chains[-1].fuse(traced)
    if all(chain.is_of_submodule for chain in chains):
        return None
    traced.graph.lint()
    traced.recompile()
    return _unless_training([c.step for c in chains], traced.forward, module.forward)


def _unless_training(steps: list[Folded], fused: Forward, original: Forward) -> Forward:
    """``fused`` for inference, else ``original``; compilers see the original, too, which they fold themselves."""
    dtypes = {step: step.conv.weight for step in steps}

    def forward(x: Tensor) -> Any:
        fits = all(w.dtype == x.dtype for w in dtypes.values())
        if torch.compiler.is_compiling() or not fits or not all(step.applies() for step in steps):
            return original(x)
        return fused(x)

    # What a graph of this forward has computed with before (torchtitan_npu.sinking.watch).
    forward.folds = [t for step in steps for t in step.tensors()]  # type: ignore[attr-defined]
    return forward


def _drop_identities(traced: fx.GraphModule) -> None:
    for node in list(traced.graph.nodes):
        if node.op == "call_module" and isinstance(_called(traced, node), nn.Identity):
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)


def _called(traced: fx.GraphModule, node: Any) -> nn.Module | None:
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    return traced.get_submodule(str(node.target))


def _is_folded_step(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Whether it is a batch norm of a convolution that nobody else reads."""
    norm = _called(traced, node)
    if not isinstance(norm, nn.BatchNorm2d):
        return False
    before = node.args[0]
    conv = _called(traced, before)
    return _folds(conv, norm) and isinstance(before, fx.Node) and len(before.users) == 1


@dataclass(frozen=True)
class _Chain:
    """A convolution, its norm and what of addition and relu follows."""

    step: Folded
    nodes: list[fx.Node]
    residual: fx.Node | None
    activation: str

    @staticmethod
    def of(traced: fx.GraphModule, norm: fx.Node) -> _Chain:
        conv = norm.args[0]
        assert isinstance(conv, fx.Node)
        nodes, residual, activation = [conv, norm], None, ""
        added = _sole_user(norm)
        if added is not None and (other := _added(added, norm)) is not None:
            nodes.append(added)
            residual = other
        follows = _sole_user(nodes[-1])
        if follows is not None and _is_relu(traced, follows):
            nodes.append(follows)
            activation = "relu"
        step = Folded(_called(traced, conv), _called(traced, norm))  # type: ignore[arg-type]
        return _Chain(step, nodes, residual, activation)

    def fuse(self, traced: fx.GraphModule) -> None:
        """Puts one module in the place of the chain."""
        conv, last = self.nodes[0], self.nodes[-1]
        name = f"folded_{conv.name}"
        traced.add_submodule(name, self.step)
        with traced.graph.inserting_before(last):
            fused = traced.graph.call_module(name, (conv.args[0], self.residual, self.activation))
        last.replace_all_uses_with(fused)
        for node in reversed(self.nodes):
            traced.graph.erase_node(node)

    @property
    def is_of_submodule(self) -> bool:
        """Whether all of it happens in one submodule, which then is the one to convert."""
        paths = [list(node.meta.get("nn_module_stack") or {}) for node in self.nodes]
        return all(len(path) > 1 for path in paths) and len({path[0] for path in paths}) == 1


def _sole_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


_ADDITIONS = (operator.add, torch.add)
_IN_PLACE = (operator.iadd,)


def _added(node: fx.Node, to: fx.Node) -> fx.Node | None:
    """What a node adds to another one; None where it does something else, or writes into the other operand."""
    if node.kwargs or len(node.args) != 2 or not all(isinstance(a, fx.Node) for a in node.args):
        return None
    in_place = node.target in _IN_PLACE or (node.op == "call_method" and node.target == "add_")
    plain = node.target in _ADDITIONS or (node.op == "call_method" and node.target == "add")
    first, second = node.args
    if first is second or not (plain or in_place) or (in_place and first is not to):
        return None
    return second if first is to else first  # type: ignore[return-value]


def _is_relu(traced: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(_called(traced, node), nn.ReLU)
    if node.op == "call_method":
        return node.target in ("relu", "relu_")
    return node.target in (F.relu, torch.relu, torch.relu_)


# ---- where it cannot


def _pairs_alone(pairs: list[tuple[Any, Any]]) -> dict[nn.Module, Forward]:
    """Convolutions that contain their norms, and norms that do nothing."""
    swap: dict[nn.Module, Forward] = {}
    for conv, norm in pairs:
        step = Folded(conv, norm)
        swap[conv] = _unless_training([step], step.forward, conv.forward)
        swap[norm] = _unless_training([step], lambda x: x, norm.forward)
    return swap
