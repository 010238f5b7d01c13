"""Prints a scheduled tile program as C++ for the host.

The kernel is ``void NAME(unsigned block, unsigned blocks, const void* args)``; ``args`` are the words of
:mod:`graph_autofusion.launch_words`. Its work is cut into units (a row, or a stretch of lanes of one), and a block does
an equal share of them. Every step computes 16 lanes; the last one of a row loads and stores only the lanes that exist.
"""

from __future__ import annotations

import math
from pathlib import Path

from graph_autofusion.dtypes import DType
from graph_autofusion.instructions import INSTRUCTIONS, REDUCTIONS
from graph_autofusion.launch_words import TURNS, WordLayout
from graph_autofusion.program import Node, Parameter, Stride
from graph_autofusion.schedule import LANES, Phase, Schedule

PRELUDE = (Path(__file__).parent / "prelude.h").read_text()

POINTWISE_CHUNK = 4096
"""Lanes of one unit of a program without reductions: 16 KiB of float32, so that inputs stay in the first cache."""
COLUMN_BLOCK = 4
"""Registers of lanes that a reduction along other axes folds side by side: a cache line's worth of four."""

_ELEMENT = {
    DType.F64: "double", DType.F32: "float", DType.F16: "u16", DType.BF16: "u16", DType.I64: "i64", DType.I32: "int",
    DType.I16: "short", DType.I8: "signed char", DType.U8: "u8", DType.BOOL: "u8",
}  # fmt: skip
_VECTOR = {
    DType.F64: "D", DType.F32: "F", DType.I64: "L", DType.I32: "I", DType.I16: "I", DType.I8: "I", DType.U8: "I",
    DType.BOOL: "M",
}  # fmt: skip
_WRAP = {DType.I16: "wrap_i16", DType.I8: "wrap_i8", DType.U8: "wrap_u8"}
SHORT_ROW = 128
"""Elements up to which rows are folded side by side: what they share is loaded once."""
MOST_SIDE_BY_SIDE = 1 << 20
"""Points of a launch up to which they are: more do not lie in a cache, and memory is read faster in order."""
ROWS_SIDE_BY_SIDE = 8
"""So many sums hide the latency of an addition. The processor fetches one stream ahead, but not eight unasked."""
STRIP = 4
"""Longer rows that are read together: what one stream of memory gives is half of what four do, on some machines."""
STRIP_ACCUMULATORS = 2
"""Of each of their sums."""
AHEAD = 1024
"""Bytes that rows are asked for before they are read."""
LONG_ROW = 256
"""Elements from which on launches alternate between both directions."""
SHORT_ROW_BYTES = 1 << 14
"""Up to which a row and the next one lie in the first cache, beside what is kept of them."""
_SCRATCH_ON_STACK = 1 << 18


def print_host(schedule: Schedule) -> str:
    """The whole translation unit."""
    return f"{PRELUDE}\n{_HostPrinter(schedule).kernel()}"


def kernel_text(schedule: Schedule) -> str:
    """The kernel alone, without what every kernel begins with: for people."""
    return _HostPrinter(schedule).kernel()


class _HostPrinter:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.program = schedule.program
        self.words = WordLayout(self.program)
        self.columns = bool(self.program.reduced) and not schedule.lanes_reduced
        self.divisors: set[int] = set()  # nodes whose divisor was printed: several passes may divide
        self.of_one_row: dict[int, str] = {}  # values of a row in all lanes, where v{i} has 16 rows
        self.lines: list[str] = []
        self.depth = 0

    # ---- lines

    def put(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def open(self, line: str) -> None:
        self.put(line + " {")
        self.depth += 1

    def close(self, end: str = "}") -> None:
        self.depth -= 1
        self.put(end)

    # ---- the kernel

    def kernel(self) -> str:
        program = self.program
        self.open(f'extern "C" void {program.name}(unsigned block, unsigned blocks, const void* args)')
        self.put("const i64* const w = (const i64*)args;")
        for i, word in enumerate(self.words.sizes):
            self.put(f"const i64 n{i} = w[{word}];")
        for i, parameter in enumerate(program.parameters):
            const = "" if parameter.is_output else "const "
            element = f"{const}{_ELEMENT[parameter.dtype]}*"
            restrict = " __restrict" if parameter.is_output and not parameter.in_place else ""
            self.put(f"{element}{restrict} const p{i} = ({element})w[{i}];")
        self._units()
        self.close()
        return "\n".join(self.lines) + "\n"

    def _units(self) -> None:
        """The loop over the block's share of the units, and in it the phases."""
        vector = self.program.vector
        outer = [a for a in self.schedule.outer_axes() if a != self.schedule.row_axis]
        rows = " * ".join(f"n{a}" for a in outer) or "1"
        if self.schedule.row_axis is not None:
            self.put(f"const i64 chunks = (n{self.schedule.row_axis} + lanes - 1) / lanes;")
        elif self.schedule.lanes_reduced:
            self.put("const i64 chunks = 1;")
        else:
            lanes = f"{COLUMN_BLOCK} * lanes" if self.columns else str(POINTWISE_CHUNK)
            self.put(f"const i64 chunk = {lanes}, chunks = (n{vector} + chunk - 1) / chunk;")
        self._scratch_memory()
        self.put(f"const i64 units = {rows} * chunks;")
        self.put("const i64 begin = units * block / blocks, end = units * (block + 1) / blocks;")
        self._direction()
        self._first_indices(outer)
        self.open("for (i64 unit = begin; unit < end; ++unit)")
        for axis in outer:
            self.put(f"const i64 i{axis} = at{axis};")
        for i, parameter in enumerate(self.program.parameters):
            self.put(f"{self._pointer_type(parameter)} const q{i} = p{i}{self._offset(i, outer)};")
        if self.schedule.row_axis is not None:
            self._row_block(self.schedule.row_axis)
        elif self.schedule.lanes_reduced:
            self._phases(columns=1)
        elif self.columns:
            self._column_blocks()
        else:
            self.put("const i64 low = chunk_number * chunk;")
            self.put(f"const i64 high = low + chunk < n{vector} ? low + chunk : n{vector};")
            self._phases(columns=1)
        self._next_indices(outer)
        self.close()
        if self.schedule.kept:
            self.put(f"if (scratch_bytes > {_SCRATCH_ON_STACK}) __builtin_free(scratch);")

    def _direction(self) -> None:
        """Launches go through their units from the first and from the last in turn.

        A kernel so begins with what the one before it left in the second cache: the end of its own input or, behind
        another kernel, of that one's results. Rows that are read together go forward, as they are asked for ahead, and
        so do short ones, which the processor reads ahead in that direction only.
        """
        if self.columns or self.schedule.row_axis is not None:
            self.put("constexpr bool back = false;")
            return
        turn = f"(unsigned char*)w[{self.words.turns}] + block % {TURNS}"
        is_long = f"n{self.program.vector} >= {LONG_ROW}"
        self.put(f"const bool back = {is_long} && __atomic_xor_fetch({turn}, 1, __ATOMIC_RELAXED);")

    def _first_indices(self, outer: list[int]) -> None:
        """Chunk and index along each outer axis of the block's first unit. Later ones count on: division is slow."""
        self.put("const i64 first_unit = back ? end - 1 : begin;")
        self.put("i64 chunk_number = first_unit % chunks;")
        if outer:
            self.put("i64 rest = first_unit / chunks;")
        for position, axis in reversed(list(enumerate(outer))):
            self.put(f"i64 at{axis} = rest{f' % n{axis}' if position else ''};")
            if position:
                self.put(f"rest /= n{axis};")

    def _next_indices(self, outer: list[int]) -> None:
        """Those of the next unit."""
        *inner, last = [("chunk_number", "chunks"), *((f"at{axis}", f"n{axis}") for axis in reversed(outer))]
        self.open("if (back)")
        for index, size in inner:
            self.put(f"if (--{index} >= 0) continue;")
            self.put(f"{index} = {size} - 1;")
        self.put(f"--{last[0]};")
        self.close("} else {")
        self.depth += 1
        for index, size in inner:
            self.put(f"if (++{index} < {size}) continue;")
            self.put(f"{index} = 0;")
        self.put(f"++{last[0]};")
        self.close()

    def _scratch_memory(self) -> None:
        if not self.schedule.kept:
            return
        (axis,) = self.program.reduced
        length = f"(n{axis} + lanes - 1) / lanes" if self.schedule.lanes_reduced else f"n{axis} * {COLUMN_BLOCK}"
        self.put(f"const i64 steps = {length};")
        sizes = " + ".join(f"sizeof({self._vector(k)})" for k in self.schedule.kept)
        self.put(f"const unsigned long scratch_bytes = steps * ({sizes}) + 64;")
        self.put(
            f"char* const scratch = (char*)(scratch_bytes > {_SCRATCH_ON_STACK} ? __builtin_malloc(scratch_bytes) : "
            "__builtin_alloca(scratch_bytes));"
        )
        self.put("char* aligned = (char*)(((unsigned long)scratch + 63) & ~63ul);")
        for k in self.schedule.kept:
            vector = self._vector(k)
            self.put(f"{vector}* const __restrict keep{k} = ({vector}*)aligned;")
            self.put(f"aligned += steps * sizeof({vector});")

    def _column_blocks(self) -> None:
        """Whole blocks side by side, the rest register by register."""
        vector = self.program.vector
        self.open(
            "const auto block_of_lanes = [&]<int columns, bool full>(const i64 low) __attribute__((always_inline))"
        )
        self._phases(columns=COLUMN_BLOCK)
        self.close("};")
        self.put("const i64 first = chunk_number * chunk;")
        self.open(f"if (first + chunk <= n{vector})")
        self.put(f"block_of_lanes.template operator()<{COLUMN_BLOCK}, true>(first);")
        self.close("} else {")
        self.depth += 1
        self.put(
            f"for (i64 low = first; low < n{vector}; low += lanes) block_of_lanes.template operator()<1, false>(low);"
        )
        self.close()

    def _row_block(self, axis: int) -> None:
        """16 rows, one after the other as they lie in memory; then their results as the lanes of one register."""
        self.put("const i64 j = chunk_number * lanes;")
        self.put(f"const i64 rows = n{axis} - j < lanes ? n{axis} - j : lanes;")
        first, second = self.schedule.phases
        for i in first.rows:
            self.put(f"const {self._vector(i)} v{i} = {self._row_block_row(i)};")
        for r in first.reductions:
            self.put(f"{self._vector(r)} v{r};")
        if self._has_short_rows(first):
            length = f"n{self.program.vector}"
            points = " * ".join(f"n{i}" for i in range(len(self.program.axes)))
            short = f"{length} <= {SHORT_ROW} && {length} % lanes == 0"
            self.open(f"if (rows == lanes && {short} && {points} <= {MOST_SIDE_BY_SIDE})")
            self._rows_side_by_side(axis, first)
            self.close("} else {")
            self.depth += 1
            self._rows_in_strips(first)
            self.close()
        else:
            self._rows_in_strips(first)
        for i in second.rows:
            self.put(f"const {self._vector(i)} v{i} = {self._row_block_row(i)};")
        for i in second.row_stores:
            self._row_block_store(i, axis)

    def _has_short_rows(self, phase: Phase) -> bool:
        """Whether 16 rows have their partial results in 16 registers, and leave others for the work."""
        wide = any(self._vector(i) in ("D", "L") for i in (*phase.tiles, *phase.reductions))
        return len(phase.reductions) == 1 and not wide and not self.schedule.loop_axes()

    def _rows_side_by_side(self, axis: int, phase: Phase) -> None:
        (r,) = phase.reductions
        self.put(f"{self._vector(r)} f{r}[lanes];")
        self.open("const auto pass = [&](const i64 i, const int row) __attribute__((always_inline))")
        self.put("const i64 left = lanes;")
        self._row_pointers(axis, "row")
        self._values_of_one_row(phase, "row")
        for i in phase.tiles:
            self.put(f"const {self._vector(i)} v{i} = {self._row_expression(i)};")
            node = self.program.nodes[i]
            if node.op == "load" and axis in self.program.varies[i]:
                ahead = f"r{node.attr} + i + lanes * {self._stride(node.attr, axis)}"
                self.put(f"__builtin_prefetch({ahead}, 0, 2);  // of the next 16 rows, into the second cache")
        value = self._name(self.program.nodes[r].args[0])
        self.put(f"f{r}[row] = {self._wrapped(r, self._combine(r, f'f{r}[row]', value))};")
        self.of_one_row.clear()
        self.close("};")
        for first in range(0, LANES, ROWS_SIDE_BY_SIDE):
            rows = range(first, first + ROWS_SIDE_BY_SIDE)
            self.put(" = ".join(f"f{r}[{row}]" for row in rows) + f" = {self._identity(r)};")
            self.open(f"for (i64 i = 0; i < n{self.program.vector}; i += lanes)")
            self.put(" ".join(f"pass(i, {row});" for row in rows))
            self.close()
        self._fold_rows(r)

    def _rows_in_strips(self, phase: Phase) -> None:
        """A few rows at a time, so that several streams of memory are read at once."""
        for r in phase.reductions:
            self.put(f"{self._vector(r)} f{r}[lanes];")
            self.put(f"for (auto& f : f{r}) f = {self._vector(r)}{{}};")
        self.open("const auto strip = [&]<int strip>(const i64 row) __attribute__((always_inline))")
        self._strip(phase)
        self.close("};")
        self.put("i64 row = 0;")
        self.put(f"for (; row + {STRIP} <= rows; row += {STRIP}) strip.template operator()<{STRIP}>(row);")
        self.put("for (; row < rows; ++row) strip.template operator()<1>(row);")
        for r in phase.reductions:
            self._fold_rows(r)

    def _row_pointers(self, axis: int, row: str) -> None:
        for number, parameter in enumerate(self.program.parameters):
            stride = self._stride(number, axis)
            if stride and not parameter.is_output and self._is_tile_parameter(number):
                self.put(f"{self._pointer_type(parameter)} const r{number} = q{number} + (j + {row}) * {stride};")

    def _values_of_one_row(self, phase: Phase, row: str) -> None:
        """What a pass takes of its row besides elements, in all lanes; outside of it lanes lie along the rows."""
        axis = self.schedule.row_axis
        assert axis is not None
        roots = [self.program.nodes[r].args[0] for r in phase.reductions]
        taken = {a for i in phase.tiles for a in self.program.nodes[i].args} | set(roots)
        for i in (i for i in phase.rows if i in taken and axis in self.program.varies[i]):
            number = self.program.nodes[i].attr
            address = f"q{number} + (j + {row}) * {self._stride(number, axis)}"
            load = self._plain_load(self.program.parameters[number], address, "")
            self.put(f"const {self._vector(i)} one{i} = {load};")
            self.of_one_row[i] = f"one{i}"

    def _fold_rows(self, r: int) -> None:
        vector = self._vector(r)
        combine = f"[]({vector} a, {vector} b) {{ return {self._combine(r, 'a', 'b')}; }}"
        self.put(f"v{r} = {self._wrapped(r, f'fold_rows(f{r}, {combine})')};")

    def _is_tile_parameter(self, number: int) -> bool:
        """Whether elements of the parameter are read in the pass."""
        nodes = enumerate(self.program.nodes)
        return any(n.op == "load" and n.attr == number and not self.program.is_row(i) for i, n in nodes)

    def _strip(self, phase: Phase) -> None:
        """Partial results of `strip` rows from number `row` on."""
        axis, loops = self.schedule.row_axis, self.schedule.loop_axes()
        assert axis is not None
        for r in phase.reductions:
            self.put(f"{self._vector(r)} a{r}[strip][{STRIP_ACCUMULATORS}];")
            self.put(f"for (auto& row_of_a : a{r}) for (auto& a : row_of_a) a = {self._identity(r)};")
        arguments = "const i64 i, const i64 left, const int u" + "".join(f", const i64 i{a}" for a in loops)
        self.open(f"const auto pass = [&]({arguments}) __attribute__((always_inline))")
        self.put(f"#pragma GCC unroll {STRIP}")
        self.open("for (int s = 0; s < strip; ++s)")
        self._row_pointers(axis, "row + s")
        self._values_of_one_row(phase, "row + s")
        for i in phase.tiles:
            self._prefetch(i)
            self.put(f"const {self._vector(i)} v{i} = {self._row_expression(i)};")
        for r in phase.reductions:
            value = self._name(self.program.nodes[r].args[0])
            value = f"(left >= lanes ? {value} : select(first_lanes(left), {value}, {self._identity(r)}))"
            self.put(f"a{r}[s][u] = {self._wrapped(r, self._combine(r, f'a{r}[s][u]', value))};")
        self.of_one_row.clear()
        self.close()
        self.close("};")
        for a in loops:
            self.open(f"for (i64 i{a} = 0; i{a} < n{a}; ++i{a})")
        self._steps("pass", STRIP_ACCUMULATORS, "".join(f", i{a}" for a in loops))
        for _ in loops:
            self.close()
        for r in phase.reductions:
            total = self._total([f"a{r}[s][{u}]" for u in range(STRIP_ACCUMULATORS)], r)
            self.put(f"for (int s = 0; s < strip; ++s) f{r}[row + s] = {total};")

    def _prefetch(self, i: int) -> None:
        """Of what a row reads in order, once a line of the cache."""
        node = self.program.nodes[i]
        if node.op != "load" or self.schedule.row_axis not in self.program.varies[i]:
            return
        address, stride = self._address(node.attr)
        if stride != "1":
            return
        address = address.replace(f"q{node.attr}", f"r{node.attr}", 1)
        element = _ELEMENT[self.program.parameters[node.attr].dtype]
        self.put(
            f"if (u * lanes * sizeof({element}) % 64 == 0) __builtin_prefetch((const char*)({address}) + {AHEAD});"
        )

    def _row_expression(self, i: int) -> str:
        node = self.program.nodes[i]
        if node.op != "load" or self.schedule.row_axis not in self.program.varies[i]:
            return self._expression(i)
        address, stride = self._address(node.attr)
        address = address.replace(f"q{node.attr}", f"r{node.attr}", 1)
        return self._plain_load(self.program.parameters[node.attr], address, stride)

    def _row_block_row(self, i: int) -> str:
        """A value of the rows: lanes lie along them."""
        node = self.program.nodes[i]
        if node.op == "index" and node.attr == self.schedule.row_axis:
            return "splat((int)j) + lane_number" if node.dtype is DType.I32 else "splat(j) + to_L(lane_number)"
        if node.op != "load":
            return self._expression(i)
        address, stride = self._row_address(node.attr)
        return self._plain_load(self.program.parameters[node.attr], address, stride).replace("left", "rows")

    def _row_block_store(self, i: int, axis: int) -> None:
        node = self.program.nodes[i]
        address, stride = self._row_address(node.attr)
        self._put_store(self.program.parameters[node.attr], address, stride, self._name(node.args[0]), "rows")

    def _row_address(self, number: int) -> tuple[str, str]:
        assert self.schedule.row_axis is not None
        stride = self._stride(number, self.schedule.row_axis)
        return f"q{number}" + (f" + j * {stride}" if stride else ""), stride

    # ---- phases

    def _phases(self, columns: int) -> None:
        for number, phase in enumerate(self.schedule.phases):
            self._rows(phase)
            if phase.has_pass:
                self._pass(number, phase)
            for reduction in phase.reductions:
                self._finish(reduction)

    def _rows(self, phase: Phase) -> None:
        """Values without reduced axes: one register (the lanes equal) or, for columns, one a block."""
        if self.columns:
            for i in phase.rows:
                self.put(f"{self._vector(i)} v{i}[columns];")
            if phase.rows or phase.row_stores:
                self.open("for (int u = 0; u < columns; ++u)")
                self.put("const i64 i = low + u * lanes;")
                self.put(f"const i64 left = full ? lanes : n{self.program.vector} - i;")
                for i in phase.rows:
                    self.put(f"v{i}[u] = {self._expression(i)};")
                for i in phase.row_stores:
                    self._store(i)
                self.close()
            return
        if self.schedule.lanes_reduced:
            for i in phase.rows:
                self.put(f"const {self._vector(i)} v{i} = {self._expression(i)};")
            for i in phase.row_stores:
                self._store(i)

    def _pass(self, number: int, phase: Phase) -> None:
        """One run over the reduced axes (or, without any, over the unit's lanes)."""
        count = self.schedule.accumulators if self.schedule.lanes_reduced else 1
        size = "columns" if self.columns else str(count)
        for r in phase.reductions:
            self.put(f"{self._vector(r)} a{r}[{size}];")
            self.put(f"for (auto& a : a{r}) a = {self._identity(r)};")
        loops = self.schedule.loop_axes()
        for i in phase.tiles:
            if self._divides_by_row(i) and i not in self.divisors:
                self.divisors.add(i)
                divisor = self.program.nodes[i].args[1]
                self.put(f"const Divisor<{self._vector(divisor)}> d{i}({self._name(divisor)});")
        shared = [i for i in phase.tiles if self._is_shared_by_lanes(i)]
        for i in shared:
            self.put(f"const {self._vector(i)} v{i} = {self._expression(i)};")
        arguments = "const i64 i, const i64 left, const int u" + "".join(f", const i64 i{a}" for a in loops)
        self.open(f"const auto phase{number} = [&]({arguments}) __attribute__((always_inline))")
        self._prefetch_next_row(number, phase)
        self._body(phase, [i for i in phase.tiles if i not in shared])
        self.close("};")
        for axis in loops:
            self.open(f"for (i64 i{axis} = 0; i{axis} < n{axis}; ++i{axis})")
        self._steps(f"phase{number}", count, "".join(f", i{a}" for a in loops))
        for _ in loops:
            self.close()

    def _prefetch_next_row(self, number: int, phase: Phase) -> None:
        """In a pass so dear that the processor does not read ahead itself while it lasts.

        Without one, in the last pass over tensors of 16 bits, whose rounding is as dear; 32 bits lose by it.
        """
        schedule = self.schedule
        if not schedule.lanes_reduced or len(schedule.phases) == 1 or schedule.loop_axes():
            return
        dear, outer = schedule.dearest, [a for a in schedule.outer_axes() if a != schedule.row_axis]
        if not outer or number != (len(schedule.phases) - 1 if dear is None else dear):
            return
        for i in phase.tiles:
            if self.program.nodes[i].op == "load":
                self._prefetch_row_of(self.program.nodes[i].attr, outer[-1], dear is not None)

    def _prefetch_row_of(self, number: int, axis: int, dear: bool) -> None:
        """The next row of a parameter where this step is in its own: short ones into the first cache."""
        row, step = self._stride(number, axis), self._stride(number, self.program.vector)
        parameter = self.program.parameters[number]
        is_half = parameter.dtype in (DType.F16, DType.BF16)
        if not row or step != "1" or parameter.gathered or not (dear or is_half):
            return
        address = f"q{number} + (back ? -{row} : {row}) + i"
        is_short = f"n{self.program.vector} * sizeof({_ELEMENT[parameter.dtype]}) <= {SHORT_ROW_BYTES}"
        condition = "if (u % 2 == 0) " if is_half else ""  # two steps are a line
        self.put(f"{condition}ask_for({address}, {is_short if dear else 'false'});")

    def _steps(self, name: str, count: int, extra: str) -> None:
        """Calls of the body along the lanes' axis."""
        if self.columns:
            self.put("#pragma GCC unroll 4")
            self.open("for (int u = 0; u < columns; ++u)")
            self.put("const i64 i = low + u * lanes;")
            self.put(f"{name}(i, full ? lanes : n{self.program.vector} - i, u{extra});")
            self.close()
            return
        low, high = ("0", f"n{self.program.vector}") if self.schedule.lanes_reduced else ("low", "high")
        self.put(f"{{ i64 i = {low};")
        self.depth += 1
        if count > 1:
            self.open(f"for (; i + {count} * lanes <= {high}; i += {count} * lanes)")
            for u in range(count):
                self.put(f"{name}(i + {u} * lanes, lanes, {u}{extra});")
            self.close()
        self.put(f"for (; i + lanes <= {high}; i += lanes) {name}(i, lanes, 0{extra});")
        self.put(f"if (i < {high}) {name}(i, {high} - i, 0{extra});")
        self.close()

    def _is_shared_by_lanes(self, i: int) -> bool:
        """Whether a program without reductions has the value once a unit: the row of a table, its scale."""
        return not self.program.reduced and self.program.vector not in self.program.varies[i]

    def _body(self, phase: Phase, tiles: list[int]) -> None:
        """One step: 16 lanes at index i, of which `left` exist, for accumulator or register u."""
        for k in phase.reads:
            self.put(f"const {self._vector(k)} v{k} = {self._kept(k)};")
        for i in tiles:
            self.put(f"const {self._vector(i)} v{i} = {self._expression(i)};")
        for k in phase.keeps:
            self.put(f"{self._kept(k)} = v{k};")
        for r in phase.reductions:
            value = self._name(self.program.nodes[r].args[0])
            if self.schedule.lanes_reduced:
                value = f"(left >= lanes ? {value} : select(first_lanes(left), {value}, {self._identity(r)}))"
            self.put(f"a{r}[u] = {self._wrapped(r, self._combine(r, f'a{r}[u]', value))};")
        for i in phase.stores:
            self._store(i)

    def _kept(self, node: int) -> str:
        (axis,) = self.program.reduced
        return f"keep{node}[i / lanes]" if self.schedule.lanes_reduced else f"keep{node}[i{axis} * {COLUMN_BLOCK} + u]"

    def _finish(self, reduction: int) -> None:
        vector = self._vector(reduction)
        if self.columns:
            self.put(f"{vector}* const v{reduction} = a{reduction};")
            return
        combine = f"[]({vector} a, {vector} b) {{ return {self._combine(reduction, 'a', 'b')}; }}"
        total = self._partial_results(reduction)
        self.put(f"const {vector} v{reduction} = {self._wrapped(reduction, f'fold({vector}({total}), {combine})')};")

    def _partial_results(self, reduction: int) -> str:
        """What the accumulators hold together."""
        return self._total([f"a{reduction}[{u}]" for u in range(self.schedule.accumulators)], reduction)

    def _total(self, parts: list[str], reduction: int) -> str:
        total = parts[0]
        for part in parts[1:]:
            total = f"({self._combine(reduction, total, part)})"
        return total

    # ---- values

    def _vector(self, node: int) -> str:
        return _VECTOR[self.program.nodes[node].dtype]

    def _name(self, node: int) -> str:
        """A value that was computed (a row of columns has one register a block), or a constant."""
        if node in self.of_one_row:
            return self.of_one_row[node]
        if self.program.nodes[node].op == "const":
            return _constant(self.program.nodes[node].attr, self.program.nodes[node].dtype)
        return f"v{node}[u]" if self.columns and self.program.is_row(node) else f"v{node}"

    def _combine(self, reduction: int, a: str, b: str) -> str:
        return REDUCTIONS[self.program.nodes[reduction].op[7:]].combine.format(a, b)

    def _identity(self, reduction: int) -> str:
        node = self.program.nodes[reduction]
        return _constant(REDUCTIONS[node.op[7:]].identity(node.dtype), node.dtype)

    def _wrapped(self, node: int, expression: str) -> str:
        """Narrow integers are computed in 32 bits and wrapped."""
        wrap = _WRAP.get(self.program.nodes[node].dtype)
        return f"{wrap}({expression})" if wrap else expression

    def _divides_by_row(self, i: int) -> bool:
        """Whether all elements of a row are divided by one number (in the lanes of which it lies equal)."""
        node = self.program.nodes[i]
        row = node.op == "div" and self.schedule.lanes_reduced and self.program.is_row(node.args[1])
        return row and not self.program.is_row(i) and self.schedule.row_axis is None

    def _expression(self, i: int) -> str:
        node = self.program.nodes[i]
        if self._divides_by_row(i):
            return f"d{i}.divide({self._name(node.args[0])})"
        if node.op == "load":
            return self._load(node)
        if node.op == "scalar":
            return self._scalar(node)
        if node.op == "index":
            return self._index(node.attr, node.dtype)
        args = [self._name(a) for a in node.args]
        if node.op == "cast":
            return _cast(args[0], self.program.nodes[node.args[0]].dtype, node)
        return self._wrapped(i, INSTRUCTIONS[node.op].cpp.format(*args))

    def _scalar(self, node: Node) -> str:
        word = f"w[{self.words.scalars[node.attr]}]"
        if node.dtype.is_float:
            return f"splat(({_ELEMENT[node.dtype]})__builtin_bit_cast(double, {word}))"
        return f"splat(({_ELEMENT[node.dtype] if node.dtype is DType.I64 else 'int'}){word})"

    def _index(self, axis: int, dtype: DType) -> str:
        if dtype is DType.I32:
            return "splat((int)i) + lane_number" if axis == self.program.vector else f"splat((int)i{axis})"
        return "splat(i) + to_L(lane_number)" if axis == self.program.vector else f"splat(i{axis})"

    # ---- memory

    def _pointer_type(self, parameter: Parameter) -> str:
        return f"{'' if parameter.is_output else 'const '}{_ELEMENT[parameter.dtype]}*"

    def _stride(self, parameter: int, axis: int) -> str:
        """Elements between neighbours along the axis; empty for none."""
        stride = self.program.parameters[parameter].strides[axis]
        if stride is Stride.ZERO:
            return ""
        return "1" if stride is Stride.ONE else f"w[{self.words.strides[parameter][axis]}]"

    def _offset(self, parameter: int, axes: list[int]) -> str:
        terms = ((axis, self._stride(parameter, axis)) for axis in axes)
        return "".join(f" + i{axis} * {stride}" for axis, stride in terms if stride)

    def _address(self, number: int) -> tuple[str, str]:
        """Address of the first lane, and elements between lanes."""
        stride = self._stride(number, self.program.vector)
        inner = f" + i * {stride}" if stride not in ("", "1") else " + i" if stride else ""
        return f"q{number}{self._offset(number, self.schedule.loop_axes())}{inner}", stride

    def _load(self, node: Node) -> str:
        number = node.attr
        parameter = self.program.parameters[number]
        address, stride = self._address(number)
        if parameter.gathered:
            index_stride = f"w[{self.words.index_strides[number]}]"
            index = self._name(node.args[0])
            if self.program.varies[node.args[0]] & {self.program.vector}:
                load = f"load_{parameter.dtype.value}"
                return f"{load}(gather({address}, {stride or '0'}, {index}, {index_stride}, left).lane, lanes)"
            address = f"{address} + {index}[0] * {index_stride}"
        if parameter.window is not None:
            return self._windowed(number, address, stride)
        return self._plain_load(parameter, address, stride)

    def _plain_load(self, parameter: Parameter, address: str, stride: str) -> str:
        name = parameter.dtype.value
        if stride == "":
            return f"splat_{name}({address})"
        if stride == "1":
            return f"load_{name}({address}, left)"
        return f"load_{name}(gather({address}, {stride}, left).lane, lanes)"

    def _windowed(self, number: int, address: str, stride: str) -> str:
        """A load that is 0 outside the window and reads nothing there."""
        parameter, words = self.program.parameters[number], self.words.windows[number]
        assert words is not None
        low, high = f"w[{words[0]}]", f"w[{words[1]}]"
        if parameter.window == self.program.vector:
            end = f"({high} - i < left ? {high} - i : left)"
            cut = f"load_{parameter.dtype.value}(window({address}, {stride or '0'}, {low} - i, {end}).lane, lanes)"
            all_there = f"i >= {low} && i + left <= {high}"
            nothing = f"i + left <= {low} || i >= {high} ? {_VECTOR[parameter.dtype.compute]}{{}}"
            return f"({all_there} ? {self._plain_load(parameter, address, stride)} : {nothing} : {cut})"
        inside = f"i{parameter.window} >= {low} && i{parameter.window} < {high}"
        return f"({inside} ? {self._plain_load(parameter, address, stride)} : {_VECTOR[parameter.dtype.compute]}{{}})"

    def _store(self, i: int) -> None:
        node = self.program.nodes[i]
        parameter = self.program.parameters[node.attr]
        address, stride = self._address(node.attr)
        value = self._name(node.args[0])
        store = f"store_{parameter.dtype.value}"
        if self.schedule.lanes_reduced and self.program.is_row(i):
            self.put(f"{store}({address}, {value}, 1);")
        else:
            self._put_store(parameter, address, stride, value, "left")

    def _put_store(self, parameter: Parameter, address: str, stride: str, value: str, count: str) -> None:
        store = f"store_{parameter.dtype.value}"
        if stride == "1":
            self.put(f"{store}({address}, {value}, {count});")
        elif stride == "":
            self.put(f"{store}({address}, {value}, 1);")
        else:
            element = _ELEMENT[parameter.dtype]
            self.put(f"{{ Packed<{element}> packed; {store}(packed.lane, {value}, lanes);")
            self.put(f"  scatter({address}, {stride}, packed, {count}); }}")


def _constant(number: float | int | bool, dtype: DType) -> str:
    if dtype is DType.BOOL:
        return f"splat({-1 if number else 0})"
    if not dtype.is_float:
        value = int(number)
        if dtype is DType.I64:
            return "splat((i64)0x8000000000000000)" if value == -(1 << 63) else f"splat((i64){value}l)"
        return "splat((int)0x80000000)" if value == -(1 << 31) else f"splat({value})"
    element = _ELEMENT[dtype]
    number = float(number)
    if math.isnan(number):
        text = '__builtin_nan("")'
    elif math.isinf(number):
        text = f"{'-' if number < 0 else ''}__builtin_inf()"
    else:
        text = number.hex()
    return f"splat(({element}){text})"


def _cast(value: str, source: DType, node: Node) -> str:
    if node.attr is not None:
        value = _convert(value, source, DType.F32)
        return f"round_{'f16' if node.attr is DType.F16 else 'bf16'}({value})"
    return _convert(value, source, node.dtype)


def _convert(value: str, source: DType, target: DType) -> str:
    if source is target:
        return value
    if target is DType.BOOL:
        return f"ne_({value}, {_VECTOR[source]}{{}})"
    if source is DType.BOOL:
        value = f"({value} & 1)"
    vector = _VECTOR[target]
    converted = value if _VECTOR[source] in (vector, "M") and vector == "I" else f"to_{vector}({value})"
    wrap = _WRAP.get(target)
    return f"{wrap}({converted})" if wrap else converted
