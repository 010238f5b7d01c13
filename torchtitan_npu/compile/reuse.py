"""Results of kernels that need no memory of their own: they lie in an operand that dies, or in an input they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Node

from torchtitan_npu.compile.fusion import Partition
from torchtitan_npu.compile.group import Group
from torchtitan_npu.compile.group_program import Lowered, TensorUse
from torchtitan_npu.compile.memory import is_large
from torchtitan_npu.compile.nodes import tensor_of
from torchtitan_npu.compile.views import gives_new_memory, is_view, may_alias, memory_of

aten = torch.ops.aten


@dataclass
class Reuse:
    """Whose memory results of kernels take.

    Attributes:
        operands: large results of elementwise kernels, and the operand of the same layout that dies there.
        inputs: results that a later ``copy_`` only brings into an input of the same layout, and that input.
    """

    operands: dict[Node, Node] = field(default_factory=dict)
    inputs: dict[Node, Node] = field(default_factory=dict)


class ReuseFinder:
    """Finds a :class:`Reuse`. Kernels whose result lies in what they read are told, as others count on no overlap."""

    def __init__(
        self,
        partition: Partition,
        lowered: dict[int, Lowered],
        last: Mapping[Node, int],
        escaping: set[Node],
        number_of: Callable[[Any], int],
    ) -> None:
        """``lowered``: of each group, changed here; ``last``: the last step that uses each node's memory;
        ``escaping``: nodes whose memory outlives the run."""
        self.partition = partition
        self.steps = partition.steps
        self.lowered = lowered
        self.last = last
        self.escaping = escaping
        self.number_of = number_of
        self.found = Reuse()
        self.readers = self._readers()

    def find(self, operands: bool) -> Reuse:
        """``operands``: whether to look for operands that die as well."""
        stored = {n: i for i, s in enumerate(self.steps) if isinstance(s, Group) for n in self.partition.stored(s)}
        for change in self.steps:
            if isinstance(change, Node) and change.target is aten.copy_.default:
                self._into_input(change, stored)
        for position, step in enumerate(self.steps) if operands else ():
            if isinstance(step, Group) and step.reduced is None:
                self._over_operands(position, step)
        return self.found

    # ---- new values of inputs

    def _into_input(self, change: Node, stored: Mapping[Node, int]) -> None:
        base, value = change.args[:2]
        assert isinstance(base, Node)
        if not isinstance(value, Node) or value not in stored or base.op != "placeholder":
            return
        if value in self.found.inputs or {base, value} & self.escaping:
            return
        if tensor_of(base).device != tensor_of(value).device or not self._have_one_layout(base, value):
            return
        at = stored[value]
        overlaps = False
        for position, step in self.readers.get(base, ()):
            if step is change or position < at:
                if isinstance(step, Node) and step is not change and may_alias(step):
                    return
            elif position > at or not self._reads_where_it_writes(base, value, step):
                return
            else:
                overlaps = True
        self.found.inputs[value] = base
        if overlaps:
            self._tell(self.steps[at], value)

    def _readers(self) -> dict[Node, list[tuple[int, Group | Node]]]:
        """For each node the steps that take its memory, with their positions."""
        found: dict[Node, list[tuple[int, Group | Node]]] = {}
        for position, step in enumerate(self.steps):
            if isinstance(step, Group):
                taken = [use.node for use in self.lowered[step.number].uses]
                taken += [check.index for check in self.partition.checks.get(step, ())]
            else:
                taken = [] if is_view(step) else list(step.all_input_nodes)
            for node in dict.fromkeys(map(memory_of, taken)):
                found.setdefault(node, []).append((position, step))
        return found

    def _reads_where_it_writes(self, read: Node, result: Node, step: Group | Node) -> bool:
        """Whether a kernel reads each element of a tensor only for the element of the result that takes its place."""
        if not isinstance(step, Group) or step.reduced is not None:
            return False
        uses = self.lowered[step.number].uses
        (written,) = (u for u in uses if u.node is result)
        return [u for u in uses if memory_of(u.node) is read] == [TensorUse(read, written.strides)]

    # ---- operands that die

    def _over_operands(self, position: int, step: Group) -> None:
        lowered = self.lowered[step.number]
        dying = [n for n in dict.fromkeys(memory_of(u.node) for u in lowered.uses) if self.last[n] == position]
        for parameter, use in zip(lowered.program.parameters, lowered.uses, strict=True):
            result = use.node
            if not parameter.is_output or result in self.escaping or result in self.found.inputs:
                continue
            if not self._is_large(result):
                continue
            for node in dying:
                if self._gives_memory(node, result, step):
                    self.found.operands[result] = node
                    self._tell(step, result)
                    break

    def _gives_memory(self, node: Node, result: Node, step: Group) -> bool:
        """Whether a kernel may write a result over a tensor of the plan that it reads."""
        return (
            node is not result
            and node not in self.escaping
            and node not in self.found.operands.values()
            and node not in self.found.inputs
            and node.op == "call_function"
            and gives_new_memory(node)
            and not any(may_alias(user) for user in node.users)
            and self._have_one_layout(node, result)
            and self._reads_where_it_writes(node, result, step)
        )

    # ---- both

    def _tell(self, step: Group | Node, result: Node) -> None:
        """Lets the kernel's output overlap what it reads."""
        assert isinstance(step, Group)
        lowered = self.lowered[step.number]
        parameters = [
            replace(p, in_place=True) if p.is_output and use.node is result else p
            for p, use in zip(lowered.program.parameters, lowered.uses, strict=True)
        ]
        program = replace(lowered.program, parameters=tuple(parameters))
        self.lowered[step.number] = replace(lowered, program=program)

    def _have_one_layout(self, first: Node, second: Node) -> bool:
        a, b = tensor_of(first), tensor_of(second)
        layouts = [self._numbers((*t.shape, *t.stride())) for t in (a, b)]
        return a.dtype == b.dtype and layouts[0] == layouts[1]

    def _is_large(self, node: Node) -> bool:
        return is_large(bytes_of(node, self.number_of))

    def _numbers(self, sizes: Sequence[Any]) -> tuple[int, ...]:
        return tuple(self.number_of(n) for n in sizes)


def bytes_of(node: Node, number_of: Callable[[Any], int]) -> int:
    """From the first to the last element of a node's tensor."""
    tensor = tensor_of(node)
    dims = [(number_of(n), number_of(s)) for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    return (1 + sum((n - 1) * s for n, s in dims)) * tensor.element_size()
