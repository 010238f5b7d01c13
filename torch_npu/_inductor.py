"""Plain ``torch.compile(model)``, Inductor, on npu tensors: its code for the CPU runs on the memory of the tensors.

Inductor generates code for the devices that it knows. A graph of npu tensors is therefore turned into the same graph of
CPU tensors before Inductor sees it, with every decomposition, pattern and template for the CPU; the code it makes is
called through an operator that has a CPU kernel only, which the fallback runs on npu tensors without a copy. Each call
is an entry ``torch_npu_inductor::code`` in ``torch_npu.fallback_report()``.

Inductor has no hook for this, so :func:`install` wraps the entry that ``torch.compile`` calls. Nothing of Inductor is
imported before the first npu graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from torch_npu.npu._utils import DEVICE_TYPES

CPU = torch.device("cpu")

_codes: list[Callable[[list[Any]], Sequence[Any]]] = []
_library: Any = None


def install() -> None:
    """Lets ``torch.compile(model)`` take npu tensors; other graphs go to Inductor as ever."""
    wrapper: Any = torch._TorchCompileInductorWrapper
    compile_graph = wrapper.__call__

    @wraps(compile_graph)
    def call(self: Any, module: Any, inputs: Sequence[Any], **options: Any) -> Any:
        if not _has_npu(module, inputs):
            return compile_graph(self, module, inputs, **options)
        return _compile(self, module, options.get("config_patches"))

    wrapper.__call__ = call


def _has_npu(module: Any, inputs: Sequence[Any]) -> bool:
    values = [*inputs, *(n.meta.get("example_value") for n in module.graph.nodes)]
    return any(isinstance(v, Tensor) and v.device.type == "npu" for v in values)


def _compile(wrapper: Any, module: Any, patches: dict[str, Any] | None) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    from torchtitan_npu.compile.flex_attention import spell_out_flex_attention

    spell_out_flex_attention(module)  # the CPU has a template for it, but neither gradients nor sums
    on_cpu = _retarget(module)

    def inner(graph: Any, example_inputs: Sequence[Any], **options: Any) -> Any:
        return _called_on_npu(compile_fx_inner(graph, example_inputs, **options))

    settings = {**wrapper.config, **(patches or {})}
    with _autocast_for_cpu():
        compiled: Any = compile_fx(module, on_cpu, inner_compile=inner, config_patches=settings)
    return compiled


def _autocast_for_cpu() -> torch.autocast:
    """Autocast of npu as one of the CPU, by which the graph is traced; Dynamo guards that it stays."""
    return torch.autocast("cpu", torch.get_autocast_dtype("npu"), enabled=torch.is_autocast_enabled("npu"))


def _retarget(module: Any) -> list[Any]:
    """Makes the graph one of CPU tensors; returns its inputs as such.

    Raises:
        RuntimeError: the graph has CPU tensors of its own, whose device would be lost.
    """
    twins: dict[int, tuple[Tensor, Tensor]] = {}

    def twin(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.device.type != "npu":
            if value.dim() > 0:
                raise RuntimeError(
                    f"torch.compile with Inductor on npu: the graph has a tensor on {value.device}, shape "
                    f"{list(value.shape)}, and tensors on npu; move it to npu before, or use backend='npu'"
                )
            return value
        if id(value) not in twins:
            twins[id(value)] = _on_cpu(value), value
        return twins[id(value)][0]

    def device(argument: Any) -> Any:
        if isinstance(argument, torch.device) and argument.type in DEVICE_TYPES:
            return CPU
        return "cpu" if isinstance(argument, str) and argument.split(":")[0] in DEVICE_TYPES else argument

    tree_map = torch.utils._pytree.tree_map
    for node in module.graph.nodes:
        for key in ("val", "example_value"):
            if key in node.meta:
                node.meta[key] = tree_map(twin, node.meta[key])
        node.args = torch.fx.node.map_aggregate(node.args, device)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, device)
        if node.op == "call_method" and node.target in DEVICE_TYPES:  # x.npu(device, non_blocking)
            node.target, node.args = "to", (node.args[0], "cpu")
            node.kwargs = {k: v for k, v in node.kwargs.items() if k == "memory_format"}
    module.recompile()
    # Dynamo hands over real tensors for some inputs; their fake ones are at the placeholders.
    return [node.meta["example_value"] for node in module.graph.nodes if node.op == "placeholder"]


def _on_cpu(value: Tensor) -> Tensor:
    """A fake CPU tensor like a fake npu tensor."""
    mode = getattr(value, "fake_mode", None)
    if mode is None:
        raise RuntimeError(
            f"torch.compile with Inductor on npu: a real tensor of shape {list(value.shape)} in the graph"
        )
    with mode, torch.no_grad():
        twin = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=CPU)
    return twin.requires_grad_(value.requires_grad)


def _called_on_npu(code: Any) -> Callable[[list[Any]], Sequence[Any]]:
    """Inductor's function, taking and giving npu tensors."""
    number = len(_codes)
    _codes.append(code)
    run = _operator()

    def call(arguments: list[Any]) -> Sequence[Any]:
        given = list(arguments)
        arguments.clear()
        tensors = [a for a in given if isinstance(a, Tensor)]
        layout = [None if isinstance(a, Tensor) else a for a in given]
        places: list[Any] = []
        sources = [*tensors, *run(tensors, number, _Call(layout, places).number)]
        return [place.view_of(sources) if isinstance(place, _Place) else place for place in places]

    setattr(call, "_boxed_call", True)  # noqa: B010  AOTAutograd then hands over a list that it no longer needs
    return call


@dataclass(frozen=True)
class _Place:
    """Where a result lies: in the memory of an argument of the operator, or of one of its results."""

    source: int  # among the arguments and, behind them, the results
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def view_of(self, sources: list[Tensor]) -> Tensor:
        base = sources[self.source]
        if (base.size(), base.stride(), base.storage_offset()) == (self.size, self.stride, self.offset):
            return base
        return base.as_strided(self.size, self.stride, self.offset)


class _Call:
    """What one call passes beside its tensors: an operator takes tensors and numbers only."""

    waiting: dict[int, _Call] = {}

    def __init__(self, layout: list[Any], places: list[Any]) -> None:
        self.layout = layout  # None where a tensor belongs
        self.places = places  # filled by the call: a _Place for a tensor, else the value itself
        self.number = id(self)
        self.waiting[self.number] = self

    def run(self, code: Any, tensors: list[Tensor]) -> list[Tensor]:
        """The results with memory of their own: an operator must return neither its arguments nor views of them."""
        rest = iter(tensors)
        results = code([next(rest) if a is None else a for a in self.layout])
        sources = list(tensors)
        known = {(t.untyped_storage()._cdata, t.dtype): i for i, t in enumerate(tensors)}
        for r in results:
            if not isinstance(r, Tensor):
                self.places.append(r)
                continue
            source = known.setdefault((r.untyped_storage()._cdata, r.dtype), len(sources))
            if source == len(sources):
                sources.append(r)
            self.places.append(_Place(source, r.size(), r.stride(), int(r.storage_offset())))
        return sources[len(tensors) :]


def _operator() -> Callable[[list[Tensor], int, int], list[Tensor]]:
    """The operator with a CPU kernel only."""
    global _library
    if _library is None:
        _library = torch.library.Library("torch_npu_inductor", "DEF")
        _library.define("code(Tensor[] tensors, int code, int call) -> Tensor[]")
        _library.impl("code", _run, "CPU")
    return torch.ops.torch_npu_inductor.code.default


def _run(tensors: list[Tensor], code: int, call: int) -> list[Tensor]:
    return _Call.waiting.pop(call).run(_codes[code], tensors)
