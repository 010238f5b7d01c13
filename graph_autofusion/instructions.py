"""The instructions of a tile program: one row each, with everything that is known about it.

A row gives the name in PTO-ISA (or, in brackets, the one ours would have there), the types of values that it takes,
its meaning as a numpy function (which the interpreter runs: the definition), its C++ on vectors of 16 lanes (which the
host printer prints) and what it costs, in units of one addition. ``{0}``, ``{1}``, ``{2}`` stand for the arguments.

Where PyTorch and numpy differ, PyTorch's meaning holds: NaN goes through ``maximum``, integers wrap, ``//`` and ``%``
round towards minus infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graph_autofusion.dtypes import ANY, BOOL, FLOATS, INTEGERS, NUMBERS, DType


@dataclass(frozen=True)
class Instruction:
    """One elementwise instruction; all its arguments have one type, except the condition of ``where``."""

    name: str
    pto: str
    arity: int
    accepts: frozenset[DType]
    meaning: Callable[..., Any]
    cpp: str
    cost: int = 1
    returns_bool: bool = False

    def result(self, dtype: DType) -> DType:
        """Type of the result for arguments of type ``dtype``."""
        return BOOL if self.returns_bool else dtype


def _each(function: Callable[..., float]) -> Callable[..., np.ndarray]:
    """A function of the module math on arrays; out-of-range arguments give NaN."""

    def one(*arguments: float) -> float:
        try:
            return function(*map(float, arguments))
        except (ValueError, OverflowError):
            return math.nan

    vectorized = np.vectorize(one, otypes=[np.float64])

    def apply(*arguments: np.ndarray) -> np.ndarray:
        return vectorized(*arguments).astype(arguments[0].dtype)

    return apply


def _sign(x: np.ndarray) -> np.ndarray:
    return ((x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)).astype(x.dtype)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return (np.where(x < 0, e, np.ones_like(x)) / (1 + e)).astype(x.dtype)


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * _erfc(-x * math.sqrt(0.5))


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


def _floor_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # Truncated when the quotient of floats is infinite or NaN, as numpy's is not.
    if a.dtype.kind == "f":
        mod = np.fmod(a, b)
        div = (a - mod) / b
        div = np.where((mod != 0) & ((b < 0) != (mod < 0)), div - 1, div)
        floor = np.floor(div)
        floor = np.where(div - floor > 0.5, floor + 1, floor)
        return np.where(b == 0, a / b, np.where(div == 0, np.copysign(np.zeros_like(a), a / b), floor))
    return np.floor_divide(a, np.where(b == 0, np.ones_like(b), b))


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        mod = np.fmod(a, b)
        return np.where((mod != 0) & ((b < 0) != (mod < 0)), mod + b, mod)
    return np.remainder(a, np.where(b == 0, np.ones_like(b), b))


def _truncating_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    b = np.where(b == 0, np.ones_like(b), b)
    return (a // b + ((a % b != 0) & ((a < 0) != (b < 0)))).astype(a.dtype)


def _shift_left(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    bits = 8 * a.dtype.itemsize
    return np.where((b < 0) | (b >= bits), a.dtype.type(0), np.left_shift(a, b & (bits - 1)))


def _shift_right(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    bits = 8 * a.dtype.itemsize
    return np.right_shift(a, np.where((b < 0) | (b >= bits), b.dtype.type(bits - 1), b))


_erf = _each(math.erf)
_erfc = _each(math.erfc)
_LOGICAL = INTEGERS | {BOOL}
_WIDE = frozenset({DType.I64, DType.I32})
_BOOLS = frozenset({BOOL})

_ROWS = [
    # ---- one argument
    Instruction("neg", "TNEG", 1, NUMBERS, np.negative, "-{0}"),
    Instruction("abs", "TABS", 1, NUMBERS, np.abs, "abs_({0})"),
    Instruction("sign", "[TSIGN]", 1, NUMBERS, _sign, "sign_({0})", 2),
    Instruction("relu", "TRELU", 1, NUMBERS, lambda x: np.maximum(x, x.dtype.type(0)), "relu_({0})", 2),
    Instruction("square", "[TSQUARE]", 1, NUMBERS, lambda x: x * x, "{0} * {0}"),
    Instruction("reciprocal", "TRECIP", 1, FLOATS, lambda x: 1 / x, "1 / {0}", 4),
    Instruction("sqrt", "TSQRT", 1, FLOATS, np.sqrt, "sqrt_({0})", 6),
    Instruction("rsqrt", "TRSQRT", 1, FLOATS, lambda x: 1 / np.sqrt(x), "1 / sqrt_({0})", 10),
    Instruction("exp", "TEXP", 1, FLOATS, np.exp, "exp_({0})", 14),
    Instruction("exp2", "[TEXP2]", 1, FLOATS, np.exp2, "exp2_({0})", 60),
    Instruction("expm1", "[TEXPM1]", 1, FLOATS, np.expm1, "expm1_({0})", 60),
    Instruction("log", "TLOG", 1, FLOATS, np.log, "log_({0})", 20),
    Instruction("log2", "[TLOG2]", 1, FLOATS, np.log2, "log2_({0})", 60),
    Instruction("log10", "[TLOG10]", 1, FLOATS, np.log10, "log10_({0})", 60),
    Instruction("log1p", "[TLOG1P]", 1, FLOATS, np.log1p, "log1p_({0})", 60),
    Instruction("sin", "TSIN", 1, FLOATS, np.sin, "sin_({0})", 20),
    Instruction("cos", "TCOS", 1, FLOATS, np.cos, "cos_({0})", 20),
    Instruction("tan", "[TTAN]", 1, FLOATS, np.tan, "tan_({0})", 60),
    Instruction("asin", "[TASIN]", 1, FLOATS, np.arcsin, "asin_({0})", 60),
    Instruction("acos", "[TACOS]", 1, FLOATS, np.arccos, "acos_({0})", 60),
    Instruction("atan", "[TATAN]", 1, FLOATS, np.arctan, "atan_({0})", 60),
    Instruction("sinh", "[TSINH]", 1, FLOATS, np.sinh, "sinh_({0})", 60),
    Instruction("cosh", "[TCOSH]", 1, FLOATS, np.cosh, "cosh_({0})", 60),
    Instruction("tanh", "TTANH", 1, FLOATS, np.tanh, "tanh_({0})", 20),
    Instruction("asinh", "[TASINH]", 1, FLOATS, np.arcsinh, "asinh_({0})", 60),
    Instruction("acosh", "[TACOSH]", 1, FLOATS, np.arccosh, "acosh_({0})", 60),
    Instruction("atanh", "[TATANH]", 1, FLOATS, np.arctanh, "atanh_({0})", 60),
    Instruction("sigmoid", "TSIGMOID", 1, FLOATS, _sigmoid, "sigmoid_({0})", 18),
    Instruction("silu", "TSILU", 1, FLOATS, lambda x: x * _sigmoid(x), "silu_({0})", 18),
    Instruction("gelu", "TGELU", 1, FLOATS, _gelu, "gelu_({0})", 24),
    Instruction("erf", "[TERF]", 1, FLOATS, _erf, "erf_({0})", 24),
    Instruction("erfc", "[TERFC]", 1, FLOATS, _erfc, "erfc_({0})", 60),
    Instruction("lgamma", "[TLGAMMA]", 1, FLOATS, _each(_lgamma), "lgamma_({0})", 100),
    Instruction("floor", "TFLOOR", 1, FLOATS, np.floor, "floor_({0})"),
    Instruction("ceil", "TCEIL", 1, FLOATS, np.ceil, "ceil_({0})"),
    Instruction("round", "TROUND", 1, FLOATS, np.rint, "round_({0})"),
    Instruction("trunc", "TTRUNC", 1, FLOATS, np.trunc, "trunc_({0})"),
    Instruction("isnan", "[TISNAN]", 1, FLOATS, np.isnan, "ne_({0}, {0})", 1, True),
    Instruction("isinf", "[TISINF]", 1, FLOATS, np.isinf, "mask(abs_({0}) == __builtin_inff())", 2, True),
    Instruction("signbit", "[TSIGNBIT]", 1, FLOATS, np.signbit, "signbit_({0})", 2, True),
    Instruction("not", "TNOT", 1, _LOGICAL, np.invert, "~{0}"),
    Instruction("logical_not", "[TLNOT]", 1, NUMBERS, np.logical_not, "mask({0} == 0)", 1, True),
    # ---- two arguments
    Instruction("add", "TADD", 2, NUMBERS, np.add, "{0} + {1}"),
    Instruction("sub", "TSUB", 2, NUMBERS, np.subtract, "{0} - {1}"),
    Instruction("mul", "TMUL", 2, NUMBERS, np.multiply, "{0} * {1}"),
    Instruction("div", "TDIV", 2, FLOATS, np.divide, "{0} / {1}", 4),
    Instruction("div_trunc", "[TDIVT]", 2, INTEGERS, _truncating_divide, "div_trunc({0}, {1})", 20),
    Instruction("div_floor", "[TDIVF]", 2, NUMBERS, _floor_divide, "div_floor({0}, {1})", 20),
    Instruction("remainder", "TREM", 2, NUMBERS, _remainder, "remainder_({0}, {1})", 20),
    Instruction("fmod", "TFMOD", 2, FLOATS, np.fmod, "fmod_({0}, {1})", 60),
    Instruction("pow", "TPOW", 2, FLOATS, np.power, "pow_({0}, {1})", 100),
    Instruction("atan2", "[TATAN2]", 2, FLOATS, np.arctan2, "atan2_({0}, {1})", 60),
    Instruction("hypot", "[THYPOT]", 2, FLOATS, np.hypot, "hypot_({0}, {1})", 60),
    Instruction("copysign", "[TCOPYSIGN]", 2, FLOATS, np.copysign, "copysign_({0}, {1})"),
    Instruction("nextafter", "[TNEXTAFTER]", 2, FLOATS, np.nextafter, "nextafter_({0}, {1})", 60),
    Instruction("maximum", "TMAX", 2, NUMBERS, np.maximum, "maximum_({0}, {1})", 2),
    Instruction("minimum", "TMIN", 2, NUMBERS, np.minimum, "minimum_({0}, {1})", 2),
    Instruction("fmax", "[TFMAX]", 2, NUMBERS, np.fmax, "fmax_({0}, {1})", 2),
    Instruction("fmin", "[TFMIN]", 2, NUMBERS, np.fmin, "fmin_({0}, {1})", 2),
    Instruction("and", "TAND", 2, _LOGICAL, np.bitwise_and, "{0} & {1}"),
    Instruction("or", "TOR", 2, _LOGICAL, np.bitwise_or, "{0} | {1}"),
    Instruction("xor", "TXOR", 2, _LOGICAL, np.bitwise_xor, "{0} ^ {1}"),
    Instruction("shl", "TSHL", 2, _WIDE, _shift_left, "shl_({0}, {1})", 2),
    Instruction("shr", "TSHR", 2, _WIDE, _shift_right, "shr_({0}, {1})", 2),
    Instruction("eq", "TCMP.EQ", 2, ANY, np.equal, "eq_({0}, {1})", 1, True),
    Instruction("ne", "TCMP.NE", 2, ANY, np.not_equal, "ne_({0}, {1})", 1, True),
    Instruction("lt", "TCMP.LT", 2, NUMBERS, np.less, "lt_({0}, {1})", 1, True),
    Instruction("le", "TCMP.LE", 2, NUMBERS, np.less_equal, "le_({0}, {1})", 1, True),
    Instruction("gt", "TCMP.GT", 2, NUMBERS, np.greater, "lt_({1}, {0})", 1, True),
    Instruction("ge", "TCMP.GE", 2, NUMBERS, np.greater_equal, "le_({1}, {0})", 1, True),
    # ---- three arguments
    Instruction("fma", "TFMA", 3, FLOATS, lambda a, b, c: a * b + c, "{0} * {1} + {2}"),
    Instruction("where", "TSEL", 3, ANY, np.where, "select({0}, {1}, {2})"),
]

INSTRUCTIONS: dict[str, Instruction] = {row.name: row for row in _ROWS}


@dataclass(frozen=True)
class Reduction:
    """One reduction over the program's reduced axes."""

    name: str
    pto: str
    accepts: frozenset[DType]
    identity: Callable[[DType], float | int | bool]
    meaning: Callable[..., Any]  # of an array and the axes
    combine: str  # C++: the accumulator {0} with one more value {1}


def _lowest(dtype: DType) -> float | int:
    return -math.inf if dtype.is_float else _integer_range(dtype)[0]


def _highest(dtype: DType) -> float | int:
    return math.inf if dtype.is_float else _integer_range(dtype)[1]


def _integer_range(dtype: DType) -> tuple[int, int]:
    info = np.iinfo(dtype.value)
    return int(info.min), int(info.max)


def _sum(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return x.sum(axes, dtype=x.dtype, keepdims=True)


def _product(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return x.prod(axes, dtype=x.dtype, keepdims=True)


REDUCTIONS: dict[str, Reduction] = {
    row.name: row
    for row in [
        Reduction("sum", "TROWSUM", NUMBERS, lambda d: 0, _sum, "{0} + {1}"),
        Reduction("prod", "TROWPROD", NUMBERS, lambda d: 1, _product, "{0} * {1}"),
        Reduction("max", "TROWMAX", NUMBERS, _lowest, lambda x, a: x.max(a, keepdims=True), "maximum_({0}, {1})"),
        Reduction("min", "TROWMIN", NUMBERS, _highest, lambda x, a: x.min(a, keepdims=True), "minimum_({0}, {1})"),
        Reduction("any", "[TROWANY]", _BOOLS, lambda d: False, lambda x, a: x.any(a, keepdims=True), "{0} | {1}"),
        Reduction("all", "[TROWALL]", _BOOLS, lambda d: True, lambda x, a: x.all(a, keepdims=True), "{0} & {1}"),
    ]
}  # fmt: skip
