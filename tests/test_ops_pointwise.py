"""Pointwise operators on npu against the CPU: dtypes, layouts, broadcasting, out=, in-place, numbers, mixed dtypes."""

import operator

import pytest
import torch
from against_cpu import compare, host, layouts, sample

FLOATS = [torch.float32, torch.float16, torch.bfloat16]

# name -> range of the arguments
UNARY_FLOAT = {
    "acos": (-1, 1), "acosh": (1, 5), "asin": (-1, 1), "asinh": (-3, 3), "atan": (-3, 3), "atanh": (-0.9, 0.9),
    "cos": (-3, 3), "cosh": (-3, 3), "exp": (-3, 3), "log": (0.1, 5), "log2": (0.1, 5), "log10": (0.1, 5),
    "reciprocal": (0.5, 4), "rsqrt": (0.5, 4), "sigmoid": (-3, 3), "sin": (-3, 3), "sinc": (-3, 3), "sinh": (-3, 3),
    "sqrt": (0, 4), "tan": (-1, 1), "tanh": (-3, 3), "erf": (-2, 2), "erfc": (-2, 2), "erfinv": (-0.9, 0.9),
    "exp2": (-3, 3), "expm1": (-3, 3), "log1p": (0, 4),
}  # fmt: skip
UNARY_SAME = ["ceil", "floor", "frac", "trunc", "round", "neg", "abs", "sign", "sgn", "relu"]


@pytest.mark.parametrize("name", UNARY_FLOAT)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
def test_functions(name, dtype):
    fn = getattr(torch, name)
    for kind, x in layouts(dtype, *UNARY_FLOAT[name]).items():
        compare(fn, x, what=f"{name} {kind}")
    x = sample((4, 5), dtype, *UNARY_FLOAT[name])
    compare(lambda x, out: fn(x, out=out), x, torch.empty(4, 5, dtype=dtype), what=f"{name} out=")
    compare(lambda x, out: fn(x, out=out), x, torch.empty(0, dtype=dtype), what=f"{name} out= grown")
    compare(getattr(torch.Tensor, name + "_"), x, what=f"{name}_")


@pytest.mark.parametrize("name", ["exp", "sqrt", "sigmoid", "sin", "erf", "log1p", "atan", "reciprocal"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_functions_of_integers_give_floats(name, dtype):
    compare(getattr(torch, name), sample((3, 5), dtype, 1, 5), what=name)


@pytest.mark.parametrize("name", ["exp", "sin", "sqrt", "tanh", "sigmoid", "reciprocal", "neg"])
def test_functions_of_complex_numbers(name):
    for kind, x in layouts(torch.complex64).items():
        compare(getattr(torch, name), x, what=f"{name} {kind}")


@pytest.mark.parametrize("name", UNARY_SAME)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64, torch.int64, torch.int8], ids=str)
def test_functions_that_keep_the_dtype(name, dtype):
    fn = getattr(torch, name)
    native = dtype.is_floating_point or name in ("trunc", "round", "neg", "abs", "sign", "sgn", "relu")
    for kind, x in layouts(dtype).items():
        compare(fn, x, native=native, what=f"{name} {kind}")
    compare(getattr(torch.Tensor, name + "_"), sample((4, 5), dtype), native=native, what=f"{name}_")


@pytest.mark.parametrize("name", ["signbit", "isposinf", "isneginf", "isnan", "logical_not", "isinf", "isfinite"])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.bool], ids=str)
def test_questions(name, dtype):
    fn = getattr(torch, name)
    for kind, x in layouts(dtype).items():
        if dtype.is_floating_point and x.numel() > 3:
            x.flatten()[:3] = torch.tensor([float("nan"), float("inf"), -float("inf")], dtype=dtype)
        compare(fn, x, what=f"{name} {kind}", strides=name != "logical_not")


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=str)
def test_bits(dtype):
    a, b = sample((4, 1, 5), dtype, 0, 9), sample((3, 5), dtype, 0, 9, seed=1)
    for op in (operator.and_, operator.or_, operator.xor):
        compare(op, a, b, what=op.__name__)
        compare(op, a, True if dtype == torch.bool else 3, what=f"{op.__name__} number")
    compare(torch.bitwise_not, a)
    if dtype != torch.bool:
        compare(operator.lshift, a, b)
        compare(operator.rshift, a, b)
        compare(operator.lshift, a, 2)
        compare(torch.gcd, a, b)


def test_special_values():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-40, 3.5])
    for dtype in (*FLOATS, torch.float64):
        compare(torch.nan_to_num, x.to(dtype), native=dtype != torch.float64)
        compare(torch.nan_to_num, x.to(dtype), 1.0, 2.0, -2.0, native=dtype != torch.float64)
        compare(torch.Tensor.nan_to_num_, x.to(dtype), native=dtype != torch.float64)
        compare(torch.angle, x.to(dtype))
        compare(torch.maximum, x.to(dtype), x.flip(0).to(dtype))
    compare(torch.angle, torch.arange(-2, 3))
    compare(torch.nan_to_num, torch.arange(-2, 3))
    compare(torch.logit, sample((5,), torch.float32, 0.1, 0.9))
    compare(torch.logit, sample((5,), torch.float32, -1, 2), 0.1)
    compare(lambda x: torch.round(x, decimals=1), sample((5, 3), torch.float32))


BINARY = ["add", "sub", "mul", "true_divide", "maximum", "minimum", "atan2", "fmod", "remainder", "floor_divide", "pow"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
LOGIC = ["logical_and", "logical_or", "logical_xor"]


def pairs(dtype: torch.dtype) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    def positive(*shape: int, seed: int = 0) -> torch.Tensor:
        return sample(shape, dtype, 1, 5, seed)

    return {
        "same": (positive(7, 13), positive(7, 13, seed=1)),
        "broadcast": (positive(4, 1, 5), positive(3, 1, seed=1)),
        "0-dim": (positive(3, 5), positive(seed=1)),
        "both 0-dim": (positive(), positive(seed=1)),
        "empty": (positive(0, 5), positive(5, seed=1)),
        "transposed": (positive(5, 9).t(), positive(9, 5, seed=1)),
        "gaps": (positive(6, 11)[:, ::2], positive(6, 6, seed=1)),
        "channels_last": (
            positive(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
            positive(2, 3, 4, 5, seed=1),
        ),
    }


@pytest.mark.parametrize("name", [*BINARY, *COMPARISONS, *LOGIC, "logaddexp", "logaddexp2", "xlogy"])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64, torch.int64, torch.int8], ids=str)
def test_two_tensors(name, dtype):
    if name.startswith("logaddexp") and not dtype.is_floating_point:
        pytest.skip("for floating point only")
    fn = getattr(torch, name)
    for kind, (a, b) in pairs(dtype).items():
        compare(fn, a, b, what=f"{name} {kind}")
    a, b = pairs(dtype)["same"]
    out = torch.empty(0, dtype=fn(a, b).dtype)
    compare(lambda a, b, out: fn(a, b, out=out), a, b, out, what=f"{name} out=")
    inplace = getattr(torch.Tensor, name + "_", None)
    if inplace is not None:
        compare(inplace, a, b, what=f"{name}_")
        compare(inplace, a, b[:1], what=f"{name}_ broadcast")


@pytest.mark.parametrize(
    "name", [n for n in [*BINARY, *COMPARISONS, "rsub"] if n not in ("maximum", "minimum", "atan2")]
)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64, torch.int64, torch.uint8, torch.bool], ids=str)
def test_numbers(name, dtype):
    if dtype == torch.bool and name in ("sub", "rsub", "fmod", "remainder", "floor_divide", "pow"):
        pytest.skip("not defined for bool")
    fn = getattr(torch, name)
    for number in (2, 2.5, True):
        if isinstance(number, bool) and name in ("sub", "rsub"):
            continue
        compare(fn, sample((3, 5), dtype, 1, 5), number, what=f"{name} {number}")
        compare(fn, sample((), dtype, 1, 5), number, what=f"{name} {number}, 0-dim")
    for value in (host(2.1, torch.float64), host(2.1, torch.float32), host(3, torch.int64)):
        if name != "rsub":
            compare(fn, sample((3, 5), dtype, 1, 5), value, what=f"{name} {value}")
            compare(fn, sample((), dtype, 1, 5), value, what=f"{name} {value}, 0-dim")
            compare(fn, value, sample((3, 5), dtype, 1, 5), what=f"{value} {name}", native=name != "pow")


def test_reflected_operators():
    x = sample((3, 5), torch.float32, 1, 5)
    for op in (
        operator.add,
        operator.sub,
        operator.mul,
        operator.truediv,
        operator.floordiv,
        operator.mod,
        operator.pow,
    ):
        compare(lambda x, op=op: op(2.5, x), x, what=op.__name__)
        compare(lambda x, op=op: op(x, 2.5), x, what=op.__name__)


@pytest.mark.parametrize("name", ["add", "sub"])
def test_alpha(name):
    a, b = sample((3, 5), torch.float32), sample((3, 5), torch.float32, seed=1)
    compare(getattr(torch, name), a, b, alpha=0.3)
    compare(getattr(torch.Tensor, name + "_"), a, b, alpha=0.3)
    compare(getattr(torch, name), a.long(), b.long(), alpha=3)
    compare(getattr(torch, name), a, 2.0, alpha=0.3)


def test_mixed_dtypes():
    x = {d: sample((4, 5), d, 1, 5) for d in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32)}
    for a in x.values():
        for b in x.values():
            for fn in (torch.add, torch.mul, torch.div, torch.eq, torch.maximum):
                compare(fn, a, b, what=f"{fn.__name__} {a.dtype} {b.dtype}")
    compare(torch.add, x[torch.float32], sample((), torch.float64))
    compare(torch.add, x[torch.int32], sample((), torch.float64))
    compare(lambda a, b, out: torch.add(a, b, out=out), x[torch.int32], x[torch.int32], torch.empty(4, 5))
    compare(torch.Tensor.add_, x[torch.float16], x[torch.float32])


@pytest.mark.parametrize("mode", [None, "trunc", "floor"])
def test_rounding_modes(mode):
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        a, b = sample((7, 5), dtype, -9, 9), sample((7, 5), dtype, 1, 4)
        compare(torch.div, a, b, rounding_mode=mode)
        compare(torch.div, a, 3, rounding_mode=mode)
        if mode is not None:
            compare(torch.Tensor.div_, a, b, rounding_mode=mode)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
def test_three_tensors(dtype):
    a, b, c = (sample((4, 5), dtype, 1, 3, seed=s) for s in range(3))
    for fn in (torch.addcmul, torch.addcdiv):
        compare(fn, a, b, c, value=0.3)
        compare(fn, a, b[:1], c[:, :1], value=0.3)
        compare(getattr(torch.Tensor, fn.__name__ + "_"), a, b, c, value=0.3)
    compare(torch.lerp, a, b, c)
    compare(torch.lerp, a, b, 0.3)
    compare(torch.lerp, a, b[:1], c[:, :1])
    compare(torch.Tensor.lerp_, a, b, 0.3)
    compare(torch.Tensor.lerp_, a, b, c)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64], ids=str)
def test_limits(dtype):
    x, low, high = sample((4, 5), dtype), sample((5,), dtype, -2, -1), sample((4, 1), dtype, 1, 2)
    compare(torch.clamp, x, -1, 1)
    compare(torch.clamp, x, -1.5, 1.5)
    compare(torch.clamp, x, min=-1)
    compare(torch.clamp, x, max=1)
    compare(torch.clamp, x, low, high)
    compare(torch.clamp, x, min=low)
    compare(torch.clamp, x, max=high)
    compare(torch.clamp_min, x, 0)
    compare(torch.clamp_max, x, 0)
    compare(torch.clamp_min, x, low)
    compare(torch.clamp_max, x, high)
    compare(torch.Tensor.clamp_, x, -1, 1)
    compare(torch.Tensor.clamp_, x, low, high)
    compare(torch.Tensor.clamp_min_, x, low)
    compare(torch.Tensor.clamp_max_, x, 1)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.complex64], ids=str)
def test_where(dtype):
    a, b = sample((4, 5), dtype), sample((5,), dtype, seed=1)
    condition = sample((4, 1), torch.bool)
    compare(torch.where, condition, a, b)
    compare(torch.where, sample((4, 5), torch.bool), a.t().contiguous().t(), b)
    compare(torch.where, condition, a, 2)
    compare(torch.where, condition, 1, a)
    compare(torch.where, sample((), torch.bool), a, b)
    compare(lambda c, a, b, out: torch.where(c, a, b, out=out), condition, a, b, torch.empty(0, dtype=dtype))
    compare(torch.where, condition, a, b.to(torch.float32) if dtype != torch.complex64 else b)


@pytest.mark.parametrize("on_host", ["c", "a", "b", "ca", "cb", "ab"])
def test_where_takes_numbers_on_the_cpu(on_host):
    def place(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if name in on_host else tensor.npu()

    c, a, b = torch.tensor(True), torch.tensor(2), torch.tensor(3.5, dtype=torch.float64)
    full = {"c": torch.tensor([True, False, True]), "a": torch.arange(3), "b": torch.tensor([7.5, 8.5, 9.5])}
    numbers = {"c": c, "a": a, "b": b}
    arguments = {name: numbers[name] if name in on_host else full[name] for name in "cab"}
    expected = torch.where(*arguments.values())
    result = torch.where(*(place(name, tensor) for name, tensor in arguments.items()))
    assert result.device.type == "npu"
    assert result.dtype == expected.dtype
    assert torch.equal(result.cpu(), expected)
    out = torch.empty_like(result)
    torch.where(*(place(name, tensor) for name, tensor in arguments.items()), out=out)
    assert torch.equal(out, result)


def test_other():
    a, b = sample((4, 5), torch.float32), sample((4, 5), torch.float32, seed=1)
    compare(torch.complex, a, b)
    compare(torch.polar, a.abs(), b)
    compare(torch.isclose, a, a + 1e-7)
    compare(torch.isin, a.long(), 2)
    compare(torch.equal, a, b)
    compare(torch.equal, a, a.clone())
    compare(torch.equal, a, b[:3])
    compare(torch.allclose, a, a + 1e-9)


def test_devices_do_not_mix():
    npu, cpu = torch.ones(3, device="npu"), torch.ones(3)
    for fn in (torch.add, torch.eq, torch.pow, torch.maximum, torch.logical_and, torch.lerp):
        args = (npu, cpu, cpu) if fn is torch.lerp else (npu, cpu)
        with pytest.raises(RuntimeError, match="on the same device"):
            fn(*args)
    with pytest.raises(RuntimeError, match="on the same device"):
        torch.where(npu > 0, npu, cpu)
