"""Which nodes of a graph run as one kernel."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, Node

from torchtitan_npu.compile import concatenation
from torchtitan_npu.compile.gathering import GATHERS, Check, gather_of
from torchtitan_npu.compile.group import Group
from torchtitan_npu.compile.lowering import CREATES, POINTWISE, REDUCTIONS, DoesNotFuse
from torchtitan_npu.compile.mutation import must_precede
from torchtitan_npu.compile.nodes import PRODUCTS, tensor_of
from torchtitan_npu.compile.reshapes import Size
from torchtitan_npu.compile.views import VIEWS, counts, is_view, through_views

aten = torch.ops.aten
_MATRIX_OPERATORS = {
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.convolution.default,
    aten.convolution_backward.default, aten.addmv.default, aten.mv.default, aten.dot.default,
}  # fmt: skip


@dataclass
class Partition:
    """A graph as groups and single nodes."""

    steps: list[Group | Node]  # in an order in which they can run
    groups: list[Group]
    reasons: dict[Node, str] = field(default_factory=dict)  # of each node that is not in a group with others
    checks: dict[Group, list[Check]] = field(default_factory=dict)  # of the indices that it reads by: before it

    def stored(self, group: Group) -> list[Node]:
        """Members whose values are needed outside the group."""
        members = set(group.nodes)
        return [n for n in group.nodes if _needed_outside(n, members, group)]


def _needed_outside(node: Node, members: set[Node], group: Group) -> bool:
    for user in node.users:
        if user in members:
            continue
        if user.target in VIEWS:  # the members that use the view read the value itself
            if _needed_outside(user, members, group):
                return True
            continue
        return True
    return False


def partition(graph: Graph, fusion: bool = True, require_npu: bool = True) -> Partition:
    """Lets each node join the group of an operand, from its latest operand back, or found one of its own.

    A node may not join where another node lies between the group and it: the kernel would wait for itself.
    """
    return _Partitioner(graph, fusion, require_npu).run()


class _Partitioner:
    def __init__(self, graph: Graph, fusion: bool, require_npu: bool) -> None:
        self.graph = graph
        self.fusion = fusion
        self.require_npu = require_npu
        self.number = {node: i for i, node in enumerate(graph.nodes)}
        self.group_of: dict[Node, Group] = {}
        self.groups: list[Group] = []
        self.before: dict[Node, int] = {}  # bit i: node i must have run; members of a group share
        self.reasons: dict[Node, str] = {}
        self.in_parts: set[Node] = set()  # computed in the kernels of concatenations

    def run(self) -> Partition:
        for node in self.graph.nodes:
            self._note(node)
            if self.fusion and node.op == "call_function":
                self._place(node)
        self._leave_reads_alone()
        self.groups = [group for group in self.groups if group.nodes]
        for number, group in enumerate(self.groups):
            group.number = number
        steps = self._order()
        return Partition(steps, self.groups, self.reasons, _checks(steps))

    def _note(self, node: Node) -> None:
        before = 0
        for other in (*node.all_input_nodes, *must_precede(node)):
            before |= self.before[other] | (1 << self.number[other])
        self.before[node] = before

    def _place(self, node: Node) -> None:
        if is_view(node) or node.target in CREATES or counts(node) is not None:
            return
        if concatenation.is_in_a_part(node):
            self.in_parts.add(node)
            return
        if concatenation.is_fusible(node):
            if not self._join(node):
                parts = [n for n in concatenation.inside(node) if n in self.in_parts]
                self.in_parts -= set(parts)
                for part in sorted(parts, key=self.number.__getitem__):
                    self._join(part)
            return
        if not any(node.target in known for known in (POINTWISE, REDUCTIONS, PRODUCTS, GATHERS)):
            matrix = node.target in _MATRIX_OPERATORS
            self.reasons[node] = "is a matrix operator of CANN" if matrix else "has no tile instructions"
            return
        self._join(node)

    def _join(self, node: Node) -> bool:
        """Whether the node is part of a kernel, of one that is there or of its own."""
        reason = ""
        candidates = [] if node.target in PRODUCTS else self._merge_candidates(node)
        for group in candidates:
            try:
                self._require_no_detour(node, group)
                group.add(node)
            except DoesNotFuse as refused:
                reason = str(refused)
                wider = self._widened(group, node)
                if wider is None:
                    continue
                group = wider
            self._joined(node, group)
            return True
        group = Group(len(self.groups))
        try:
            self._require_device(node)
            group.add(node)
        except DoesNotFuse as refused:
            self.reasons[node] = str(refused)
            return False
        if reason:
            self.reasons[node] = f"begins a kernel of its own: {reason}"
        self.groups.append(group)
        self._joined(node, group)
        return True

    def _candidates(self, node: Node) -> list[Group]:
        found: dict[int, tuple[int, Group]] = {}
        for operand in node.all_input_nodes:
            operand = through_views(operand)
            group = self.group_of.get(operand)
            if group is not None:
                found[group.number] = (self.number[operand], group)
        return [group for _, group in sorted(found.values(), key=lambda pair: -pair[0])]

    def _merge_candidates(self, node: Node) -> list[Group]:
        """The groups of the operands, as one where that is possible: they read what the node reads together."""
        groups = self._candidates(node)
        merged = groups[:1]
        for other in groups[1:]:
            both = self._merge(merged[0], other, node)
            if both is None:
                merged.append(other)
            else:
                merged[0] = both
        return merged

    def _merge(self, first: Group, second: Group, node: Node) -> Group | None:
        """One group of the members of two and the node; None if they do not fit or one would wait for the other."""
        members = sorted([*first.nodes, *second.nodes], key=self.number.__getitem__)
        mask = self._mask(members)
        for member in [*members, node]:
            for operand in member.all_input_nodes:
                inside = through_views(operand) in first.axes or through_views(operand) in second.axes
                if not inside and self.before[operand] & mask:
                    return None
        for shape in ((), tensor_of(node).shape):
            if _together(first.number, [*members, node], shape) is not None:
                merged = _together(first.number, members, shape)
                assert merged is not None
                self.groups[second.number] = Group(second.number)  # empty: dropped at the end
                self._replace(first, merged)
                return merged
        return None

    def _widened(self, group: Group, node: Node) -> Group | None:
        """A group that only reads tables, and the node, with loops over the node's result; None if it cannot be."""
        if not all(member.target in GATHERS for member in group.nodes):
            return None
        try:
            self._require_no_detour(node, group)
            wider = _together(group.number, [*group.nodes, node], tensor_of(node).shape)
        except DoesNotFuse:
            return None
        if wider is not None:
            self._replace(group, wider)
        return wider

    def _replace(self, group: Group, by: Group) -> None:
        self.groups[group.number] = by
        for member in by.nodes:
            self.group_of[member] = by
        self._share_needs(by)

    def _mask(self, nodes: Sequence[Node]) -> int:
        return sum(1 << self.number[n] for n in nodes)

    def _require_device(self, node: Node) -> None:
        if not self.require_npu:
            return
        tensors = [
            tensor_of(node),
            *(v for a in node.all_input_nodes if isinstance(v := a.meta.get("val"), torch.Tensor)),
        ]
        for tensor in tensors:
            if tensor.device.type != "npu" and tensor.dim() > 0:
                raise DoesNotFuse(f"has a tensor on {tensor.device}")
        if tensors[0].device.type != "npu":
            raise DoesNotFuse(f"gives a tensor on {tensors[0].device}")
        for tensor in tensors[1:]:
            if tensor.device.type != "npu":
                raise DoesNotFuse(f"takes a number from {tensor.device}")

    def _require_no_detour(self, node: Node, group: Group) -> None:
        """No operand from outside may need a value of the group."""
        self._require_device(node)
        members = self._mask(group.nodes)
        for operand in node.all_input_nodes:
            if not group.computes(operand) and self.before[operand] & members:
                raise DoesNotFuse(f"needs {operand.name}, which itself needs the kernel's result")

    def _joined(self, node: Node, group: Group) -> None:
        self.group_of[node] = group
        self._share_needs(group)

    def _share_needs(self, group: Group) -> None:
        """Members run together: what one needs, all need, and so do those that need a member."""
        members = self._mask(group.nodes)
        before = 0
        for member in group.nodes:
            before |= self.before[member]
        for member in group.nodes:
            self.before[member] = before | members
        for other, needs in self.before.items():
            if needs & members and other not in group.axes:
                self.before[other] = needs | before | members

    def _leave_reads_alone(self) -> None:
        """Kernels that would only read tables are the operators that they were."""
        for group in self.groups:
            if all(node.target in GATHERS for node in group.nodes):
                for node in group.nodes:
                    del self.group_of[node]
                    self.reasons[node] = "reads a table, and no kernel takes what it reads"
                self.groups[group.number] = Group(group.number)

    def _is_inlined(self, node: Node) -> bool:
        """Whether all who use the node compute it themselves."""
        if node.target in CREATES:
            return bool(node.users) and all(user in self.group_of or user in self.in_parts for user in node.users)
        return node in self.in_parts or (counts(node) is not None and self._is_counted(node))

    def _read_by(self, node: Node) -> list[Node]:
        """Operands, and those of operators that are computed in parts of the node."""
        operands: list[Node] = []
        for operand in node.all_input_nodes:
            operands += self._read_by(operand) if operand in self.in_parts else [operand]
        return operands

    def _is_counted(self, node: Node) -> bool:
        users = node.users
        return bool(users) and all(u in self.group_of or (u.target in VIEWS and self._is_counted(u)) for u in users)

    def _order(self) -> list[Group | Node]:
        """Steps in the order of their last nodes, as far as what they need allows; changes of inputs come last."""
        key: dict[Group | Node, int] = {}
        for node in self.graph.nodes:
            if node.op in ("placeholder", "output") or self._is_inlined(node):
                continue
            key[self.group_of.get(node, node)] = self.number[node]
        needs: dict[Group | Node, set[Group | Node]] = {}
        for step in key:
            nodes = step.nodes if isinstance(step, Group) else [step]
            inside = step.computes if isinstance(step, Group) else lambda node: False
            operands = {self.group_of.get(a, a) for n in nodes for a in self._read_by(n) if not inside(a)}
            operands |= {self.group_of.get(r, r) for n in nodes for r in must_precede(n)}
            needs[step] = {o for o in operands if o in key and o is not step}
        changes = [n for n in key if isinstance(n, Node) and n.target is torch.ops.aten.copy_.default]
        for change in changes:
            needs[change] |= set(key) - set(changes)
        return _topological(key, needs)


def _together(number: int, nodes: Sequence[Node], shape: Sequence[Size]) -> Group | None:
    """A group of nodes, with loops over a shape if one is given; None if they do not fit."""
    group = Group(number, shape)
    try:
        for node in nodes:
            group.add(node)
    except DoesNotFuse:
        return None
    return group


def _checks(steps: Sequence[Group | Node]) -> dict[Group, list[Check]]:
    """What to look up before each group: indices that are not known to be in their tables, each once."""
    done: set[object] = set()
    found: dict[Group, list[Check]] = {}
    for group in steps:
        if isinstance(group, Group):
            wanted = [c for n in group.nodes if n.target in GATHERS for c in gather_of(n).checks()]
            new = {c.key: c for c in wanted if c.key not in done}
            if new:
                found[group] = list(new.values())
                done.update(new)
    return found


def _topological(key: dict[Group | Node, int], needs: dict[Group | Node, set[Group | Node]]) -> list[Group | Node]:
    waiting = {step: len(needed) for step, needed in needs.items()}
    users: dict[Group | Node, list[Group | Node]] = {}
    for step, needed in needs.items():
        for other in needed:
            users.setdefault(other, []).append(step)
    by_key = {k: step for step, k in key.items()}
    ready = [key[step] for step, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        step = by_key[heapq.heappop(ready)]
        order.append(step)
        for user in users.get(step, ()):
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, key[user])
    assert len(order) == len(key), "groups wait for each other"
    return order
