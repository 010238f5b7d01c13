"""Runs a tile program as a host kernel and in the interpreter, for comparison."""

from __future__ import annotations

import numpy as np

from graph_autofusion.dtypes import BF16, DType
from graph_autofusion.interpreter import interpret
from graph_autofusion.kernel import HostKernel, numpy_dtype
from graph_autofusion.program import Stride, TileProgram

# Units in the last place that one elementary function may be off.
RELATIVE = {"float32": 2e-6, "float64": 1e-13}


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Numbers of moderate size; bfloat16 as bits."""
    if dtype.is_float:
        values = rng.normal(size=shape).astype(np.float32)
        if dtype is BF16:
            return to_bits(values)
        return values.astype(numpy_dtype(dtype))
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0 if dtype is DType.U8 else -7, 8, shape).astype(numpy_dtype(dtype))


def to_bits(values: np.ndarray) -> np.ndarray:
    """float32 values as bits of bfloat16, cut off."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bits(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def shape_of(strides: tuple[Stride, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if s is Stride.ZERO else n for s, n in zip(strides, sizes, strict=True))


def in_order(program: TileProgram, strides: tuple[Stride, ...], array: np.ndarray) -> np.ndarray:
    """The same numbers, laid out so that the axis of stride one is the innermost."""
    if Stride.ONE not in strides:
        return array
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, program.vector, -1)), -1, program.vector)


def run_both(
    program: TileProgram, sizes: tuple[int, ...], inputs: dict[str, np.ndarray], threads: int = 1, exact: bool = True
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Outputs by name as (kernel, interpreter), both as numbers."""
    actual = HostKernel(program).run_arrays(sizes, inputs, threads=threads)
    dtypes = {p.name: p.dtype for p in program.parameters}
    numbers = {name: from_bits(a) if dtypes[name] is BF16 else a for name, a in inputs.items()}
    expected = interpret(program, sizes, numbers, exact=exact)
    return {name: (from_bits(a) if dtypes[name] is BF16 else a, expected[name]) for name, a in actual.items()}
