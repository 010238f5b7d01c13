"""Runs a compiled graph: a list of steps for given sizes, as generated Python.

A :class:`Plan` is what is known of all sizes: passes are done, groups are formed. For each set of sizes that it meets
it makes a :class:`PlanInstance`: strides and sizes are numbers, the arguments of the launches are laid out, and
one generated function does the calls. Kernels are shared by all instances and all plans of the process, as shapes are
arguments of a launch.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from graph_autofusion.host.launcher import runtime, words_of
from graph_autofusion.kernel import HostKernel
from graph_autofusion.launch_words import Binding
from graph_autofusion.program import TileProgram
from torchtitan_npu.compile.fusion import Partition
from torchtitan_npu.compile.group import Group, Lowered, TensorUse, is_view, lower_group, tensor_of
from torchtitan_npu.compile.sizes import SizeReader
from torchtitan_npu.driver import current_stream_handle

_kernels: dict[str, HostKernel] = {}
_kernels_lock = threading.Lock()


def kernel_of(program: TileProgram) -> HostKernel:
    """The compiled kernel of a program, one a process."""
    with _kernels_lock:
        return _kernels.setdefault(repr(program), HostKernel(program))


@dataclass
class Launch:
    """One kernel of an instance, ready but for the addresses."""

    kernel: HostKernel
    lowered: Lowered
    words: Any


@dataclass
class PlanInstance:
    """A plan for one set of sizes."""

    source: str
    run: Callable[[list[Any]], tuple[Any, ...]]
    launches: list[Launch]


@dataclass
class Plan:
    """A partitioned graph, ready to be run for any sizes."""

    module: GraphModule
    partition: Partition
    threads: int
    instances: dict[tuple[int, ...], PlanInstance] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sizes = SizeReader(self.module.graph)
        self._lock = threading.RLock()
        self._boxed_call = True  # AOTAutograd then hands over the list of arguments, which is emptied as they die

    def __call__(self, arguments: list[Any]) -> tuple[Any, ...]:
        # The words of the launches are the instance's, so that one thread at a time runs the plan.
        with self._lock:
            return self.instance_for(arguments).run(arguments)

    def instance_for(self, arguments: Sequence[Any]) -> PlanInstance:
        key = self._sizes.key(arguments)
        instance = self.instances.get(key)
        if instance is None:
            instance = self.instances[key] = _InstanceWriter(self, self._sizes.resolver(key)).write()
        return instance


class _InstanceWriter:
    """Generates the function of an instance."""

    def __init__(self, plan: Plan, number_of: Callable[[Any], int]) -> None:
        self.plan = plan
        self.number_of = number_of
        self.lines: list[str] = []
        self.names: dict[Node, str] = {}
        self.globals: dict[str, Any] = {"empty_strided": torch.empty_strided, "stream_handle": current_stream_handle}
        self.launches: list[Launch] = []

    def write(self) -> PlanInstance:
        graph, steps = self.plan.module.graph, self.plan.partition.steps
        stored = {g.number: self.plan.partition.stored(g) for g in self.plan.partition.groups}
        self.lowered = {g.number: lower_group(g, stored[g.number], self.number_of) for g in self.plan.partition.groups}
        self._compile_kernels()
        self.used = self._nodes_used_from_python()
        last = self._last_uses(steps)
        inputs = [n for n in graph.nodes if n.op == "placeholder"]
        self.names = {n: f"a{i}" for i, n in enumerate(inputs)}
        self.lines = ["def run(arguments):"]
        if inputs:
            self.lines.append(f"  {', '.join(self.names[n] for n in inputs)}, = arguments")
        self.lines.append("  arguments.clear()")
        if self.plan.partition.groups:
            self.lines.append("  stream = stream_handle()")
        for position, step in enumerate(steps):
            if isinstance(step, Group):
                self._launch(step, stored[step.number])
            elif not is_view(step) or step in self.used:
                self._call(step)
            dead = [self.names[n] for n in last.get(position, ()) if n in self.names]
            if dead:
                self.lines.append(f"  del {', '.join(dead)}")
        (output,) = (n for n in graph.nodes if n.op == "output")
        self.lines.append(f"  return {self._text(tuple(output.args[0]))}")
        source = "\n".join(self.lines) + "\n"
        exec(compile(source, "<npu plan>", "exec"), self.globals)
        return PlanInstance(source, self.globals["run"], self.launches)

    def _compile_kernels(self) -> None:
        """All kernels that are new, side by side: most of the time is the compiler's."""
        kernels = {kernel_of(lowered.program) for lowered in self.lowered.values()}
        runtime().ensure_device()
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda kernel: kernel.binary, kernels))

    # ---- what lives how long

    def _nodes_used_from_python(self) -> set[Node]:
        """Nodes whose tensors the generated code handles; views that only kernels read are addresses."""
        used: set[Node] = set()
        waiting: list[Node] = []
        for step in self.plan.partition.steps:
            if isinstance(step, Node) and not is_view(step):
                waiting.extend(step.all_input_nodes)
        (output,) = (n for n in self.plan.module.graph.nodes if n.op == "output")
        waiting.extend(output.all_input_nodes)
        while waiting:
            node = waiting.pop()
            if node not in used:
                used.add(node)
                if is_view(node):
                    waiting.extend(node.all_input_nodes)
        return used

    def _last_uses(self, steps: Sequence[Group | Node]) -> dict[int, list[Node]]:
        last: dict[Node, int] = {}
        for position, step in enumerate(steps):
            if isinstance(step, Group):
                for use in self.lowered[step.number].uses:
                    last[self._memory_of(use.node)] = position
                    last[use.node] = position
            else:
                for operand in [step, *step.all_input_nodes]:
                    last[operand] = position
        (output,) = (n for n in self.plan.module.graph.nodes if n.op == "output")
        kept = set(output.all_input_nodes)
        dead: dict[int, list[Node]] = {}
        for node, position in last.items():
            if node not in kept:
                dead.setdefault(position, []).append(node)
        return dead

    def _memory_of(self, node: Node) -> Node:
        """The node whose tensor a kernel reads this one from."""
        while is_view(node):
            node = node.args[0]  # type: ignore[assignment]
        return node

    # ---- steps

    def _launch(self, group: Group, stored: Sequence[Node]) -> None:
        lowered = self.lowered[group.number]
        kernel = kernel_of(lowered.program)
        number = len(self.launches)
        bindings = [Binding(0, use.strides) for use in lowered.uses]
        words = words_of(kernel.words.pack(lowered.sizes, bindings))
        self.launches.append(Launch(kernel, lowered, words))
        for node in stored:
            self._allocate(node)
        for position, use in enumerate(lowered.uses):
            self.lines.append(f"  w{number}[{position}] = {self._address(use)}")
        blocks = kernel.blocks(lowered.sizes, self.plan.threads)
        run = runtime()
        call = (kernel.function, blocks, ctypes.byref(words), ctypes.sizeof(words))
        types = (ctypes.c_void_p, ctypes.c_uint32, lambda x: x, ctypes.c_size_t)
        fixed = tuple(kind(value) for kind, value in zip(types, call, strict=True))
        self.globals |= {f"w{number}": words, f"f{number}": fixed, "launch": run.launch, "check": run.check}
        self.lines.append(f"  check(launch(*f{number}, stream))  # {lowered.program.name}")

    def _allocate(self, node: Node) -> None:
        tensor = tensor_of(node)
        name = self.names[node] = f"v{len(self.names)}"
        shape = tuple(self.number_of(n) for n in tensor.shape)
        strides = tuple(self.number_of(s) for s in tensor.stride())
        options = f"dtype={self._constant(tensor.dtype)}, device={self._constant(tensor.device)}"
        self.lines.append(f"  {name} = empty_strided({shape}, {strides}, {options})")

    def _address(self, use: TensorUse) -> str:
        """Of the element with index 0: views are offsets from the tensor whose memory they are in."""
        base = self._memory_of(use.node)
        view, memory = tensor_of(use.node), tensor_of(base)
        offset = self.number_of(view.storage_offset()) - self.number_of(memory.storage_offset())
        address = f"{self.names[base]}.data_ptr()"
        return f"{address} + {offset * view.element_size()}" if offset else address

    def _call(self, node: Node) -> None:
        """An operator that is no part of a kernel."""
        arguments = [self._text(a) for a in node.args] + [f"{k}={self._text(v)}" for k, v in node.kwargs.items()]
        name = f"v{len(self.names)}"
        if node.op == "get_attr":
            value: Any = self.plan.module
            for part in str(node.target).split("."):
                value = getattr(value, part)
            text = self._constant(value)
        else:
            assert node.op == "call_function", node.format_node()
            text = f"{self._constant(node.target)}({', '.join(arguments)})"
        self.names[node] = name
        self.lines.append(f"  {name} = {text}")

    def _text(self, value: Any) -> str:
        """An argument as source."""
        if isinstance(value, Node):
            return self.names[value]
        if isinstance(value, (list, tuple)):
            inside = ", ".join(self._text(v) for v in value)
            return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        return self._constant(value)

    def _constant(self, value: Any) -> str:
        for name, known in self.globals.items():
            if known is value:
                return name
        name = f"c{len(self.globals)}"
        self.globals[name] = value
        return name
