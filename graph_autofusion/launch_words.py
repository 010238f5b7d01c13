"""The arguments of a kernel's launch: 64-bit words in an order that program and launcher agree on.

Addresses of the parameters, sizes of the axes, then for each parameter its strides that are ``Stride.ANY`` (in
elements), the bounds of its window and, if it is gathered, the stride of the index; then the scalars, floats as the
bits of a float64; last the address of the turns, which are the process's.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from graph_autofusion.program import Number, Stride, TileProgram

TURNS = 64
"""Blocks that remember apart in which direction they last went."""
_turns = (ctypes.c_uint8 * TURNS)()


@dataclass(frozen=True)
class Binding:
    """Where and how one parameter lies at a launch.

    Attributes:
        address: of the element with index 0 along all axes.
        strides: in elements, one an axis; those that the program knows are not looked at.
        window: [low, high) of a windowed parameter.
        index_stride: elements between two values of the index of a gathered parameter.
    """

    address: int
    strides: Sequence[int]
    window: tuple[int, int] = (0, 0)
    index_stride: int = 0


class WordLayout:
    """Number of the word of each argument."""

    def __init__(self, program: TileProgram) -> None:
        self.program = program
        self._next = len(program.parameters)
        self.sizes = [self._take() for _ in program.axes]
        self.strides: list[dict[int, int]] = []
        self.windows: list[tuple[int, int] | None] = []
        self.index_strides: list[int | None] = []
        for parameter in program.parameters:
            self.strides.append({i: self._take() for i, s in enumerate(parameter.strides) if s is Stride.ANY})
            self.windows.append((self._take(), self._take()) if parameter.window is not None else None)
            self.index_strides.append(self._take() if parameter.gathered else None)
        self.scalars = [self._take() for _ in program.scalars]
        self.turns = self._take()
        self.count = self._next

    def _take(self) -> int:
        self._next += 1
        return self._next - 1

    def pack(self, sizes: Sequence[int], bindings: Sequence[Binding], scalars: Sequence[Number] = ()) -> list[int]:
        """The words of one launch."""
        words = [0] * self.count
        words[: len(bindings)] = [b.address for b in bindings]
        for word, size in zip(self.sizes, sizes, strict=True):
            words[word] = size
        for number, binding in enumerate(bindings):
            for axis, word in self.strides[number].items():
                words[word] = binding.strides[axis]
            window, index_stride = self.windows[number], self.index_strides[number]
            if window is not None:
                words[window[0]], words[window[1]] = binding.window
            if index_stride is not None:
                words[index_stride] = binding.index_stride
        for word, value, dtype in zip(self.scalars, scalars, self.program.scalars, strict=True):
            words[word] = struct.unpack("q", struct.pack("d", value))[0] if dtype.is_float else int(value)
        words[self.turns] = ctypes.addressof(_turns)
        return words
