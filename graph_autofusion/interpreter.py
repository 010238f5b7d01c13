"""Runs tile programs in numpy, node by node: the definition that printers are tested against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graph_autofusion.dtypes import BF16, F16, F32, DType
from graph_autofusion.instructions import INSTRUCTIONS, REDUCTIONS
from graph_autofusion.program import Node, Number, Stride, TileProgram


def interpret(
    program: TileProgram,
    sizes: Sequence[int],
    inputs: Mapping[str, np.ndarray],
    scalars: Sequence[Number] = (),
    *,
    exact: bool = False,
) -> dict[str, np.ndarray]:
    """What the program stores.

    Args:
        sizes: of the axes.
        inputs: an array for each input with one dimension an axis, of size 1 where the stride is zero; bfloat16 as
            float32. One that is gathered has a further dimension, the last, that its index counts along. Windowed
            parameters are not interpreted.
        scalars: the numbers of the launch.
        exact: compute floats in float64, whatever their type: a reference.

    Returns:
        The outputs by name, with size 1 along axes of stride zero.

    Raises:
        ValueError: the program has windowed parameters.
        IndexError: an index that a gathered parameter does not have.
    """
    if any(p.window is not None for p in program.parameters):
        raise ValueError(f"{program.name} has windows, which the interpreter has no arrays for")
    values: list[np.ndarray] = []
    outputs: dict[str, np.ndarray] = {}
    with np.errstate(all="ignore"):
        for node in program.nodes:
            arguments = [values[a] for a in node.args]
            if node.op == "store":
                parameter = program.parameters[node.attr]
                shape = [1 if s is Stride.ZERO else n for s, n in zip(parameter.strides, sizes, strict=True)]
                stored = arguments[0] if exact else _rounded(arguments[0], parameter.dtype)
                outputs[parameter.name] = np.broadcast_to(stored, shape)
                values.append(stored)
            else:
                values.append(_value(program, node, arguments, sizes, inputs, scalars, exact))
    return outputs


def _value(
    program: TileProgram,
    node: Node,
    arguments: list[np.ndarray],
    sizes: Sequence[int],
    inputs: Mapping[str, np.ndarray],
    scalars: Sequence[Number],
    exact: bool,
) -> np.ndarray:
    rank = len(program.axes)
    held = np.dtype("float64") if exact and node.dtype.is_float else np.dtype(node.dtype.value)
    if node.op == "load":
        array = inputs[program.parameters[node.attr].name]
        return (_gathered(array, arguments[0]) if arguments else array).astype(held)
    if node.op in ("const", "scalar"):
        number = node.attr if node.op == "const" else scalars[node.attr]
        return np.full((1,) * rank, number, held)
    if node.op == "index":
        shape = [1] * rank
        shape[node.attr] = sizes[node.attr]
        return np.arange(sizes[node.attr], dtype=held).reshape(shape)
    if node.op == "cast":
        return _rounded(arguments[0], node.attr).astype(held) if node.attr else arguments[0].astype(held)
    if node.op.startswith("reduce."):
        axes = tuple(sorted(program.reduced))
        whole = [sizes[i] if i in axes else n for i, n in enumerate(arguments[0].shape)]
        reduction = REDUCTIONS[node.op[7:]]
        if any(sizes[i] == 0 for i in axes):
            shape = [1 if i in axes else n for i, n in enumerate(whole)]
            return np.full(shape, reduction.identity(node.dtype), held)
        return reduction.meaning(np.broadcast_to(arguments[0], whole), axes).astype(held)
    return np.asarray(INSTRUCTIONS[node.op].meaning(*arguments)).astype(
        bool if INSTRUCTIONS[node.op].returns_bool else held
    )


def _gathered(table: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The elements of the table's last dimension that the index counts."""
    if index.size and not (index.min() >= 0 and index.max() < table.shape[-1]):
        raise IndexError(f"an index from {index.min()} to {index.max()} of a table of {table.shape[-1]}")
    shape = np.broadcast_shapes(table.shape[:-1], index.shape)
    whole = np.broadcast_to(table, (*shape, table.shape[-1]))
    return np.take_along_axis(whole, np.broadcast_to(index, shape)[..., None], -1)[..., 0]


def _rounded(x: np.ndarray, dtype: DType) -> np.ndarray:
    """``x`` with the precision of ``dtype``; float16 and bfloat16 stay float32."""
    if dtype is F16:
        return x.astype(np.float16).astype(np.float32)
    if dtype is BF16:
        bits = x.astype(np.float32).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)
        return np.where(np.isnan(x), np.float32(np.nan), rounded)
    return x.astype(F32.value if dtype is F32 else dtype.value)
