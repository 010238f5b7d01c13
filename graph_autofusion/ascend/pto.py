"""Prints a tile program as text in the words of PTO-ISA: tiles, loads, instructions, stores. For people."""

from __future__ import annotations

from graph_autofusion.ascend.basic import INDICES, basic_program
from graph_autofusion.dtypes import DType
from graph_autofusion.instructions import INSTRUCTIONS, REDUCTIONS
from graph_autofusion.program import Stride
from graph_autofusion.schedule import Schedule


def print_pto(schedule: Schedule) -> str:
    """One instruction a line, in a loop over the tiles of a core."""
    program = basic_program(schedule.program, "PTO", gathers=True)
    lines = [f"// {program.name}: printed for reading, not run on hardware", f"kernel {program.name}("]
    lines += [f"    {'out' if p.is_output else 'in '} {p.name}: {p.dtype.value}," for p in program.parameters]
    lines += [f"    in  scalar{number}: {dtype.value}," for number, dtype in enumerate(program.scalars)]
    lines += ["    rows, cols) {", "  for (tile = block; tile * R < rows; tile += blocks) {"]
    for i, node in enumerate(program.nodes):
        is_index = node.dtype in INDICES or (node.dtype is DType.BOOL and 1 not in program.varies[i])
        shape = "R, 1" if program.is_row(i) or is_index else "R, C"
        args = [f"t{a}" for a in node.args]
        if node.op == "load" and node.args:
            p = program.parameters[node.attr]
            tile = f"Tile<Vec, {node.dtype.value}, R, C> t{i}"
            lines.append(f"    {tile}; MGATHER(t{i}, {p.name}, {args[0]});")
        elif node.op == "load":
            p = program.parameters[node.attr]
            where = "0" if p.strides[0] is Stride.ZERO else "tile"
            lines.append(f"    Tile<Vec, {node.dtype.value}, {shape}> t{i}; TLOAD(t{i}, {p.name}[{where}]);")
        elif node.op == "store":
            lines.append(f"    TSTORE({program.parameters[node.attr].name}[tile], {args[0]});")
        else:
            lines.append(f"    Tile<Vec, {node.dtype.value}, {shape}> t{i}; {_call(node.op, i, args, node.attr)};")
    return "\n".join([*lines, "  }", "}", ""])


def _call(op: str, i: int, args: list[str], attr: object) -> str:
    if op == "scalar":
        return f"TEXPANDS(t{i}, scalar{attr})"
    if op == "cast":
        return f"TCVT(t{i}, {args[0]})"
    if op == "const":
        return f"TEXPANDS(t{i}, {attr})"
    name = REDUCTIONS[op[7:]].pto if op.startswith("reduce.") else INSTRUCTIONS[op].pto
    mnemonic, _, condition = name.strip("[]").partition(".")
    inside = [f"t{i}", *args, *([condition] if condition else [])]
    return f"{mnemonic}({', '.join(inside)})"
