"""Runs a compiled graph: a list of steps for given sizes.

A :class:`Plan` is what is known of all sizes: passes are done, groups are formed. For each set of sizes that it meets
it makes a :class:`~torchtitan_npu.compile.instance.PlanInstance`: strides and sizes are numbers, memory is planned,
the arguments of the launches are laid out, and one generated function does the calls. Kernels are shared by all
instances and plans of the process, as shapes are arguments of a launch.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule

from graph_autofusion.host.launcher import runtime
from torchtitan_npu.compile.fusion import Partition
from torchtitan_npu.compile.instance import PlanInstance, write_instance
from torchtitan_npu.compile.lazy_negations import resolve_tangents
from torchtitan_npu.compile.passes import is_written
from torchtitan_npu.compile.report import GraphReport, MemoryBox, Sinking
from torchtitan_npu.compile.sizes import SizeReader
from torchtitan_npu.compile.sunk import SunkPlan
from torchtitan_npu.driver import count_in_graph, current_stream_handle, keep_in_graph, npu


@dataclass
class Plan:
    """A partitioned graph, ready to be run for any sizes."""

    module: GraphModule
    partition: Partition
    threads: int
    report: GraphReport
    sink: bool = False  # replay a captured model where possible
    tangents: tuple[int, ...] = ()  # inputs that may be lazily negated although the graph was traced without
    instances: dict[tuple[int, ...], PlanInstance] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sizes = SizeReader(self.module.graph)
        self._lock = threading.RLock()
        self._stream: int | None = None
        self._sunk: SunkPlan | None = None
        self._boxed_call = True  # AOTAutograd then hands over the list of arguments, which is emptied as they die

    def __call__(self, arguments: list[Any]) -> tuple[Any, ...]:
        # Arena and launch arguments are the instance's: one thread at a time runs the plan, one stream after another.
        resolve_tangents(arguments, self.tangents)
        with self._lock:
            if self._sunk is not None and (results := self._sunk.again(arguments)) is not None:
                return results
            # A thread of autograd whose first work is this plan has chosen a device, and CANN does not know yet.
            runtime().ensure_device(torch._C._accelerator_getDeviceIndex())
            if npu.is_current_stream_capturing():
                return self._record(arguments)
            stream = current_stream_handle()
            if stream != self._stream:
                if self._stream is not None:
                    torch.accelerator.synchronize()
                self._stream = stream
            instance = self.instance_for(arguments)
            if self._sunk is not None and (results := self._sunk(arguments)) is not None:
                return results
            return instance.run(arguments, stream)

    def _record(self, arguments: list[Any]) -> tuple[Any, ...]:
        """Runs into a graph that somebody captures, and lets it hold the memory that kernels know by address."""
        instance = self.instance_for(arguments)
        for tensor in [*instance.constants, *arguments]:
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "npu":
                keep_in_graph(tensor)
        count_in_graph(sum(len(launch.kernels) for launch in instance.launches))
        return instance.run(arguments, current_stream_handle())

    def instance_for(self, arguments: Sequence[Any]) -> PlanInstance:
        key = self._sizes.key(arguments)
        instance = self.instances.get(key)
        if instance is None:
            # Memory of their own is only for graphs of fixed sizes: there might be very many of the others.
            resolver = self._sizes.resolver(key)
            instance = write_instance(self.module, self.partition, self.threads, resolver, with_arena=not key)
            self.instances[key] = instance
            self._note_memory(instance)
            if self.sink:
                self._plan_to_sink(instance, key)
        return instance

    def _plan_to_sink(self, instance: PlanInstance, key: tuple[int, ...]) -> None:
        self.report.sinking = self.report.sinking or Sinking()
        if key:
            self.report.sinking.reason = "its sizes are symbols, and a captured model has numbers"
            return
        inputs = [n for n in self.module.graph.nodes if n.op == "placeholder"]
        written = [i for i, n in enumerate(inputs) if is_written(n)]
        self._sunk = SunkPlan(instance.run, written, self.report.sinking)

    def _note_memory(self, instance: PlanInstance) -> None:
        """For the report of the graph."""
        plan = instance.memory
        self.report.arena_bytes, self.report.naive_bytes = plan.arena_bytes, plan.naive_bytes
        self.report.peak_bytes, self.report.in_place = plan.bytes, instance.in_place
        self.report.leave_out(instance.done_by_kernels)
        self.report.memory = [
            MemoryBox(name, offset, life.bytes, life.first, life.last)
            for (name, life), offset in zip(instance.lifetimes, plan.offsets, strict=True)
        ]
