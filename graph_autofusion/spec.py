"""The rules that every tile program keeps, in one place. Printers and interpreter rely on them."""

from __future__ import annotations

from graph_autofusion.dtypes import BOOL, I64, DType
from graph_autofusion.instructions import INSTRUCTIONS, REDUCTIONS
from graph_autofusion.program import Node, Stride, TileProgram


def validate(program: TileProgram) -> None:
    """Checks a program.

    Raises:
        ValueError: it breaks a rule; the message names the node.
    """
    if not program.name.isidentifier():
        raise ValueError(f"the kernel's name {program.name!r} is not an identifier")
    if not 0 <= program.vector < len(program.axes):
        raise ValueError(f"{program.name}: axis {program.vector} for the lanes does not exist")
    reduced = program.reduced
    if program.vector in reduced and program.vector != max(reduced):
        raise ValueError(f"{program.name}: lanes along a reduced axis must lie along the innermost of them")
    names = [p.name for p in program.parameters if p.is_output]
    if len(set(names)) != len(names):
        raise ValueError(f"{program.name}: two outputs have one name: {names}")
    for parameter in program.parameters:
        if len(parameter.strides) != len(program.axes):
            raise ValueError(f"{parameter.name} has {len(parameter.strides)} strides for {len(program.axes)} axes")
    for i, node in enumerate(program.nodes):
        if any(not 0 <= a < i for a in node.args):
            raise ValueError(f"node {i} ({node.op}) uses a later node: {node.args}")
        try:
            _check_node(program, i, node)
        except ValueError as error:
            raise ValueError(f"{program.name}, node {i}, {node.op}: {error}") from None
    if not names:
        raise ValueError(f"{program.name} stores nothing")


def _check_node(program: TileProgram, i: int, node: Node) -> None:
    args = [program.nodes[a].dtype for a in node.args]
    if node.op in ("load", "store"):
        _check_access(program, i, node, args)
    elif node.op == "cast":
        _require(len(args) == 1 and node.dtype.compute is node.dtype, "one argument, to a type of values")
        _require(node.attr is None or node.attr.compute is node.dtype, "rounded to a type that is held otherwise")
    elif node.op.startswith("reduce."):
        reduction = REDUCTIONS.get(node.op.removeprefix("reduce."))
        _require(reduction is not None, "no such reduction")
        assert reduction is not None
        _require(bool(program.reduced), "the program has no reduced axis")
        _require(args == [node.dtype] and node.dtype in reduction.accepts, f"does not take {args}")
    elif node.op in ("const", "scalar", "index"):
        _require(not args, "takes no arguments")
    else:
        _check_elementwise(node, args)


def _check_elementwise(node: Node, args: list[DType]) -> None:
    row = INSTRUCTIONS.get(node.op)
    _require(row is not None, "no such instruction")
    assert row is not None
    _require(len(args) == row.arity, f"takes {row.arity} arguments")
    if node.op == "where":
        _require(args[0] is BOOL, "takes a bool condition")
        args = args[1:]
    _require(len(set(args)) == 1 and args[0] in row.accepts, f"does not take {[a.value for a in args]}")
    _require(node.dtype is row.result(args[0]), f"gives {row.result(args[0]).value}")


def _check_access(program: TileProgram, i: int, node: Node, args: list[DType]) -> None:
    parameter = program.parameters[node.attr]
    _require(parameter.is_output == (node.op == "store"), "of a parameter of the other direction")
    if node.op == "load":
        _require(args == ([I64] if parameter.gathered else []), "an index where and only where it gathers")
        _require(node.dtype is parameter.dtype.compute, f"gives {parameter.dtype.compute.value}")
        return
    _require(args == [parameter.dtype.compute], f"stores a {parameter.dtype.compute.value}")
    for axis in program.varies[node.args[0]]:
        _require(
            parameter.strides[axis] is not Stride.ZERO,
            f"the value varies along {program.axes[axis].name}, where the output has stride 0",
        )


def _require(condition: bool, rule: str) -> None:
    if not condition:
        raise ValueError(rule)
