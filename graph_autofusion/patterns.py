"""Fusion patterns: chains of operators by name, and the tile programs that they are.

``"Conv2d -> GELU -> Add"`` names operators in the order in which they run. The first may be a matrix operator, which
stays an operator of CANN; what follows is one kernel on its result. An operator of two tensors takes the chain's value
and one more input.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graph_autofusion.dtypes import F32, DType
from graph_autofusion.program import TileBuilder, TileProgram, Value

ANCHORS = {"conv1d": "convolution", "conv2d": "convolution", "conv3d": "convolution", "linear": "linear",
           "matmul": "matmul", "mm": "matmul", "bmm": "matmul"}  # fmt: skip
"""Matrix operators that a pattern may begin with, and the kind of operator that they are."""

Chain = Callable[[TileBuilder, Value, Callable[[], Value]], Value]


def _unary(instruction: str) -> Chain:
    return lambda t, x, other: x.apply(instruction)


def _binary(instruction: str) -> Chain:
    return lambda t, x, other: x.apply(instruction, other())


def _softmax(t: TileBuilder, x: Value, other: Callable[[], Value]) -> Value:
    e = (x - t.reduce("max", x)).apply("exp")
    return e / t.reduce("sum", e)


_OPERATORS: dict[str, Chain] = {
    **{name: _unary(name) for name in ("gelu", "relu", "silu", "sigmoid", "tanh", "exp", "sqrt", "rsqrt", "abs", "neg",
                                       "erf", "sin", "cos", "log", "square", "reciprocal")},
    **{name: _binary(name) for name in ("add", "sub", "mul", "div", "maximum", "minimum")},
    "softmax": _softmax,
}  # fmt: skip
_REDUCES = {"softmax"}


@dataclass(frozen=True)
class FusionPattern:
    """A chain of operators that can be one kernel.

    Attributes:
        operators: their names, lower case.
        anchor: kind of the matrix operator in front of the kernel; "" if there is none.
        program: the tile program of the operators after the anchor.
    """

    operators: tuple[str, ...]
    anchor: str
    program: TileProgram

    @property
    def fused(self) -> tuple[str, ...]:
        """The operators that the kernel does."""
        return self.operators[1:] if self.anchor else self.operators

    def __str__(self) -> str:
        return " -> ".join(self.operators)


def parse_pattern(text: str, dtype: DType = F32) -> FusionPattern:
    """A pattern from names and arrows.

    Raises:
        ValueError: an unknown operator, a matrix operator that is not the first, or nothing to fuse.
    """
    names = [re.sub(r"[\s_]", "", part).lower() for part in text.split("->")]
    anchor = ANCHORS.get(names[0], "")
    fused = names[1:] if anchor else names
    if not fused or not all(names):
        raise ValueError(f"{text!r} names nothing to fuse: expected operators joined by '->', such as 'Conv2d -> GELU'")
    for name in fused:
        if name in ANCHORS:
            raise ValueError(f"{text!r}: {name} is a matrix operator, which only the first can be")
        if name not in _OPERATORS:
            raise ValueError(f"{text!r}: unknown operator {name!r}; known are {', '.join(sorted(_OPERATORS))}")
    return FusionPattern(tuple(names), anchor, chain_program(tuple(fused), dtype))


def chain_program(names: tuple[str, ...], dtype: DType) -> TileProgram:
    """Rows of elements through the operators: input ``x``, further inputs ``y0``, ``y1``, …, output ``out``."""
    reduces = any(name in _REDUCES for name in names)
    title = "pattern_" + "_".join(names)
    t = TileBuilder(title, ("row",), ("col",)) if reduces else TileBuilder(title, ("row", "col"))
    value = t.load("x", dtype)
    others = 0

    def other() -> Value:
        nonlocal others
        others += 1
        return t.load(f"y{others - 1}", dtype)

    for name in names:
        value = _OPERATORS[name](t, value, other)
    t.store("out", value, dtype)
    return t.build()


Detector = Callable[..., "FusionPattern | None"]
_detectors: list[Detector] = []


def register_detector(detector: Detector) -> Detector:
    """Adds a function that finds a pattern in an object of another library, or returns None if it knows it not."""
    _detectors.append(detector)
    return detector


def detect_fusion_pattern(source: Any, *example_inputs: Any, dtype: DType = F32) -> FusionPattern:
    """The pattern that a text names, or the largest one in a model, an FX graph or a function.

    Args:
        source: ``"Conv2d -> GELU -> Add"``; or what a detector knows. ``torchtitan_npu.compile`` knows torch's modules,
            FX graph modules and functions.
        example_inputs: with which a model or function is traced.
        dtype: of the elements, for a text.

    Raises:
        ValueError: unknown operators, or nothing in the source can be fused.
        TypeError: no detector knows such a source.
    """
    if isinstance(source, str):
        return parse_pattern(source, dtype)
    for detector in _detectors:
        found = detector(source, *example_inputs)
        if found is not None:
            return found
    raise TypeError(
        f"no fusion pattern can be found in a {type(source).__name__}: expected a text such as 'Conv2d -> GELU'; for "
        "torch's modules, FX graphs and functions import torchtitan_npu.compile first"
    )
