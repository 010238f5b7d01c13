"""What compilation did, counted and with reasons: nothing falls back silently."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from torchtitan_npu.compile.fusion import Partition
from torchtitan_npu.compile.group import Group
from torchtitan_npu.compile.mutation import AFTER, IN_PLACE
from torchtitan_npu.compile.views import is_view
from torchtitan_npu.fused.optimize import Swap


@dataclass(frozen=True)
class FusedKernel:
    """Operators that run as one kernel."""

    name: str
    operators: tuple[str, ...]
    reads: int  # tensors
    writes: int
    checks: tuple[str, ...] = ()  # indices that an operator looks up before, as the kernel cannot raise


@dataclass(frozen=True)
class Unfused:
    """An operator that runs by itself, and why."""

    name: str
    operator: str
    reason: str


@dataclass(frozen=True)
class MemoryBox:
    """An intermediate tensor: where it lies (if it is large, above the arena) and in which steps it lives."""

    name: str
    offset: int
    bytes: int
    first: int
    last: int


@dataclass
class Sinking:
    """Whether the plan runs as one launch of a captured model (option ``sink``).

    Attributes:
        reason: why the plan itself runs; empty while a replay can stand for it.
        captures: models that were recorded.
        replays: calls of the plan that were one launch.
    """

    reason: str = ""
    captures: int = 0
    replays: int = 0

    def __str__(self) -> str:
        if self.reason:
            return f"not sunk: {self.reason}"
        if not self.captures:
            return "sunk from the second call on"
        return f"sunk: {self.captures} capture(s), {self.replays} call(s) were one launch"


@dataclass
class GraphReport:
    """One compiled graph: its passes, its kernels, its other operators.

    Attributes:
        bytes_before: what the operators would read and write one by one, for the sizes of the example inputs.
        bytes_after: what kernels and operators read and write.
        memory: intermediate tensors that kernels write; known once the graph has run, as is what follows.
        arena_bytes: of small ones, which stay between runs.
        peak_bytes: of all of them at one time.
        naive_bytes: of all, if each had memory of its own.
        in_place: how many lie in the memory of an operand that dies, or of an input whose new value they are.
        sinking: None if it is not asked for.
    """

    kind: str  # "inference", "forward" or "backward"
    operators: int  # of the graph, without views
    passes: dict[str, int]
    kernels: list[FusedKernel] = field(default_factory=list)
    unfused: list[Unfused] = field(default_factory=list)
    graph_before: str = ""
    graph_after: str = ""
    bytes_before: int = 0
    bytes_after: int = 0
    memory: list[MemoryBox] = field(default_factory=list)
    arena_bytes: int = 0
    peak_bytes: int = 0
    naive_bytes: int = 0
    in_place: int = 0
    sinking: Sinking | None = None

    @property
    def launches(self) -> int:
        return len(self.kernels) + len(self.unfused) + sum(len(k.checks) for k in self.kernels)

    def leave_out(self, copies: Sequence[Node]) -> None:
        """Operators that turned out to be done by kernels."""
        names = {node.name for node in copies}
        done = [u for u in self.unfused if u.name in names]
        self.unfused = [u for u in self.unfused if u.name not in names]
        self.bytes_after -= sum(moved_bytes(node) for node in copies if node.name in {u.name for u in done})
        counters["unfused_operators"] -= len(done)

    def __str__(self) -> str:
        lines = [f"{self.kind} graph: {self.operators} operators in {self.launches} launches"]
        lines += [f"  pass {name}: {count}" for name, count in self.passes.items() if count]
        for k in self.kernels:
            lines.append(f"  kernel {k.name}: {' '.join(k.operators)} (reads {k.reads}, writes {k.writes})")
            lines += [f"  check of {index}, before {k.name}: indices beyond the table raise" for index in k.checks]
        lines += [f"  alone {u.operator} ({u.name}): {u.reason}" for u in self.unfused]
        if self.sinking is not None:
            lines.append(f"  {self.sinking}")
        return "\n".join(lines)


counters: Counter[str] = Counter()
"""Since the start or the last ``reset()``: graphs, kernels, fused_operators, unfused_operators, fallback_graphs."""

_reports: list[GraphReport] = []
_fallbacks: list[str] = []
_swaps: list[Swap] = []
_lock = threading.Lock()


def reports() -> list[GraphReport]:
    """All graphs compiled since the start or the last :func:`reset`, in order."""
    with _lock:
        return list(_reports)


def fallbacks() -> list[str]:
    """Why graphs were not compiled but run as they are, one text a graph."""
    with _lock:
        return list(_fallbacks)


def swaps() -> list[Swap]:
    """Modules that have a forward of their own while Dynamo traces, with the error; or why they have none."""
    with _lock:
        return list(_swaps)


def note_swap(swap: Swap) -> None:
    with _lock:
        _swaps.append(swap)


def reset() -> None:
    """Forgets reports, reasons and counts."""
    with _lock:
        _swaps.clear()
        _reports.clear()
        _fallbacks.clear()
        counters.clear()


def note_fallback(reason: str) -> None:
    with _lock:
        _fallbacks.append(reason)
        counters["fallback_graphs"] += 1


def operator_name(node: Node) -> str:
    return str(node.target).removesuffix(".default") if node.op == "call_function" else node.op


def is_operator(node: Node) -> bool:
    """Whether the node is work: no input, no view, no part of a tuple, no size."""
    return (
        node.op == "call_function"
        and isinstance(node.target, torch._ops.OperatorBase)
        and not is_view(node)
        and node.target is not AFTER
        and not isinstance(node.meta.get("val"), (torch.SymInt, int))
    )


def moved_bytes(node: Node) -> int:
    """What an operator by itself reads and writes; views and symbolic sizes count at their hints."""
    if node.target in IN_PLACE.values():
        return 2 * sum(_bytes(n) for n in node.all_input_nodes if n is not node.args[0])
    return sum(_bytes(n) for n in [node, *node.all_input_nodes])


def _bytes(node: Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0
    count = value.element_size()
    for size in value.shape:
        count *= size if isinstance(size, int) else size.node.hint or 1
    return count


def note_graph(kind: str, operators: int, passes: dict[str, int], partition: Partition) -> GraphReport:
    """Adds the report of a compiled graph."""
    report = GraphReport(kind, operators, passes)
    for step in partition.steps:
        nodes = [*step.tensors, *partition.stored(step)] if isinstance(step, Group) else []
        report.bytes_after += sum(map(_bytes, nodes))
        if isinstance(step, Node) and is_operator(step):
            report.bytes_after += moved_bytes(step)
    for step in partition.steps:
        if isinstance(step, Node):
            registered = getattr(step.target, "kernel", None)
            if registered is not None:
                names = registered.pattern.fused
                report.kernels.append(FusedKernel(f"registered {registered.pattern}", names, len(step.args), 1))
            elif is_operator(step):
                reason = partition.reasons.get(step, "makes a tensor without reading one")
                report.unfused.append(Unfused(step.name, operator_name(step), reason))
            continue
        names = tuple(operator_name(n) for n in step.operators())
        checks = tuple(check.index.name for check in partition.checks.get(step, ()))
        report.kernels.append(
            FusedKernel(f"kernel_{step.number}", names, len(step.tensors), len(partition.stored(step)), checks)
        )
    with _lock:
        _reports.append(report)
        counters["graphs"] += 1
        counters["kernels"] += len(report.kernels)
        counters["fused_operators"] += sum(len(k.operators) for k in report.kernels)
        counters["unfused_operators"] += len(report.unfused)
    return report
