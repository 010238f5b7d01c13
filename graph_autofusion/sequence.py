"""Several kernels as one launch.

The launch's words are a table (how many kernels; for each the address of its function and the position of its words)
followed by the words of all. A kernel of its own walks the table, so that kernels which are too small for more than one
core cost no launch each.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from graph_autofusion.host import compiler, launcher
from graph_autofusion.kernel import HostKernel

_SOURCE = """
typedef void (*Kernel)(unsigned block, unsigned blocks, const void* args);

extern "C" void sequence(unsigned, unsigned, const void* args) {
  const long* const words = (const long*)args;
  for (long i = 0; i < words[0]; ++i) ((Kernel)words[1 + 2 * i])(0, 1, words + words[2 + 2 * i]);
}
"""


@functools.cache
def sequence_function() -> int:
    """The aclrtFuncHandle of the walking kernel."""
    return launcher.runtime().function(compiler.build(_SOURCE), "sequence")


@functools.cache
def _library(path: str) -> Any:
    return ctypes.CDLL(path)


def function_address(kernel: HostKernel) -> int:
    """Where the kernel's machine code is; its library stays loaded."""
    function = getattr(_library(str(kernel.binary)), kernel.tile_program.name)
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def pack_sequence(kernels: Sequence[HostKernel], words: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """The words of one launch of all kernels, and at which position those of each begin."""
    table = [len(kernels)]
    starts = []
    position = 1 + 2 * len(kernels)
    for kernel, own in zip(kernels, words, strict=True):
        table += [function_address(kernel), position]
        starts.append(position)
        position += len(own)
    return [*table, *(word for own in words for word in own)], starts
