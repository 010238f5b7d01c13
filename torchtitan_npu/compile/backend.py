"""``torch.compile(model, backend="npu")``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule

from torchtitan_npu.compile import report
from torchtitan_npu.compile.attention import fuse_attention
from torchtitan_npu.compile.cross_entropy import fuse_cross_entropy
from torchtitan_npu.compile.decompositions import decompositions
from torchtitan_npu.compile.flex_attention import spell_out_flex_attention
from torchtitan_npu.compile.folding import FOLDING, PREPARATIONS, Folded, FoldedPlan, fold_constants
from torchtitan_npu.compile.fusion import partition
from torchtitan_npu.compile.lazy_negations import spell_out_negations, take_tangents_as_they_lie
from torchtitan_npu.compile.linear import fuse_linear_activation
from torchtitan_npu.compile.mixtures import NAME as FUSE_MIXTURES
from torchtitan_npu.compile.mixtures import count_mixtures, watch_mixtures
from torchtitan_npu.compile.mutation import write_in_place
from torchtitan_npu.compile.passes import PASSES, optimize
from torchtitan_npu.compile.plan import Plan
from torchtitan_npu.compile.random_states import RANDOM_STATES, note_sizes_of_states
from torchtitan_npu.compile.registered import use_registered_kernels
from torchtitan_npu.compile.rotary import fuse_rotary
from torchtitan_npu.compile.sizes import SizeReader
from torchtitan_npu.compile.views import changes_an_operand

PASSES_OF_FUNCTIONS: dict[str, Callable[[GraphModule], int]] = {
    "spell_out_flex_attention": spell_out_flex_attention,
    "fuse_attention": fuse_attention,
    "fuse_rotary": fuse_rotary,
    "fuse_cross_entropy": fuse_cross_entropy,
    FUSE_MIXTURES: count_mixtures,  # they are fused before Dynamo traces
}
"""Passes over Dynamo's graph of torch's functions, for forward and backward alike; in order."""


@dataclass(frozen=True)
class Options:
    """``torch.compile(…, options={…})`` of the backend.

    Attributes:
        fusion: print fused kernels; False runs every operator by itself, which needs no compiler.
        threads: of a kernel at most; None takes ``torch.get_num_threads()``.
        sink: run a plan of fixed sizes as one launch of a captured model, after a first run.
        freezing: in inference, compute what depends on parameters and buffers only once, until one of them changes.
        passes: switches passes of the graph optimiser by name, such as ``{"remove_cast_chains": False}``.
    """

    fusion: bool = True
    threads: int | None = None
    sink: bool = True
    freezing: bool = False
    passes: dict[str, bool] = field(default_factory=dict)

    @staticmethod
    def read(mode: str | None, options: dict[str, Any] | None) -> Options:
        """Raises ValueError for an unknown mode, option or pass."""
        if mode not in (None, "default", "reduce-overhead", "max-autotune"):
            raise ValueError(f"mode={mode!r}: backend 'npu' knows default, reduce-overhead and max-autotune")
        known = {f.name for f in fields(Options)}
        given = Options(**{k: v for k, v in (options or {}).items() if k in known})
        if unknown := sorted(set(options or {}) - known):
            raise ValueError(f"options {unknown}: backend 'npu' knows {sorted(known)}")
        passes = [*PASSES_OF_FUNCTIONS, *PASSES, *FOLDING, "fuse_linear_activation", "write_in_place"]
        if unknown := sorted(set(given.passes) - set(passes)):
            raise ValueError(f"passes {unknown}: the graph optimiser has {passes}")
        return given

    def enables(self, name: str) -> bool:
        """Whether a pass is switched on."""
        return self.passes.get(name, True)


def npu(
    module: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """The Dynamo backend: compiles the graph, and later its backward, into plans of fused kernels and operators.

    A graph without npu tensors is run as it is; :func:`torchtitan_npu.compile.fallbacks` then says so.

    Raises:
        ValueError: unknown mode or option.
        CompilerError: fused kernels cannot be compiled.
    """
    chosen = Options.read(mode, options)
    watch_mixtures(passes_of)
    if not _has_npu_tensor(module, example_inputs):
        report.note_fallback(f"graph of {len(module.graph.nodes)} nodes: no tensor of it is on device npu")
        return module.forward
    found = {name: run(module) if chosen.enables(name) else 0 for name, run in PASSES_OF_FUNCTIONS.items()}
    return aot_autograd(
        fw_compiler=functools.partial(_compile, chosen, "forward", found),
        bw_compiler=functools.partial(_compile, chosen, "backward", {}),
        inference_compiler=functools.partial(_compile, chosen, "inference", found),
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )(module, example_inputs)


def passes_of(backend: Any) -> dict[str, bool] | None:
    """The option ``passes`` of a backend that Dynamo was given; None for backends of others."""
    if getattr(backend, "compiler_fn", backend) is not npu:
        return None
    return Options.read(None, getattr(backend, "kwargs", {}).get("options")).passes


def _has_npu_tensor(module: GraphModule, inputs: Sequence[Any]) -> bool:
    tensors = [v for v in inputs if isinstance(v, torch.Tensor)]
    tensors += [v for n in module.graph.nodes if isinstance(v := n.meta.get("example_value"), torch.Tensor)]
    return any(t.device.type == "npu" for t in tensors)


def _compile(
    options: Options, kind: str, found: dict[str, int], module: GraphModule, inputs: Sequence[Any]
) -> Callable[..., Any]:
    """One ATen graph of AOTAutograd; ``found``: what passes over Dynamo's graph did."""
    note_sizes_of_states(module)
    if reason := _why_not_a_plan(module):
        report.note_fallback(f"{kind} graph of {len(module.graph.nodes)} nodes: {reason}")
        return make_boxed_func(module.forward)
    tangents = take_tangents_as_they_lie(module.graph) if kind == "backward" else ()
    spell_out_negations(module.graph)
    operators = [n for n in module.graph.nodes if report.is_operator(n)]
    bytes_before, graph_before = sum(map(report.moved_bytes, operators)), str(module.graph)
    applied = found | optimize(module.graph, options.enables)
    folded = _fold(options, module, applied) if options.freezing and kind == "inference" else None
    if options.fusion:
        applied["use_registered_kernels"] = use_registered_kernels(module.graph)
    if options.enables("fuse_linear_activation"):
        applied["fuse_linear_activation"] = fuse_linear_activation(module.graph)
    if options.enables("write_in_place"):
        applied["write_in_place"] = write_in_place(module.graph)
    parts = partition(module.graph, options.fusion)
    noted = report.note_graph(kind, len(operators), applied, parts)
    noted.bytes_before, noted.graph_before, noted.graph_after = bytes_before, graph_before, str(module.graph)
    plan = Plan(module, parts, options.threads or torch.get_num_threads(), noted, options.sink, tangents)
    return plan if folded is None else FoldedPlan(folded, plan)


def _fold(options: Options, module: GraphModule, applied: dict[str, int]) -> Folded | None:
    """Takes constants out of an inference graph; the number of what each pass did goes into ``applied``."""
    context = torch._guards.TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return None
    frozen = context.fw_metadata.static_input_indices
    for name, prepare in PREPARATIONS.items():
        if options.enables(name):
            applied[name] = prepare(module.graph, frozen)
    folded = fold_constants(module, frozen) if options.enables("fold_constants") else None
    applied["fold_constants"] = 0 if folded is None else folded.count
    return folded


def _why_not_a_plan(module: GraphModule) -> str:
    """A reason why the order of the graph's operators must stay as it is; empty if there is none."""
    sizes = SizeReader(module.graph)
    for node in module.graph.nodes:
        if node.op in ("call_module", "call_method"):
            return f"{node.op} {node.target}"
        if isinstance(node.target, torch._ops.HigherOrderOperator) and node.target not in RANDOM_STATES:
            return f"the higher-order operator {node.target} runs graphs of its own"
        if changes_an_operand(node) and node.target is not torch.ops.aten.copy_.default:
            return f"{node.target} changes its arguments"
        if size := sizes.unknown_in(node.meta.get("val")):
            return f"the size {size} of {node.name} depends on data, and a plan is made before it runs"
    return ""
