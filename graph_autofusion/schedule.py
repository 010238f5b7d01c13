"""How a tile program is executed: phases, what is kept between them, lanes, accumulators. Shared by all printers.

A program with reductions runs its reduced axes several times for each row. Phase p computes what depends on p
reductions in a row: phase 0 folds the loads, phase 1 may use those results, and so on. A value of elements that two
phases need is computed again from the loads, which lie in the cache by then, or kept in a scratch row if that is
dearer.
"""

from __future__ import annotations

from dataclasses import dataclass

from graph_autofusion.dtypes import DType
from graph_autofusion.instructions import INSTRUCTIONS
from graph_autofusion.program import TileProgram

LANES = 16
"""Elements that one step computes: a 512-bit register of float32."""

KEEP_COST = 8
"""From this many additions on a value is kept rather than computed again: what storing and loading a row costs."""

HEAVY = 12
"""Additions from which on a pass computes longer than it waits for memory: what an exponential is."""


@dataclass(frozen=True)
class Phase:
    """One pass over the reduced axes.

    Attributes:
        rows: nodes without reduced axes that are computed before the pass.
        tiles: nodes that are computed in the pass at each point, in order; loads of kept values are not among them.
        reads: kept nodes that the pass reads.
        keeps: nodes that it writes to scratch.
        reductions: reduce nodes that it folds.
        stores: stores at each point.
        row_stores: stores of rows, before the pass.
    """

    rows: tuple[int, ...]
    tiles: tuple[int, ...]
    reads: tuple[int, ...]
    keeps: tuple[int, ...]
    reductions: tuple[int, ...]
    stores: tuple[int, ...]
    row_stores: tuple[int, ...]

    @property
    def has_pass(self) -> bool:
        return bool(self.reductions or self.stores or self.keeps)


@dataclass(frozen=True)
class Schedule:
    program: TileProgram
    phases: tuple[Phase, ...]
    kept: tuple[int, ...]  # nodes, in the order of their scratch rows
    lanes_reduced: bool  # lanes lie along a reduced axis
    accumulators: int  # independent partial results of each reduction, to hide the latency of its instruction
    row_axis: int | None = None  # the axis along which 16 rows at a time are folded; their results lie in the lanes
    dearest: int | None = None  # the phase that computes so much that memory waits for it; None if there is none

    def loop_axes(self) -> list[int]:
        """Reduced axes that need a loop of their own, outermost first."""
        program = self.program
        return [i for i in sorted(program.reduced) if i != program.vector]

    def outer_axes(self) -> list[int]:
        """Parallel axes without that of the lanes."""
        program = self.program
        return [i for i in range(len(program.axes)) if i not in program.reduced and i != program.vector]

    def explain(self) -> str:
        """The decisions, one a line."""
        program = self.program
        lines = [f"{len(self.phases)} phase(s), {LANES} lanes along {program.axes[program.vector].name}"]
        if self.lanes_reduced:
            lines.append(f"{self.accumulators} accumulators a reduction")
        if self.row_axis is not None:
            lines.append(f"{LANES} rows along {program.axes[self.row_axis].name} a step")
        for number, phase in enumerate(self.phases):
            folds = [program.nodes[r].op for r in phase.reductions]
            lines.append(
                f"phase {number}: {len(phase.tiles)} tile instructions, folds {folds}, keeps {list(phase.keeps)}, "
                f"reads kept {list(phase.reads)}, {len(phase.stores)} store(s)"
            )
        return "\n".join(lines)


def schedule(program: TileProgram) -> Schedule:
    """Chooses phases, kept values and accumulators."""
    stages = _stages(program)
    last = max((stages[i] for i, n in enumerate(program.nodes) if n.op == "store"), default=0)
    wanted = [_wanted(program, stages, phase) for phase in range(last + 1)]
    kept = _choose_kept(program, wanted)
    phases = tuple(_phase(program, stages, kept, wanted, number) for number in range(last + 1))
    lanes_reduced = program.vector in program.reduced
    accumulators = 2 if _is_heavy(program, phases) else 4
    row_axis = _row_axis(program, phases) if lanes_reduced else None
    return Schedule(program, phases, tuple(kept), lanes_reduced, accumulators, row_axis, _dearest(program, phases))


def _row_axis(program: TileProgram, phases: tuple[Phase, ...]) -> int | None:
    """The innermost parallel axis, if the program is one light pass over each row and then works on the results."""
    outer = [i for i in range(len(program.axes)) if i not in program.reduced]
    first, rest = phases[0], phases[1:]
    if not outer or len(rest) != 1 or rest[0].has_pass or first.stores or first.row_stores:
        return None
    light = sum(_instruction_cost(program, i) for i in first.tiles) <= 6
    windowed = any(p.window is not None or p.gathered for p in program.parameters)
    return outer[-1] if light and not windowed and not _rows_before(program, first) else None


def _rows_before(program: TileProgram, phase: Phase) -> bool:
    """Whether the pass uses values of rows other than loads and numbers."""
    return any(program.nodes[i].op not in ("load", "scalar") for i in phase.rows)


def _stages(program: TileProgram) -> list[int]:
    """For each node how many reductions lie one behind the other on the way to it."""
    stages: list[int] = []
    for node in program.nodes:
        stage = max((stages[a] for a in node.args), default=0)
        stages.append(stage + node.op.startswith("reduce."))
    return stages


def _wanted(program: TileProgram, stages: list[int], phase: int) -> list[int]:
    """The elementwise nodes whose values phase ``phase`` folds or stores."""
    roots = []
    for i, node in enumerate(program.nodes):
        if (node.op.startswith("reduce.") and stages[i] == phase + 1) or (
            node.op == "store" and stages[i] == phase and not program.is_row(i)
        ):
            roots.append(node.args[0])
    return roots


def _closure(program: TileProgram, roots: list[int], leaves: set[int]) -> list[int]:
    """Tile nodes that must be computed for ``roots`` when ``leaves`` are there; in order."""
    needed: set[int] = set()
    waiting = [r for r in roots if r not in leaves]
    while waiting:
        i = waiting.pop()
        if i in needed or program.is_row(i) or program.nodes[i].op == "const":
            continue
        needed.add(i)
        waiting.extend(a for a in program.nodes[i].args if a not in leaves)
    return sorted(needed)


def _choose_kept(program: TileProgram, wanted: list[list[int]]) -> list[int]:
    """Nodes that several phases need and that are dear to compute again. Only single loops have scratch rows."""
    if len(program.reduced) != 1:
        return []
    uses = [set(_closure(program, roots, set())) for roots in wanted]
    shared = [i for i in range(len(program.nodes)) if sum(i in use for use in uses) > 1]
    kept: list[int] = []
    for i in reversed(shared):
        needed_by = sum(i in use and _reaches(program, w, i, kept) for use, w in zip(uses, wanted, strict=True))
        if needed_by > 1 and _cost(program, i) >= KEEP_COST:
            kept.append(i)
    return sorted(kept)


def _reaches(program: TileProgram, roots: list[int], node: int, kept: list[int]) -> bool:
    """Whether ``roots`` still need ``node`` when the values in ``kept`` are read."""
    return node in roots or node in _closure(program, roots, set(kept))


def _cost(program: TileProgram, node: int) -> int:
    return sum(_instruction_cost(program, i) for i in _closure(program, [node], set()))


def _instruction_cost(program: TileProgram, node: int) -> int:
    row = INSTRUCTIONS.get(program.nodes[node].op)
    double = 2 if program.nodes[node].dtype in (DType.F64, DType.I64) else 1
    return row.cost * double if row is not None else 1


def _phase(program: TileProgram, stages: list[int], kept: list[int], wanted: list[list[int]], number: int) -> Phase:
    before = {k for k in kept if any(k in _closure(program, w, set()) for w in wanted[:number])}
    tiles = _closure(program, wanted[number], before)
    used = {a for i in tiles for a in program.nodes[i].args} | set(wanted[number])
    nodes = range(len(program.nodes))
    is_store = [program.nodes[i].op == "store" for i in nodes]
    is_reduction = [program.nodes[i].op.startswith("reduce.") for i in nodes]
    here = [i for i in nodes if stages[i] == number]
    return Phase(
        rows=tuple(
            i
            for i in here
            if program.is_row(i) and not is_store[i] and not is_reduction[i] and program.nodes[i].op != "const"
        ),
        tiles=tuple(tiles),
        reads=tuple(k for k in sorted(before) if k in used),
        keeps=tuple(k for k in kept if k in tiles),
        reductions=tuple(i for i in nodes if is_reduction[i] and stages[i] == number + 1),
        stores=tuple(i for i in here if is_store[i] and not program.is_row(i)),
        row_stores=tuple(i for i in here if is_store[i] and program.is_row(i)),
    )


def _work(program: TileProgram, phase: Phase) -> int:
    """Of a step of the phase, in additions."""
    return sum(_instruction_cost(program, i) for i in phase.tiles)


def _is_heavy(program: TileProgram, phases: tuple[Phase, ...]) -> bool:
    return any(p.reductions and _work(program, p) > HEAVY for p in phases)


def _dearest(program: TileProgram, phases: tuple[Phase, ...]) -> int | None:
    work = [_work(program, p) for p in phases]
    return work.index(max(work)) if max(work) > HEAVY else None
