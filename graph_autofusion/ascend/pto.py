"""Prints a tile program as text in the words of PTO-ISA: tiles, loads, instructions, stores. For people."""

from __future__ import annotations

from graph_autofusion.ascend.basic import basic_program
from graph_autofusion.instructions import INSTRUCTIONS, REDUCTIONS
from graph_autofusion.program import Stride
from graph_autofusion.schedule import Schedule


def print_pto(schedule: Schedule) -> str:
    """One instruction a line, in a loop over the tiles of a core."""
    program = basic_program(schedule.program, "PTO")
    lines = [f"// {program.name}: printed for reading, not run on hardware", f"kernel {program.name}("]
    lines += [f"    {'out' if p.is_output else 'in '} {p.name}: {p.dtype.value}," for p in program.parameters]
    lines += ["    rows, cols) {", "  for (tile = block; tile * R < rows; tile += blocks) {"]
    for i, node in enumerate(program.nodes):
        shape = "R, 1" if program.is_row(i) else "R, C"
        args = [f"t{a}" for a in node.args]
        if node.op == "load":
            p = program.parameters[node.attr]
            where = "0" if p.strides[0] is Stride.ZERO else "tile"
            lines.append(f"    Tile<Vec, {node.dtype.value}, R, C> t{i}; TLOAD(t{i}, {p.name}[{where}]);")
        elif node.op == "store":
            lines.append(f"    TSTORE({program.parameters[node.attr].name}[tile], {args[0]});")
        else:
            lines.append(f"    Tile<Vec, {node.dtype.value}, {shape}> t{i}; {_call(node.op, i, args, node.attr)};")
    return "\n".join([*lines, "  }", "}", ""])


def _call(op: str, i: int, args: list[str], attr: object) -> str:
    if op == "const":
        return f"TEXPANDS(t{i}, {attr})"
    name = REDUCTIONS[op[7:]].pto if op.startswith("reduce.") else INSTRUCTIONS[op].pto
    mnemonic, _, condition = name.strip("[]").partition(".")
    inside = [f"t{i}", *args, *([condition] if condition else [])]
    return f"{mnemonic}({', '.join(inside)})"
