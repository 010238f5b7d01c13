"""Random tile programs as host kernels against the interpreter; phases, kept values, odd sizes, threads."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tile_programs import in_order, random_array, run_both, shape_of

from graph_autofusion.dtypes import BF16, F16, F32, I64, DType
from graph_autofusion.host.launcher import runtime, words_of
from graph_autofusion.kernel import HostKernel, bind_array
from graph_autofusion.program import Stride, TileBuilder, TileProgram, Value
from graph_autofusion.schedule import schedule
from graph_autofusion.sequence import pack_sequence, sequence_function

# Smooth and bounded, so that rounding in one does not decide about the next.
UNARY = ["neg", "abs", "exp", "tanh", "sigmoid", "relu", "square", "erf", "gelu", "silu", "sin"]
BINARY = ["add", "sub", "mul", "maximum", "minimum"]
ZERO, ONE, ANY = Stride.ZERO, Stride.ONE, Stride.ANY


def dense(t: TileBuilder) -> list[Stride]:
    """Neighbours in the lanes, nothing broadcast."""
    return [ONE if axis == t.vector else ANY for axis in range(len(t.axes))]


@st.composite
def random_programs(draw: st.DrawFn) -> TileProgram:
    """Up to three axes, any of the three kinds of loops, broadcast inputs, up to two reductions in a row."""
    kind = draw(st.sampled_from(["pointwise", "rows", "columns"]))
    outer = draw(st.integers(0, 2))
    axes = [f"a{i}" for i in range(outer)]
    if kind == "pointwise":
        t = TileBuilder("random", axes=(*axes, "lane"))
    elif kind == "rows":
        t = TileBuilder("random", axes=axes, reduced=("lane",))
    else:
        t = TileBuilder("random", axes=(*axes, "lane"), reduced=("fold",), vector="lane")
    rank = len(t.axes)

    def strides() -> list[Stride]:
        chosen = [draw(st.sampled_from([ZERO, ANY, ANY])) for _ in range(rank)]
        chosen[t.vector] = draw(st.sampled_from([ONE, ONE, ONE, ANY, ZERO]))
        return chosen

    dtypes = st.sampled_from([F32, F32, F16, BF16, I64])
    values: list[Value] = []
    for i in range(draw(st.integers(1, 3))):
        dtype = draw(dtypes)
        values.append(t.cast(t.load(f"x{i}", dtype, strides() if i else dense(t)), F32))
    for _ in range(draw(st.integers(1, 8))):
        choice = draw(st.integers(0, 5))
        if kind != "pointwise" and choice == 0:
            value = t.reduce(draw(st.sampled_from(["max", "min"])), draw(st.sampled_from(values)))
            values.append(draw(st.sampled_from(values)) - value)
        elif choice <= 2:
            values.append(t.apply(draw(st.sampled_from(UNARY)), draw(st.sampled_from(values)).apply("tanh")))
        else:
            a, b = draw(st.sampled_from(values)), draw(st.sampled_from(values))
            values.append(t.apply(draw(st.sampled_from(BINARY)), a, b))
    if kind == "pointwise" or draw(st.booleans()):  # without it rows may be folded 16 at a time
        t.store("whole", values[-1], F32, dense(t))
    if kind != "pointwise":
        t.store("folded", values[-1].max(), F32)
    return t.build()


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(program=random_programs(), data=st.data())
def test_random_programs(program: TileProgram, data: st.DataObject) -> None:
    sizes = tuple(data.draw(st.sampled_from([1, 3, 16, 17, 70])) for _ in program.axes)
    rng = np.random.default_rng(0)
    inputs = {}
    for p in program.inputs:
        array = random_array(rng, shape_of(p.strides, sizes), p.dtype)
        inputs[p.name] = in_order(program, p.strides, array)
    for name, (actual, expected) in run_both(program, sizes, inputs).items():
        np.testing.assert_allclose(actual, expected, 2e-4, 2e-5, err_msg=f"{name}\n{program}")


def softmax(dtype: DType) -> TileProgram:
    t = TileBuilder("softmax", axes=("row",), reduced=("col",))
    x = t.load("x", dtype)
    e = (x - x.max()).exp()
    t.store("out", e / e.sum(), dtype)
    return t.build()


def test_softmax_keeps_the_exponential() -> None:
    plan = schedule(softmax(F32))
    assert [[plan.program.nodes[k].op for k in phase.keeps] for phase in plan.phases] == [[], ["exp"], []]


@pytest.mark.parametrize("sizes", [(1, 1), (3, 5), (7, 16), (5, 1000), (2, 100_003), (0, 4)])
@pytest.mark.parametrize("threads", [1, 2])
def test_softmax(sizes: tuple[int, int], threads: int) -> None:
    x = random_array(np.random.default_rng(0), sizes, F32) * np.float32(4)
    ((actual, expected),) = run_both(softmax(F32), sizes, {"x": x}, threads).values()
    np.testing.assert_allclose(actual, expected, 1e-5, 1e-9)  # the sum has 100,003 terms


def test_softmax_of_nan_and_infinity() -> None:
    x = np.zeros((3, 40), np.float32)
    x[0, 3], x[1, 4], x[2] = np.nan, np.inf, -np.inf
    ((actual, expected),) = run_both(softmax(F32), x.shape, {"x": x}).values()
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))


def test_rows_of_a_transposed_input() -> None:
    x = random_array(np.random.default_rng(0), (50, 33), F32).T
    t = TileBuilder("strided", axes=("row",), reduced=("col",))
    value = t.load("x", F32, (ANY, ANY))
    t.store("out", value.sum(), F32)
    ((actual, expected),) = run_both(t.build(), x.shape, {"x": x}).values()
    np.testing.assert_allclose(actual, expected, 1e-5, 1e-5)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 5), (16, 16), (37, 100), (100, 37), (40, 64), (17, 128), (33, 144)])
@pytest.mark.parametrize("threads", [1, 2])
def test_vector_times_matrix(sizes: tuple[int, int], threads: int, dtype: DType) -> None:
    """Rows are folded 16 at a time, and their results lie in the lanes; short ones side by side."""
    t = TileBuilder("vector_matrix", axes=("n",), reduced=("k",))
    products = t.load("w", dtype) * t.load("x", F32, (ZERO, ONE))
    t.store("out", (products.sum() + t.load("b", F32, (ONE, ZERO))).tanh(), F32, (ONE, ZERO))
    program = t.build()
    assert schedule(program).row_axis == 0
    rng = np.random.default_rng(0)
    inputs = {p.name: random_array(rng, shape_of(p.strides, sizes), p.dtype) for p in program.inputs}
    ((actual, expected),) = run_both(program, sizes, inputs, threads).values()
    np.testing.assert_allclose(actual, expected, 1e-5, 1e-5)


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 5), (16, 16), (37, 100), (40, 64), (17, 128), (33, 144), (20, 700)])
@pytest.mark.parametrize("fold", ["sum", "max"])
def test_numbers_of_rows_in_a_fold(sizes: tuple[int, int], fold: str, dtype: DType) -> None:
    """A column beside the matrix whose rows are folded, and again behind it: there lanes lie along the rows."""
    t = TileBuilder("rows", axes=("n",), reduced=("k",))
    column, other = t.load("y", dtype, (ANY, ZERO)), t.load("z", F32, (ONE, ZERO))
    products = t.load("w", dtype) * column + other
    t.store("out", t.reduce(fold, products) * column + other, F32, (ONE, ZERO))
    program = t.build()
    assert schedule(program).row_axis == 0
    rng = np.random.default_rng(0)
    inputs = {p.name: random_array(rng, shape_of(p.strides, sizes), p.dtype) for p in program.inputs}
    ((actual, expected),) = run_both(program, sizes, inputs, 2).values()
    np.testing.assert_allclose(actual, expected, 1e-4, 1e-4)


def test_extremes_of_short_rows() -> None:
    """NaN and infinity stay in their row."""
    t = TileBuilder("largest", axes=("n",), reduced=("k",))
    t.store("out", t.load("x", F32).max(), F32)
    x = random_array(np.random.default_rng(0), (48, 32), F32)
    x[5, 31], x[20, 0], x[47] = np.nan, np.inf, -np.inf
    ((actual, expected),) = run_both(t.build(), x.shape, {"x": x}).values()
    np.testing.assert_array_equal(actual, expected)


def test_sequence_of_kernels() -> None:
    first, second = HostKernel(softmax(F32)), HostKernel(doubled())
    x = np.ones((3, 20), np.float32)
    middle, out = np.empty_like(x), np.empty_like(x)
    strides = first.tile_program.inputs[0].strides
    words = [
        k.words.pack(x.shape, [bind_array(a, strides), bind_array(b, strides)])
        for k, a, b in ((first, x, middle), (second, middle, out))
    ]
    flat, starts = pack_sequence([first, second], words)
    assert flat[starts[1] :] == words[1]
    launch = words_of(flat)
    run = runtime()
    run.check(run.launch(sequence_function(), 1, ctypes.byref(launch), ctypes.sizeof(launch), None))
    np.testing.assert_allclose(out, 2 / 20, 1e-6)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("sizes", [(1, 1, 256), (3, 5, 300), (2, 3, 8201), (7, 5, 4096)])
@pytest.mark.parametrize("reduced", [False, True])
def test_launches_in_both_directions(sizes: tuple[int, ...], threads: int, reduced: bool) -> None:
    """Rows of a tensor whose dimensions are not one, by a kernel that goes from the last unit every second time."""
    axes = ("a", "b") if reduced else ("a", "b", "lane")
    t = TileBuilder("both_ways", axes=axes, reduced=("lane",) if reduced else ())
    x = t.load("x", F32, (ANY, ANY, ONE))
    t.store("out", ((x - x.max()).exp() if reduced else x.exp()) * 2.0, F32, (ANY, ANY, ONE))
    kernel = HostKernel(t.build())
    array = np.random.default_rng(0).normal(size=sizes).astype(np.float32)
    wide = array.astype(np.float64)
    expected = 2 * np.exp(wide - wide.max(-1, keepdims=True) if reduced else wide)
    outputs = [kernel.run_arrays(sizes, {"x": array}, threads=threads)["out"] for _ in range(3)]
    for out in outputs:
        np.testing.assert_allclose(out, expected, 1e-5)
        np.testing.assert_array_equal(out, outputs[0])


def doubled() -> TileProgram:
    t = TileBuilder("doubled")
    t.store("out", t.load("x", F32) * 2.0, F32)
    return t.build()


def test_one_kernel_serves_all_shapes() -> None:
    kernel = HostKernel(softmax(F32))
    for sizes in [(2, 3), (4, 500)]:
        out = kernel.run_arrays(sizes, {"x": np.ones(sizes, np.float32)})["out"]
        np.testing.assert_allclose(out, 1 / sizes[1], 1e-6)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda t: t.load("x", F32).apply("nothing"), "unknown tile instruction"),
        (lambda t: t.load("x", F32) + t.load("y", I64), "expected one type"),
        (lambda t: t.load("x", F32).apply("shl", 1), "it takes"),
        (lambda t: t.load("x", F32).apply("where", 1), "takes 3 arguments"),
        (lambda t: t.build(), "stores nothing"),
        (lambda t: (t.store("out", t.load("x", F32).sum(), F32), t.build()), "no reduced axis"),
        (lambda t: (t.store("out", t.load("x", F32), F32, (ZERO, ONE)), t.build()), "varies along row"),
    ],
)
def test_refusals(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(TileBuilder("refused"))


@pytest.mark.parametrize("divisor", [3.0, -0.7, 1e-30, 1e30, 0.0, np.inf, np.nan, 1e-40])
def test_a_row_divided_by_its_number_has_the_bits_of_a_division(divisor: float) -> None:
    t = TileBuilder("divide_by_row", axes=("row",), reduced=("col",))
    x, by = t.load("x", F32), t.load("by", F32, (Stride.ONE, Stride.ZERO))
    t.store("out", x / by, F32)
    t.store("sum", x.sum(), F32, (Stride.ONE, Stride.ZERO))
    special = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-38])
    random = np.random.default_rng(0).normal(size=300).astype(np.float32)
    a, b = np.concatenate([special, random])[None], np.float32([[divisor]])
    out = HostKernel(t.build()).run_arrays(a.shape, {"x": a, "by": b})["out"]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out, a / b)
        np.testing.assert_array_equal(np.signbit(out[out == 0]), np.signbit((a / b)[out == 0]))
