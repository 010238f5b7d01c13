"""What ATen's operators are in tile instructions: one entry an operator.

An entry takes a :class:`Context` and the operator's arguments, tensors among them as tile values, and returns a tile
value. Type promotion is PyTorch's; float16 and bfloat16 are computed in float32. Views and reductions are not here but
in :mod:`torchtitan_npu.compile.group`, as they are about axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch._prims_common import elementwise_dtypes

from graph_autofusion.dtypes import BOOL, I64, DType
from graph_autofusion.program import TileBuilder, Value

aten = torch.ops.aten
prims = torch.ops.prims

DTYPES: dict[torch.dtype, DType] = {getattr(torch, d.value): d for d in DType}


class DoesNotFuse(Exception):
    """Why a node cannot be part of a tile program."""


class Context:
    """The node that is lowered: its result's dtype and the dtypes of its tensor arguments."""

    def __init__(self, builder: TileBuilder, dtype: torch.dtype, arguments: list[Any]) -> None:
        self.builder = builder
        self.dtype = dtype
        self.arguments = arguments  # fake tensors and numbers, for type promotion

    def computed_in(self, kind: Kind = Kind.DEFAULT) -> DType:
        """The type of values in which PyTorch computes the operator."""
        operands = [a for a in self.arguments if isinstance(a, (torch.Tensor, int, float, bool, torch.SymInt))]
        computation, _ = elementwise_dtypes(*operands, type_promotion_kind=kind)
        return tile_dtype(computation).compute

    def value(self, argument: Value | float | int | bool, dtype: DType) -> Value:
        """The argument as a value of a type."""
        if isinstance(argument, Value):
            return self.builder.cast(argument, dtype)
        return self.builder.constant(argument, dtype)

    def values(self, dtype: DType, *arguments: Any) -> list[Value]:
        return [self.value(a, dtype) for a in arguments]


def tile_dtype(dtype: torch.dtype) -> DType:
    """Raises DoesNotFuse for types that tile programs do not have."""
    if dtype not in DTYPES:
        raise DoesNotFuse(f"tile programs have no {dtype}")
    return DTYPES[dtype]


Lowering = Callable[..., Value]
POINTWISE: dict[Any, Lowering] = {}


def lowers(*operators: Any) -> Callable[[Lowering], Lowering]:
    def register(function: Lowering) -> Lowering:
        for operator in operators:
            POINTWISE[operator] = function
        return function

    return register


def _direct(instruction: str, kind: Kind) -> Lowering:
    """An operator that is one instruction."""

    def lower(c: Context, *arguments: Any) -> Value:
        return c.builder.apply(instruction, *c.values(c.computed_in(kind), *arguments))

    return lower


_FLOAT = {  # integers become floats
    "exp": aten.exp, "exp2": aten.exp2, "expm1": aten.expm1, "log": aten.log, "log2": aten.log2, "log10": aten.log10,
    "log1p": aten.log1p, "sqrt": aten.sqrt, "rsqrt": aten.rsqrt, "reciprocal": aten.reciprocal, "sin": aten.sin,
    "cos": aten.cos, "tan": aten.tan, "asin": aten.asin, "acos": aten.acos, "atan": aten.atan, "sinh": aten.sinh,
    "cosh": aten.cosh, "tanh": aten.tanh, "asinh": aten.asinh, "acosh": aten.acosh, "atanh": aten.atanh,
    "sigmoid": aten.sigmoid, "silu": aten.silu, "erf": aten.erf, "erfc": aten.erfc, "lgamma": aten.lgamma,
    "atan2": aten.atan2,
}  # fmt: skip
_SAME = {
    "neg": aten.neg, "abs": aten.abs, "sign": aten.sign, "relu": aten.relu,
    "maximum": aten.maximum, "minimum": aten.minimum, "fmax": aten.fmax, "fmin": aten.fmin,
    "hypot": aten.hypot, "copysign": aten.copysign, "nextafter": aten.nextafter,
}  # fmt: skip
for _names, _kind in ((_FLOAT, Kind.INT_TO_FLOAT), (_SAME, Kind.DEFAULT)):
    for _name, _operator in _names.items():
        POINTWISE[_operator.default] = _direct(_name, _kind)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    for _overload in ("Tensor", "Scalar"):
        POINTWISE[getattr(getattr(aten, _name), _overload)] = _direct(_name, Kind.DEFAULT)


@lowers(aten.mul.Tensor, aten.mul.Scalar)
def _mul(c: Context, a: Any, b: Any) -> Value:
    dtype = c.computed_in()
    return c.builder.apply("and" if dtype is BOOL else "mul", *c.values(dtype, a, b))


def _scaled(c: Context, b: Any, alpha: float | int, dtype: DType) -> Value:
    value = c.value(b, dtype)
    return value if alpha == 1 else value.apply("mul", alpha)


@lowers(aten.add.Tensor, aten.add.Scalar)
def _add(c: Context, a: Any, b: Any, alpha: float | int = 1) -> Value:
    dtype = c.computed_in()
    if dtype is BOOL:
        return c.builder.apply("or", *c.values(dtype, a, b))
    return c.value(a, dtype).apply("add", _scaled(c, b, alpha, dtype))


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def _sub(c: Context, a: Any, b: Any, alpha: float | int = 1) -> Value:
    dtype = c.computed_in()
    return c.value(a, dtype).apply("sub", _scaled(c, b, alpha, dtype))


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def _rsub(c: Context, a: Any, b: Any, alpha: float | int = 1) -> Value:
    dtype = c.computed_in()
    return c.value(b, dtype).apply("sub", _scaled(c, a, alpha, dtype))


@lowers(aten.div.Tensor, aten.div.Scalar)
def _div(c: Context, a: Any, b: Any) -> Value:
    return c.builder.apply("div", *c.values(c.computed_in(Kind.INT_TO_FLOAT), a, b))


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_mode(c: Context, a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return _div(c, a, b)
    dtype = c.computed_in()
    x, y = c.values(dtype, a, b)
    if rounding_mode == "floor":
        _refuse_zero_divisor(dtype, b)
        return x.apply("div_floor", y)
    if dtype.is_float:
        return x.apply("div", y).apply("trunc")
    _refuse_zero_divisor(dtype, b)
    return x.apply("div_trunc", y)


def _refuse_zero_divisor(dtype: DType, divisor: Any) -> None:
    # PyTorch raises for integers divided by zero, which a kernel cannot.
    if not dtype.is_float and (isinstance(divisor, Value) or divisor == 0):
        raise DoesNotFuse("integers are divided by a tensor, which raises where it is zero")


@lowers(aten.floor_divide.default)
def _floor_divide(c: Context, a: Any, b: Any) -> Value:
    return _div_mode(c, a, b, "floor")


@lowers(aten.remainder.Tensor, aten.remainder.Scalar)
def _remainder(c: Context, a: Any, b: Any) -> Value:
    dtype = c.computed_in()
    _refuse_zero_divisor(dtype, b)
    return c.builder.apply("remainder", *c.values(dtype, a, b))


@lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def _fmod(c: Context, a: Any, b: Any) -> Value:
    dtype = c.computed_in()
    _refuse_zero_divisor(dtype, b)
    x, y = c.values(dtype, a, b)
    if dtype.is_float:
        return x.apply("fmod", y)
    return x.apply("sub", x.apply("div_trunc", y).apply("mul", y))


@lowers(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar)
def _pow(c: Context, a: Any, b: Any) -> Value:
    dtype = c.computed_in()
    if isinstance(b, (int, float)) and not isinstance(b, bool):
        x = c.value(a, dtype)
        simple: dict[float, Callable[[], Value]] = {
            1: lambda: x,
            2: lambda: x.square(),
            3: lambda: x.square().apply("mul", x),
        }
        if dtype.is_float:
            simple |= {0.5: x.sqrt, -0.5: x.rsqrt, -1: x.reciprocal}
        if b in simple:
            return simple[b]()
    if not dtype.is_float:
        raise DoesNotFuse("integers are raised to a power")
    return c.builder.apply("pow", *c.values(dtype, a, b))


for _name in ("floor", "ceil", "round", "trunc"):

    def _rounding(c: Context, a: Any, _name: str = _name) -> Value:
        dtype = c.computed_in()
        return c.value(a, dtype).apply(_name) if dtype.is_float else c.value(a, dtype)

    POINTWISE[getattr(aten, _name).default] = _rounding


@lowers(aten.gelu.default)
def _gelu(c: Context, a: Any, approximate: str = "none") -> Value:
    x = c.value(a, c.computed_in(Kind.INT_TO_FLOAT))
    if approximate == "none":
        return x.apply("gelu")
    # x (1 + tanh(u)) / 2 is x sigmoid(2u), one exponential and one division.
    inner = x.square().apply("mul", 0.044715).apply("add", 1.0).apply("mul", x)
    minus_twice = inner.apply("mul", -2 * math.sqrt(2 / math.pi))
    return x.apply("div", minus_twice.exp().apply("add", 1.0))


for _name in ("isnan", "isinf", "signbit"):

    def _predicate(c: Context, a: Any, _name: str = _name) -> Value:
        if a.dtype.is_float:
            return a.apply(_name)
        if _name == "signbit":
            return c.builder.constant(False, BOOL) if a.dtype is BOOL else a.apply("lt", 0)
        return c.builder.constant(False, BOOL)

    POINTWISE[getattr(aten, _name).default] = _predicate


@lowers(aten.logical_not.default)
def _logical_not(c: Context, a: Any) -> Value:
    return a.apply("not") if a.dtype is BOOL else a.apply("logical_not")


for _name in ("and", "or", "xor"):

    def _logical(c: Context, a: Any, b: Any, _name: str = _name) -> Value:
        return c.builder.apply(_name, *c.values(BOOL, a, b))

    def _bitwise(c: Context, a: Any, b: Any, _name: str = _name) -> Value:
        return c.builder.apply(_name, *c.values(c.computed_in(), a, b))

    POINTWISE[getattr(aten, f"logical_{_name}").default] = _logical
    for _overload in ("Tensor", "Scalar"):
        POINTWISE[getattr(getattr(aten, f"bitwise_{_name}"), _overload)] = _bitwise


@lowers(aten.bitwise_not.default)
def _bitwise_not(c: Context, a: Any) -> Value:
    return a.apply("not")


for _name, _aten in (("shl", aten.bitwise_left_shift), ("shr", aten.bitwise_right_shift)):

    def _shift(c: Context, a: Any, b: Any, _name: str = _name) -> Value:
        dtype = c.computed_in()
        if dtype not in (DType.I32, I64):
            raise DoesNotFuse(f"{dtype.value} is shifted")
        return c.builder.apply(_name, *c.values(dtype, a, b))

    POINTWISE[_aten.Tensor] = POINTWISE[_aten.Tensor_Scalar] = _shift


@lowers(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def _where(c: Context, condition: Any, a: Any, b: Any) -> Value:
    dtype = tile_dtype(c.dtype).compute
    return c.builder.apply("where", c.value(condition, BOOL), *c.values(dtype, a, b))


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(c: Context, a: Any, mask: Any, value: Any) -> Value:
    return _where(c, mask, value, a)


@lowers(aten.clamp.default, aten.clamp.Tensor, aten.hardtanh.default)
def _clamp(c: Context, a: Any, low: Any = None, high: Any = None) -> Value:
    dtype = tile_dtype(c.dtype).compute
    value = c.value(a, dtype)
    if low is not None:
        value = value.apply("maximum", c.value(low, dtype))
    if high is not None:
        value = value.apply("minimum", c.value(high, dtype))
    return value


@lowers(aten.clamp_min.default, aten.clamp_min.Tensor)
def _clamp_min(c: Context, a: Any, low: Any) -> Value:
    return _clamp(c, a, low)


@lowers(aten.clamp_max.default, aten.clamp_max.Tensor)
def _clamp_max(c: Context, a: Any, high: Any) -> Value:
    return _clamp(c, a, None, high)


@lowers(aten.addcmul.default)
def _addcmul(c: Context, a: Any, b: Any, d: Any, value: float = 1) -> Value:
    dtype = c.computed_in()
    x, y, z = c.values(dtype, a, b, d)
    return x.apply("add", _scaled(c, y, value, dtype).apply("mul", z))


@lowers(aten.addcdiv.default)
def _addcdiv(c: Context, a: Any, b: Any, d: Any, value: float = 1) -> Value:
    dtype = c.computed_in()
    x, y, z = c.values(dtype, a, b, d)
    return x.apply("add", _scaled(c, y, value, dtype).apply("div", z))


@lowers(aten.lerp.Scalar, aten.lerp.Tensor)
def _lerp(c: Context, a: Any, b: Any, weight: Any) -> Value:
    dtype = c.computed_in()
    x, y, w = c.values(dtype, a, b, weight)
    difference = y.apply("sub", x)
    near = x.apply("add", w.apply("mul", difference))
    far = y.apply("sub", difference.apply("mul", c.value(1.0, dtype).apply("sub", w)))
    return c.builder.apply("where", w.apply("abs").apply("lt", 0.5), near, far)


@lowers(aten.leaky_relu.default)
def _leaky_relu(c: Context, a: Any, slope: float = 0.01) -> Value:
    return c.builder.apply("where", a.apply("gt", 0.0), a, a.apply("mul", slope))


@lowers(aten.threshold_backward.default)
def _threshold_backward(c: Context, grad: Any, a: Any, threshold: float) -> Value:
    dtype = tile_dtype(c.dtype).compute
    x, g = c.values(dtype, a, grad)
    return c.builder.apply("where", x.apply("le", threshold), c.value(0, dtype), g)


@lowers(aten.sigmoid_backward.default)
def _sigmoid_backward(c: Context, grad: Any, out: Any) -> Value:
    return grad.apply("mul", out.apply("mul", c.value(1.0, out.dtype).apply("sub", out)))


@lowers(aten.tanh_backward.default)
def _tanh_backward(c: Context, grad: Any, out: Any) -> Value:
    return grad.apply("mul", c.value(1.0, out.dtype).apply("sub", out.square()))


@lowers(prims.convert_element_type.default)
def _convert(c: Context, a: Any, dtype: torch.dtype) -> Value:
    return c.builder.cast(a, tile_dtype(dtype))


@lowers(aten._to_copy.default)
def _to_copy(c: Context, a: Any, **options: Any) -> Value:
    return c.builder.cast(a, tile_dtype(c.dtype))


@lowers(aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default)
def _clone(c: Context, a: Any, memory_format: Any = None) -> Value:
    return a


@lowers(aten.full.default, aten.full_like.default)
def _full(c: Context, shape: Any, value: Any, **options: Any) -> Value:
    return c.value(value, tile_dtype(c.dtype).compute)


@lowers(aten.scalar_tensor.default)
def _scalar_tensor(c: Context, value: Any, **options: Any) -> Value:
    return c.value(value, tile_dtype(c.dtype).compute)


@lowers(aten.zeros_like.default, aten.zeros.default)
def _zeros(c: Context, like: Any, **options: Any) -> Value:
    return c.value(0, tile_dtype(c.dtype).compute)


@lowers(aten.ones_like.default, aten.ones.default)
def _ones(c: Context, like: Any, **options: Any) -> Value:
    return c.value(1, tile_dtype(c.dtype).compute)


CREATES = {
    aten.full.default, aten.full_like.default, aten.scalar_tensor.default, aten.zeros_like.default, aten.zeros.default,
    aten.ones_like.default, aten.ones.default,
}  # fmt: skip
"""Operators that read no tensor: each consumer computes them anew."""

REDUCTIONS: dict[Any, str] = {
    aten.sum.dim_IntList: "sum", aten.sum.default: "sum", aten.mean.dim: "mean", aten.mean.default: "mean",
    aten.amax.default: "max", aten.amin.default: "min", aten.any.dim: "any", aten.any.default: "any",
    aten.any.dims: "any", aten.all.dim: "all", aten.all.default: "all", aten.all.dims: "all",
    aten.max.default: "max", aten.min.default: "min", aten.prod.default: "prod", aten.prod.dim_int: "prod",
}  # fmt: skip


def lower_reduction(c: Context, name: str, value: Value, count: int) -> Value:
    """A reduction of ``count`` elements; sums of integers are int64, means are sums divided."""
    if name in ("any", "all"):
        return c.builder.reduce(name, c.value(value, BOOL))
    dtype = tile_dtype(c.dtype).compute
    if name in ("max", "min"):
        if value.dtype is BOOL:
            return c.builder.reduce("any" if name == "max" else "all", value)
        return c.builder.reduce(name, value)
    total = c.builder.reduce("sum" if name == "mean" else name, c.value(value, dtype))
    if name == "mean":
        return total.apply("mul", 1.0 / count) if count else total.apply("div", 0.0)
    return total


def lower_product(c: Context, row: Value, matrix: Value, added: Value | None, options: dict[str, Any]) -> Value:
    """``alpha * (row @ matrix) + beta * added``, a sum over the elementwise products."""
    value = c.builder.reduce("sum", row.apply("mul", matrix))
    alpha, beta = options.get("alpha", 1), options.get("beta", 1)
    value = value if alpha == 1 else value.apply("mul", float(alpha))
    if added is None or beta == 0:
        return value
    return value.apply("add", _scaled(c, added, float(beta), value.dtype))
