"""Element-wise kernels against ATen and, for accuracy, against float64."""

import kernels_library as kernels
import numpy as np
import pytest
import torch

pytestmark = pytest.mark.usefixtures("isa")

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
REALS = [*FLOATS, torch.float64]
NUMBERS = [*REALS, torch.int32, torch.int64]
COMPARABLE = [*NUMBERS, torch.bool, torch.uint8]
CASTABLE = [*NUMBERS, torch.uint8, torch.bool]
SIZES = [0, 1, 3, 15, 16, 17, 63, 100, 1031]
SPECIAL = [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 1e-40, -1e-40, 3.4e38, 0.1, 65504.0, 6e-8]


def numbers(dtype: torch.dtype, n: int, seed: int = 0) -> torch.Tensor:
    """Numbers of all magnitudes and, for floats, special ones."""
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        high = {torch.bool: 2, torch.uint8: 256}.get(dtype, 1 << 31)
        low = 0 if dtype in (torch.bool, torch.uint8) else -high
        return torch.randint(low, high, (n,), generator=generator, dtype=torch.int64).to(dtype)
    x = torch.randn(n, generator=generator, dtype=torch.float64) * 10
    special = torch.tensor(SPECIAL, dtype=torch.float64)
    where = torch.randint(0, 4 * len(SPECIAL), (n,), generator=generator)
    return torch.where(where < len(SPECIAL), special[where % len(SPECIAL)], x).to(dtype)


def assert_equal(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


# ---- Binary ----


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("op", kernels.BINARY_OPS)
@pytest.mark.parametrize("n", SIZES)
def test_binary(op, dtype, n):
    a, b = numbers(dtype, n, 1), numbers(dtype, n, 2)
    got = kernels.binary(op, a, b)
    if op == "div" and not dtype.is_floating_point:
        assert got is None
        return
    assert_equal(got, getattr(torch, op)(a, b))


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("op", ["add", "sub"])
@pytest.mark.parametrize("alpha", [3, -2, 0.3])
def test_alpha(op, dtype, alpha):
    if isinstance(alpha, float) and not dtype.is_floating_point:
        alpha = 2**31 - 1 if dtype == torch.int32 else 2**62 + 1  # integers keep all their bits
    a, b, fives = numbers(dtype, 1031, 1), numbers(dtype, 1031, 2), torch.full((1031,), 5, dtype=dtype)
    # ATen rounds alpha * b to 16 bits in some of its loops; the kernels round only once.
    wide = torch.float32 if dtype in FLOATS else dtype

    def want(x, y):
        return getattr(torch, op)(x.to(wide), y.to(wide), alpha=alpha).to(dtype)

    torch.testing.assert_close(kernels.binary(op, a, b, alpha), want(a, b), equal_nan=True)
    torch.testing.assert_close(kernels.binary(op, a, 5, alpha), want(a, fives), equal_nan=True)
    torch.testing.assert_close(kernels.binary(op, 5, b, alpha), want(fives, b), equal_nan=True)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("op", kernels.BINARY_OPS)
@pytest.mark.parametrize("number", [3, -1.7, 0.1])
def test_scalar_operand(op, dtype, number):
    if not dtype.is_floating_point:
        if op == "div":
            return
        number = int(number * 10)
    x = numbers(dtype, 1031)
    f = getattr(torch, op)
    # 16-bit floats are computed in float with the unrounded number, and rounded once.
    wide = x.float() if dtype in FLOATS else x
    full = torch.full_like(wide, number)
    assert_equal(kernels.binary(op, x, number), f(wide, full).to(dtype))
    assert_equal(kernels.binary(op, number, x), f(full, wide).to(dtype))


def test_scalar_integers_are_exact():
    x = torch.arange(100)
    assert_equal(kernels.binary("add", x, 2**62 + 1), x + (2**62 + 1))
    assert_equal(kernels.binary("add", x, x, alpha=2**61 + 1), x + x * (2**61 + 1))
    assert_equal(kernels.compare("lt", x + 2**62, 2**62 + 50), x < 50)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("n", [5, 16, 33, 1031])
def test_in_place(dtype, n):
    a, b = numbers(dtype, n, 1), numbers(dtype, n, 2)
    want = a * b
    for target, x, y in ((c := a.clone(), c, b), (d := b.clone(), a, d)):
        kernels.binary("mul", x, y, out=target)
        assert_equal(target, want)
    x = a.clone()
    kernels.unary("neg", x, out=x)
    assert_equal(x, -a)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shift", [1, 3, 7])
def test_misaligned(dtype, shift):
    n = 1000
    a, b, out = (numbers(dtype, n + 16, seed) for seed in (1, 2, 3))
    before = out.clone()
    kernels.binary("add", a[shift : n + shift], b[2 : n + 2], out=out[shift : n + shift])
    assert_equal(out[shift : n + shift], a[shift : n + shift] + b[2 : n + 2])
    assert_equal(out[:shift], before[:shift])
    assert_equal(out[n + shift :], before[n + shift :])


@pytest.mark.parametrize("shift", [0, 1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
def test_large(dtype, shift, threads):
    """Above 8 MiB results bypass the caches."""
    n = 5_000_001
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a = torch.arange(n, dtype=torch.float32).to(dtype)
        out = torch.empty(n + shift, dtype=dtype)[shift:]
        assert_equal(kernels.binary("add", a, a, out=out), a + a)
        assert_equal(kernels.unary("neg", a, out=out), -a)
        assert_equal(kernels.unary("neg", out, out=out), a)
        assert kernels.fill(out, 3)
        assert bool((out == 3).all())
        assert_equal(kernels.cast(a, torch.float32), a.float())
    finally:
        torch.set_num_threads(before)


# ---- Comparisons ----


@pytest.mark.parametrize("dtype", COMPARABLE)
@pytest.mark.parametrize("op", kernels.COMPARE_OPS)
@pytest.mark.parametrize("n", SIZES)
def test_compare(op, dtype, n):
    a, b = numbers(dtype, n, 1), numbers(dtype, n, 2)
    b[::3] = a[::3]
    assert_equal(kernels.compare(op, a, b), getattr(torch, op)(a, b))


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("op", kernels.COMPARE_OPS)
def test_compare_with_a_number(op, dtype):
    number = 0.1 if dtype.is_floating_point else 7
    x = numbers(dtype, 1031)
    x[::3] = number
    assert_equal(kernels.compare(op, x, number), getattr(torch, op)(x, number))


# ---- Unary ----

REFERENCES = {
    "silu": torch.nn.functional.silu,
    "gelu_erf": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "fast_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


def reference(op, x):
    return REFERENCES[op](x) if op in REFERENCES else getattr(torch, op)(x)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("op", kernels.UNARY_OPS)
@pytest.mark.parametrize("n", [0, 1, 15, 16, 50, 1031])
def test_unary(op, dtype, n):
    x = numbers(dtype, n)
    got = kernels.unary(op, x)
    supported = NUMBERS if op in ("neg", "abs", "relu") else REALS if op in ("sqrt", "rsqrt", "reciprocal") else FLOATS
    if dtype not in supported:
        assert got is None
        return
    if op in ("neg", "abs", "relu", "reciprocal"):
        assert_equal(got, reference(op, x))
    elif op in ("gelu_erf", "fast_gelu"):  # ATen's float kernel gives NaN for infinity, its double kernel infinity
        torch.testing.assert_close(got, reference(op, x.double()).to(dtype), equal_nan=True)
    else:
        torch.testing.assert_close(got, reference(op, x), equal_nan=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_square_root_is_correctly_rounded(dtype):
    """ATen's is not always."""
    x = np.random.default_rng(0).random(1031, dtype)
    assert np.array_equal(kernels.unary("sqrt", torch.from_numpy(x)).numpy(), np.sqrt(x))


def sampled_floats() -> torch.Tensor:
    """Every 4099th of all bit patterns (NaN, infinities and denormals among them) and some ranges densely."""
    patterns = np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32).view(np.float32)
    dense = np.concatenate([np.linspace(-limit, limit, 200_001, dtype=np.float32) for limit in (1, 5, 20, 110)])
    return torch.from_numpy(np.concatenate([patterns, dense, np.array(SPECIAL, np.float32)]))


def units_in_the_last_place(got: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Distance in steps of float32 at the exact value (float64). NaN and infinity must be where they belong."""
    rounded = exact.float()
    assert torch.equal(got.isnan(), rounded.isnan())
    finite = rounded.isfinite() & got.isfinite()
    # Near the largest float the exact value may round to infinity, or not, either way within the bound.
    near_overflow = exact.abs() > torch.finfo(torch.float32).max * (1 - 1e-6)
    assert torch.equal(got[~finite & ~near_overflow].nan_to_num(), rounded[~finite & ~near_overflow].nan_to_num())
    step = torch.from_numpy(np.spacing(rounded[finite].abs().clamp(min=2**-126).numpy())).double()
    return (got[finite].double() - exact[finite]).abs() / step


@pytest.mark.parametrize("op", ["exp", "log", "tanh", "sigmoid", "erf"])
def test_accuracy(op):
    x = sampled_floats()
    errors = units_in_the_last_place(kernels.unary(op, x), reference(op, x.double()))
    assert errors.max() <= 2
    assert errors.mean() < 0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("op", ["exp", "log", "tanh", "sigmoid", "erf"])
def test_accuracy_in_16_bits(op, dtype):
    """Every number; half a unit in the last place is what rounding alone costs."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    got, exact = kernels.unary(op, x), reference(op, x.double())
    assert torch.equal(got.isnan(), exact.isnan())
    limits = torch.finfo(dtype)
    finite = exact.abs() < limits.max
    assert torch.equal(got[~finite].nan_to_num(), exact[~finite].to(dtype).nan_to_num())
    exponent = exact[finite].abs().clamp(min=limits.smallest_normal).log2().floor()
    units = (got[finite].double() - exact[finite]).abs() / (2**exponent * limits.eps)
    assert units.max() < 0.55


@pytest.mark.parametrize(("op", "bound"), [("gelu_erf", 1.5e-7), ("gelu_tanh", 3e-7), ("silu", 3e-7)])
def test_accuracy_of_activations(op, bound):
    """Against float64, relative to the argument where that is larger than 1."""
    x = sampled_floats()
    x = x[x.abs() < 1e30]
    error = (kernels.unary(op, x).double() - reference(op, x.double())).abs() / x.double().abs().clamp(min=1)
    assert error.max() < bound


# ---- Conversions ----


def castable_numbers(source: torch.dtype, target: torch.dtype, n: int) -> torch.Tensor:
    """Numbers whose conversion C++ defines."""
    x = numbers(source, n)
    if source.is_floating_point and not target.is_floating_point and target != torch.bool:
        x = x.double().nan_to_num(0, 0, 0).clamp(*((0, 255) if target == torch.uint8 else (-2e9, 2e9))).to(source)
        x = x.nan_to_num(0, 0, 0)  # float16 has no 2e9
    return x


@pytest.mark.parametrize("source", CASTABLE)
@pytest.mark.parametrize("target", CASTABLE)
@pytest.mark.parametrize("n", [0, 1, 15, 100, 1031])
def test_cast(source, target, n):
    x = castable_numbers(source, target, n)
    assert_equal(kernels.cast(x, target), x.to(target))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_16_bit_float_survives(dtype):
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    wide = kernels.cast(x, torch.float32)
    assert_equal(wide, x.float())
    back = kernels.cast(wide, dtype)
    assert torch.equal(back.view(torch.int16)[~x.isnan()], x.view(torch.int16)[~x.isnan()])
    assert torch.equal(back.isnan(), x.isnan())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_to_16_bits(dtype):
    x = sampled_floats()
    assert_equal(kernels.cast(x, dtype), x.to(dtype))


@pytest.mark.parametrize("dtype", list(kernels.DATA_TYPES))
@pytest.mark.parametrize("n", [0, 1, 15, 100, 1031])
def test_fill(dtype, n):
    out = torch.zeros(n + 2, dtype=dtype)
    value = 1 if dtype == torch.bool else 0.1 if dtype.is_floating_point else 7
    kernels.fill(out[1:-1], value)
    assert_equal(out[1:-1], torch.full((n,), value, dtype=dtype))
    assert not out[0]
    assert not out[-1]


def test_fill_keeps_large_integers():
    out = torch.zeros(100, dtype=torch.int64)
    kernels.fill(out, 2**62 + 1)
    assert bool((out == 2**62 + 1).all())
