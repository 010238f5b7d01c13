"""A compiled kernel and how it is launched."""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graph_autofusion.dtypes import DType
from graph_autofusion.host import compiler, launcher, printer
from graph_autofusion.launch_words import Binding, WordLayout
from graph_autofusion.program import Number, Parameter, Stride, TileProgram
from graph_autofusion.schedule import Schedule, schedule

POINTS_PER_BLOCK = 1 << 13
"""Points of the loops below which a further thread costs more than it saves."""


class HostKernel:
    """A tile program compiled for this machine. Shapes are arguments of the launch."""

    def __init__(self, program: TileProgram) -> None:
        self.tile_program = program
        self.schedule: Schedule = schedule(program)
        self.words = WordLayout(program)
        self._function: int | None = None
        self._binary: Path | None = None
        self._compiling = threading.Lock()

    @functools.cached_property
    def source(self) -> str:
        """The C++ that is compiled."""
        return printer.print_host(self.schedule)

    @property
    def binary(self) -> Path:
        """The compiled kernel's file; compiles it at the first use, in any thread."""
        # Not a cached_property: before Python 3.12 all kernels would share its lock, and compile one after the other.
        with self._compiling:
            if self._binary is None:
                self._binary = compiler.build(self.source)
            return self._binary

    @property
    def function(self) -> int:
        """The kernel's aclrtFuncHandle; compiles and loads it at the first use."""
        if self._function is None:
            self._function = launcher.runtime().function(self.binary, self.tile_program.name)
        return self._function

    def blocks(self, sizes: Sequence[int], threads: int, points_per_block: int = POINTS_PER_BLOCK) -> int:
        """On how many threads a launch is worth running."""
        return max(1, min(threads, math.prod(sizes) // points_per_block))

    def launch(
        self,
        sizes: Sequence[int],
        bindings: Sequence[Binding],
        scalars: Sequence[Number] = (),
        *,
        threads: int = 1,
        stream: int | None = None,
    ) -> None:
        """Puts the kernel on a stream.

        Args:
            sizes: of the axes.
            bindings: one a parameter, in the program's order.
            scalars: the numbers of the launch.
            threads: how many cores it may use.
            stream: an aclrtStream; None is the default stream of the current device.

        Raises:
            LaunchError: CANN refused it.
        """
        words = launcher.words_of(self.words.pack(sizes, bindings, scalars))
        run = launcher.runtime()
        blocks = self.blocks(sizes, threads)
        run.check(run.launch(self.function, blocks, ctypes.byref(words), ctypes.sizeof(words), stream))

    def run_arrays(
        self, sizes: Sequence[int], inputs: dict[str, np.ndarray], scalars: Sequence[Number] = (), threads: int = 1
    ) -> dict[str, np.ndarray]:
        """Runs on numpy arrays, as the interpreter does; bfloat16 arrays are uint16 bits. Outputs are new and dense."""
        outputs = {}
        bindings = []
        for parameter in self.tile_program.parameters:
            if parameter.is_output:
                shape = [1 if s is Stride.ZERO else n for s, n in zip(parameter.strides, sizes, strict=True)]
                array = outputs[parameter.name] = self._dense(parameter, shape)
            else:
                array = inputs[parameter.name]
            bindings.append(bind_array(array, parameter.strides, parameter.gathered))
        self.launch(sizes, bindings, scalars, threads=threads)
        return outputs

    def _dense(self, parameter: Parameter, shape: list[int]) -> np.ndarray:
        """A new array whose neighbours along the lanes lie side by side if the program stores them so."""
        if Stride.ONE not in parameter.strides:
            return np.empty(shape, numpy_dtype(parameter.dtype))
        axis = parameter.strides.index(Stride.ONE)
        inner_last = [*shape[:axis], *shape[axis + 1 :], shape[axis]]
        return np.moveaxis(np.empty(inner_last, numpy_dtype(parameter.dtype)), -1, axis)


def numpy_dtype(dtype: DType) -> Any:
    """The array type with elements of this size: uint16 for bfloat16."""
    return np.dtype("uint16" if dtype is DType.BF16 else dtype.value)


def bind_array(array: np.ndarray, strides: Sequence[Stride], gathered: bool = False) -> Binding:
    """A numpy array with one dimension an axis, and if it is gathered one more for its index, as a parameter.

    Raises:
        ValueError: the program was written for other strides.
    """
    index_stride = array.strides[-1] // array.itemsize if gathered else 0
    array = array[..., 0] if gathered else array
    elements = [s // array.itemsize if n > 1 else 0 for s, n in zip(array.strides, array.shape, strict=True)]
    for axis, (known, stride) in enumerate(zip(strides, elements, strict=True)):
        if known is Stride.ONE and stride != 1 and array.shape[axis] > 1 and array.size:
            raise ValueError(f"axis {axis} of an array has stride {stride}, the program takes 1")
    return Binding(array.ctypes.data, elements, index_stride=index_stride)
