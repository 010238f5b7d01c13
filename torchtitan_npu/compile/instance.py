"""A plan for given sizes: memory, launch arguments, and the generated function that runs it."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from graph_autofusion.host.launcher import runtime, words_of
from graph_autofusion.kernel import POINTS_PER_BLOCK, HostKernel
from graph_autofusion.program import TileProgram
from graph_autofusion.sequence import pack_sequence, sequence_function
from torchtitan_npu.compile.fusion import Partition
from torchtitan_npu.compile.gathering import Check
from torchtitan_npu.compile.group import Group
from torchtitan_npu.compile.group_program import Lowered, TensorUse, lower_group
from torchtitan_npu.compile.memory import Lifetime, MemoryPlan, is_large, plan_memory
from torchtitan_npu.compile.nodes import tensor_of
from torchtitan_npu.compile.reuse import ReuseFinder, bytes_of
from torchtitan_npu.compile.views import aliased_by, gives_new_memory, is_view, may_alias, memory_of
from torchtitan_npu.driver import require_plain_format

aten = torch.ops.aten

POINTS_BESIDE_OPERATORS = 2 * POINTS_PER_BLOCK
"""Where operators run in the plan, too: their threads (OpenMP's) wait for their next work on the same processors."""
LARGE = 1 << 17
"""Points of a kernel that is a launch of its own, also on one thread."""

_kernels: dict[str, HostKernel] = {}
_kernels_lock = threading.Lock()


def kernel_of(program: TileProgram) -> HostKernel:
    """The compiled kernel of a program, one a process."""
    with _kernels_lock:
        return _kernels.setdefault(repr(program), HostKernel(program))


@dataclass
class Launch:
    """Kernels that go to the device in one call, and the words of the call."""

    kernels: list[HostKernel]
    lowered: list[Lowered]
    words: Any


@dataclass
class PlanInstance:
    """A plan for one set of sizes."""

    source: str
    run: Callable[[list[Any], int], tuple[Any, ...]]
    launches: list[Launch]
    constants: list[torch.Tensor]  # that kernels read or write by address: the arena, tables of checks
    memory: MemoryPlan
    lifetimes: list[tuple[str, Lifetime]] = field(default_factory=list)  # of the planned tensors, by node
    in_place: int = 0  # results that lie in the memory of an operand or an input
    done_by_kernels: list[Node] = field(default_factory=list)  # copies into inputs


def write_instance(
    module: GraphModule, partition: Partition, threads: int, number_of: Callable[[Any], int], with_arena: bool
) -> PlanInstance:
    """Compiles the kernels that are new, plans memory and generates the function."""
    return _InstanceWriter(module, partition, threads, number_of, with_arena).write()


def laid_out(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The result of an operator in the layout that its meta kernel promised, which kernels and later graphs rely on.

    Some operators give another one on this device (the gradients of attention do); dimensions of size 1 do not count.
    """
    dims = zip(tensor.shape, tensor.stride(), strides, strict=True)
    if tensor.numel() == 0 or all(size == 1 or is_ == expected for size, is_, expected in dims):
        return tensor
    result = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return result.copy_(tensor)


class _InstanceWriter:
    def __init__(
        self, module: GraphModule, partition: Partition, threads: int, number_of: Callable[[Any], int], with_arena: bool
    ) -> None:
        self.module = module
        self.partition = partition
        self.threads = threads
        calls = (s for s in partition.steps if isinstance(s, Node) and s.op == "call_function" and not is_view(s))
        self.points_per_block = POINTS_BESIDE_OPERATORS if any(calls) else POINTS_PER_BLOCK
        self.number_of = number_of
        self.stored = {g.number: partition.stored(g) for g in partition.groups}
        self.lowered = {g.number: lower_group(g, self.stored[g.number], number_of) for g in partition.groups}
        (self.output,) = (n for n in module.graph.nodes if n.op == "output")
        self.inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.used = self._nodes_used_from_python()
        self.last = self._last_uses()
        self.escaping = self._escaping()
        self.reuse = ReuseFinder(partition, self.lowered, self.last, self.escaping, number_of).find(with_arena)
        for result, changed in self.reuse.inputs.items():
            self.last[changed] = max(self.last[changed], self.last[result])
        self.lines: list[str] = []
        self.names: dict[Node, str] = {}
        self.globals: dict[str, Any] = {"empty_strided": torch.empty_strided, "laid_out": laid_out}
        self.globals["increment_version"] = torch.autograd.graph.increment_version
        self.launches: list[Launch] = []
        self.input_words: list[tuple[Any, int, Node, int]] = []  # words that hold an input's address plus an offset
        self.with_arena = with_arena
        self.fixed: dict[Node, torch.Tensor] = {}  # tensors in the arena
        self.forgotten: set[Node] = set()  # names that were deleted
        self.check_tables: list[torch.Tensor] = []

    def write(self) -> PlanInstance:
        self._compile_kernels()
        plan, lifetimes = self._plan_memory()
        self.names |= {n: f"a{i}" for i, n in enumerate(self.inputs)}
        body = self._steps()
        self.lines.append("def run(arguments, stream):")
        if self.inputs:
            self.lines.append(f"  {', '.join(self.names[n] for n in self.inputs)}, = arguments")
        self.lines.append("  arguments.clear()")
        self._bind_inputs()
        self.lines += body
        self.lines.append(f"  return {self._text(tuple(self.output.args[0]))}")
        source = "\n".join(self.lines) + "\n"
        exec(compile(source, "<npu plan>", "exec"), self.globals)
        return PlanInstance(
            source,
            self.globals["run"],
            self.launches,
            [*self.fixed.values(), *self.check_tables],
            plan,
            lifetimes,
            len(self.reuse.operands) + len(self.reuse.inputs),
            [n for n in self.partition.steps if isinstance(n, Node) and self._is_done_by_a_kernel(n)],
        )

    def _compile_kernels(self) -> None:
        """All kernels that are new, side by side: most of the time is the compiler's."""
        kernels = list({id(k): k for lowered in self.lowered.values() for k in [kernel_of(lowered.program)]}.values())
        runtime().ensure_device()
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda kernel: kernel.binary, kernels))

    # ---- what lives how long

    def _nodes_used_from_python(self) -> set[Node]:
        """Nodes whose tensors the generated code handles; views that only kernels read are addresses."""
        used: set[Node] = set()
        waiting: list[Node] = list(self.output.all_input_nodes)
        for step in self.partition.steps:
            if isinstance(step, Node) and not is_view(step):
                waiting.extend(step.all_input_nodes)
        waiting += [check.index for checks in self.partition.checks.values() for check in checks]
        while waiting:
            node = waiting.pop()
            if node not in used:
                used.add(node)
                if is_view(node):
                    waiting.extend(node.all_input_nodes)
        return used

    def _last_uses(self) -> dict[Node, int]:
        """The position of the last step that uses each node, and for memory any view of it."""
        last: dict[Node, int] = {}
        for position, step in enumerate(self.partition.steps):
            if isinstance(step, Group):
                nodes = [use.node for use in self.lowered[step.number].uses]
                nodes += [check.index for check in self.partition.checks.get(step, ())]
            else:
                nodes = [step, *step.all_input_nodes]
            for node in nodes:
                last[node] = last[memory_of(node)] = position
        for node in reversed(self.module.graph.nodes):  # memory is needed as long as whatever else lies in it
            if may_alias(node) and node in last:
                for operand in map(memory_of, aliased_by(node)):
                    last[operand] = max(last.get(operand, 0), last[node])
        return last

    def _escaping(self) -> set[Node]:
        """Nodes whose memory outlives the run."""
        escaping = {memory_of(n) for n in self.output.all_input_nodes}
        for node in reversed(self.module.graph.nodes):
            if may_alias(node) and node in escaping:
                escaping |= set(map(memory_of, aliased_by(node)))
        return escaping

    def _plan_memory(self) -> tuple[MemoryPlan, list[tuple[str, Lifetime]]]:
        """Places what kernels write and nobody outside reads; small tensors into one arena, which stays."""
        lifetimes: dict[Node, Lifetime] = {}
        for position, step in enumerate(self.partition.steps) if self.with_arena else ():
            for node in self.stored[step.number] if isinstance(step, Group) else ():
                if node in self.escaping or node in self.reuse.inputs:
                    continue
                source = self.reuse.operands.get(node)
                if source is None:
                    lifetimes[node] = Lifetime(self._bytes(node), position, self.last[node])
                while source is not None:  # the first of several in one place lives as long as the last
                    if source in lifetimes:
                        lifetimes[source] = replace(lifetimes[source], last=self.last[node])
                    source = self.reuse.operands.get(source)
        plan = plan_memory(list(lifetimes.values()))
        if plan.arena_bytes:
            device = tensor_of(next(iter(lifetimes))).device
            arena = torch.empty(plan.arena_bytes, dtype=torch.uint8, device=device)
            for node, offset in zip(lifetimes, plan.offsets, strict=True):
                if not is_large(self._bytes(node)):
                    tensor, size = tensor_of(node), self._bytes(node)
                    flat = arena[offset : offset + size].view(tensor.dtype)
                    self.fixed[node] = flat.as_strided(self._numbers(tensor.shape), self._numbers(tensor.stride()))
                    self.names[node] = self._constant(self.fixed[node])
        in_place = sum(map(self._bytes, (*self.reuse.operands, *self.reuse.inputs)))
        return replace(plan, naive_bytes=plan.naive_bytes + in_place), [(n.name, t) for n, t in lifetimes.items()]

    def _numbers(self, sizes: Sequence[Any]) -> tuple[int, ...]:
        return tuple(self.number_of(n) for n in sizes)

    def _bytes(self, node: Node) -> int:
        return bytes_of(node, self.number_of)

    # ---- steps

    def _steps(self) -> list[str]:
        """The calls, in order; neighbouring small kernels are one launch."""
        lines: list[str] = []
        waiting: list[Group] = []
        for position, step in enumerate(self.partition.steps):
            if isinstance(step, Group) and step in self.partition.checks:
                lines += self._launch(waiting) + [line for c in self.partition.checks[step] for line in self._check(c)]
                waiting = []
            if isinstance(step, Group) and not self._is_worth_a_launch(step):
                waiting.append(step)
            elif isinstance(step, Group):
                lines += self._launch(waiting) + self._launch([step]) + self._deletions(position)
                waiting = []
            elif step.op == "get_attr" or not is_view(step) or step in self.used:
                lines += self._launch(waiting) + self._call(step)
                waiting = []
                lines += self._deletions(position)
        return lines + self._launch(waiting)

    def _check(self, check: Check) -> list[str]:
        """Looks indices up in a table that is one element everywhere, which raises for those that are not in it."""
        sizes = (1,) * check.through + (self.number_of(check.size),)
        device = tensor_of(check.index).device
        index = self.names[check.index]
        table = torch.zeros((), device=device).expand(sizes if check.wraps else (sizes[-1], 1))
        self.check_tables.append(table)
        given = self._constant(table)
        if check.wraps:
            places = "None, " * check.through
            return [f"  {self._constant(aten.index.Tensor)}({given}, [{places}{index}])  # raises beyond the table"]
        return [f"  {self._constant(aten.embedding.default)}({given}, {index})  # raises beyond the table"]

    def _blocks(self, group: Group) -> int:
        """On how many threads a kernel runs."""
        lowered = self.lowered[group.number]
        return kernel_of(lowered.program).blocks(lowered.sizes, self.threads, self.points_per_block)

    def _is_worth_a_launch(self, group: Group) -> bool:
        """Whether a kernel is for several threads, or so large that its launch costs nothing beside it."""
        return self._blocks(group) > 1 or math.prod(self.lowered[group.number].sizes) >= LARGE

    def _deletions(self, position: int) -> list[str]:
        """Forgets tensors of Python that no later step needs."""
        kept = set(self.output.all_input_nodes) | self.forgotten | set(self.fixed)
        dead = [n for n, at in self.last.items() if at <= position and n in self.names and n not in kept]
        self.forgotten.update(dead)
        return [f"  del {', '.join(self.names[n] for n in dead)}"] if dead else []

    def _launch(self, groups: list[Group]) -> list[str]:
        """One launch of the groups' kernels."""
        if not groups:
            return []
        lowered = [self.lowered[g.number] for g in groups]
        kernels = [kernel_of(low.program) for low in lowered]
        packed = [
            kernel.words.pack(low.sizes, [use.binding() for use in low.uses], low.scalars)
            for kernel, low in zip(kernels, lowered, strict=True)
        ]
        if len(groups) == 1:
            flat, starts, function = packed[0], [0], kernels[0].function
            blocks = self._blocks(groups[0])
        else:
            flat, starts = pack_sequence(kernels, packed)
            function, blocks = sequence_function(), 1
        words = words_of(flat)
        number = len(self.launches)
        self.launches.append(Launch(kernels, lowered, words))
        lines = [line for g in groups for node in self.stored[g.number] for line in self._allocate(node)]
        for low, start in zip(lowered, starts, strict=True):
            for position, use in enumerate(low.uses, start):
                lines += self._address(number, words, position, use)
        run = runtime()
        fixed = (
            ctypes.c_void_p(function), ctypes.c_uint32(blocks), ctypes.byref(words),
            ctypes.c_size_t(ctypes.sizeof(words)),
        )  # fmt: skip
        self.globals |= {f"w{number}": words, f"f{number}": fixed, "launch": run.launch, "check": run.check}
        return [*lines, f"  check(launch(*f{number}, stream))  # {', '.join(k.tile_program.name for k in kernels)}"]

    def _allocate(self, node: Node) -> list[str]:
        if node in self.fixed:
            return []
        if node in self.reuse.inputs:
            self.names[node] = self.names[self.reuse.inputs[node]]
            self.forgotten.add(node)  # the name is the input's
            return []
        if node in self.reuse.operands:
            self.names[node] = self.names[self.reuse.operands[node]]
            self.forgotten.add(self.reuse.operands[node])
            return []
        tensor = tensor_of(node)
        name = self.names[node] = f"v{len(self.names)}"
        shape, strides = self._numbers(tensor.shape), self._numbers(tensor.stride())
        options = f"dtype={self._constant(tensor.dtype)}, device={self._constant(tensor.device)}"
        return [f"  {name} = empty_strided({shape}, {strides}, {options})"]

    def _address(self, number: int, words: Any, position: int, use: TensorUse) -> list[str]:
        """Puts the address of the element with index 0 into a word: now, when the inputs change, or at each run."""
        base = memory_of(use.node)
        view, memory = tensor_of(use.node), tensor_of(base)
        elements = self.number_of(view.storage_offset()) - self.number_of(memory.storage_offset()) + use.offset
        offset = elements * view.element_size()
        base = self.reuse.inputs.get(base, base)
        if base in self.fixed:
            words[position] = self.fixed[base].data_ptr() + offset
            return []
        if base.op == "placeholder":
            self.input_words.append((words, position, base, offset))
            return []
        if base.target is torch.ops.npu._npu_format_cast.default:
            raise NotImplementedError(
                "a fused kernel reads the result of npu_format_cast, which may be packed (FRACTAL_NZ); call it "
                "outside of what is compiled"
            )
        return [f"  w{number}[{position}] = {self.names[base]}.data_ptr(){f' + {offset}' if offset else ''}"]

    def _bind_inputs(self) -> None:
        """Addresses of inputs are written when they differ from those of the last run: weights stay where they are."""
        nodes = list(dict.fromkeys(node for _, _, node, _ in self.input_words))
        if not nodes:
            return
        places: list[list[tuple[Any, int, int]]] = [[] for _ in nodes]
        for words, position, node, offset in self.input_words:
            places[nodes.index(node)].append((words, position, offset))
        bound = [0] * len(nodes)

        def bind(addresses: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
            for i, (address, tensor) in enumerate(zip(addresses, tensors, strict=True)):
                if address != bound[i]:
                    require_plain_format(tensor)
                    bound[i] = address
                    for words, position, offset in places[i]:
                        words[position] = address + offset

        self.globals |= {"bound": bound, "bind": bind}
        names = [self.names[n] for n in nodes]
        self.lines.append(f"  addresses = [{', '.join(f'{name}.data_ptr()' for name in names)}]")
        self.lines.append(f"  if addresses != bound: bind(addresses, ({', '.join(names)},))")

    def _call(self, node: Node) -> list[str]:
        """An operator that is no part of a kernel."""
        if self._is_done_by_a_kernel(node):
            (changed, _) = node.all_input_nodes
            self.names[node] = self.names[changed]
            self.forgotten.add(node)
            return [f"  increment_version({self.names[node]})"]
        arguments = [self._text(a) for a in node.args] + [f"{k}={self._text(v)}" for k, v in node.kwargs.items()]
        name = f"v{len(self.names)}"
        if node.op == "get_attr":
            value: Any = self.module
            for part in str(node.target).split("."):
                value = getattr(value, part)
            text = self._constant(value)
        else:
            assert node.op == "call_function", node.format_node()
            text = f"{self._constant(node.target)}({', '.join(arguments)})"
        self.names[node] = name
        lines = [f"  {name} = {text}"]
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and gives_new_memory(node):
            strides = self._constant(self._numbers(value.stride()))
            lines.append(f"  if {name}.stride() != {strides}: {name} = laid_out({name}, {strides})")
        return lines

    def _is_done_by_a_kernel(self, node: Node) -> bool:
        """Whether a node only brings a result into the input where a kernel has written it."""
        return node.target is aten.copy_.default and self.reuse.inputs.get(node.args[1]) is node.args[0]  # type: ignore[arg-type]

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
