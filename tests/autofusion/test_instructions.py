"""Every instruction as a host kernel against its meaning in float64, with NaN, infinities and denormals."""

from __future__ import annotations

import numpy as np
import pytest
from tile_programs import RELATIVE, random_array, run_both

from graph_autofusion.__main__ import PAGE, page
from graph_autofusion.dtypes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, DType
from graph_autofusion.instructions import INSTRUCTIONS, REDUCTIONS
from graph_autofusion.program import Stride, TileBuilder

VALUES = [F32, F64, I64, I32, I16, I8, U8, BOOL]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 1e-40, -1e-40, 88.0, -88.0, 104.0, 5000.0, np.inf, -np.inf, np.nan]

# Accuracy of float32 functions over their whole range, in units in the last place.
ULPS = {
    "exp": 2, "tanh": 2, "erf": 2, "log": 2, "sigmoid": 2, "sqrt": 1, "rsqrt": 2, "reciprocal": 1,
    "sin": 3, "cos": 3,
}  # fmt: skip


def float_pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Every special value with every other, and random ones."""
    a, b = np.meshgrid(SPECIAL, SPECIAL)
    random = np.random.default_rng(0).normal(size=(2, 300)) * 3
    return tuple(np.concatenate([s.ravel(), r]).astype(dtype.value)[None] for s, r in zip((a, b), random, strict=True))


@pytest.mark.parametrize("dtype", VALUES, ids=lambda d: d.value)
def test_elementwise(dtype: DType) -> None:
    """All instructions that take the type, in one kernel."""
    t = TileBuilder("all")
    x, y = t.load("x", dtype), t.load("y", dtype)
    names = [name for name, row in INSTRUCTIONS.items() if dtype in row.accepts]
    for name in names:
        row = INSTRUCTIONS[name]
        if name == "where":
            value = t.apply("where", x.apply("eq", y), x, y)
        else:
            value = x.apply(name, *[y, x][: row.arity - 1])
        t.store(name, value, value.dtype)
    if dtype.is_float:
        a, b = float_pairs(dtype)
    else:
        rng = np.random.default_rng(0)
        a, b = random_array(rng, (1, 77), dtype), random_array(rng, (1, 77), dtype)
        if dtype is not BOOL:
            info = np.iinfo(dtype.value)
            a[0, :2], b[0, 0], b[0, 1] = [info.min, info.max], 3, info.max
            b[b == 0] = 3
    for name, (actual, expected) in run_both(t.build(), a.shape, {"x": a, "y": b}, exact=False).items():
        if not dtype.is_float or actual.dtype == bool:
            np.testing.assert_array_equal(actual, expected, err_msg=name)
        else:
            np.testing.assert_allclose(actual, expected, RELATIVE[dtype.value] * 8, 1e-7, err_msg=name)


@pytest.mark.parametrize("name", ULPS)
def test_float32_accuracy(name: str) -> None:
    """Against float64 over the full range of float32, denormal arguments and results included."""
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = np.concatenate([rng.normal(size=100_000) * s for s in (0.1, 1, 10, 60)]).astype(np.float32)
    x = np.concatenate([bits, near, np.float32(SPECIAL)])[None]
    t = TileBuilder("one")
    t.store("out", t.load("x", F32).apply(name), F32)
    actual, expected = run_both(t.build(), x.shape, {"x": x})["out"]
    with np.errstate(all="ignore"):
        rounded = expected.astype(np.float32)
        unit = np.maximum(np.spacing(np.abs(np.nextafter(rounded, np.float32(0)))), np.float32(1e-45)).astype(
            np.float64
        )
        off = np.abs(actual.astype(np.float64) - expected) / unit
    same = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
    off[same] = 0
    worst = int(np.nanargmax(np.where(np.isnan(off), np.inf, off)))
    assert not np.isnan(off).any(), f"{name}: NaN differs at {x[0, np.isnan(off[0])][:3]}"
    assert off[0, worst] <= ULPS[name], f"{name}({x[0, worst]!r}): {off[0, worst]:.2f} units in the last place off"


@pytest.mark.parametrize("source", [*VALUES, F16, BF16], ids=lambda d: d.value)
def test_conversions(source: DType) -> None:
    """From every type to every other, through memory and in registers."""
    t = TileBuilder("convert")
    x = t.load("x", source)
    targets = [*VALUES, F16, BF16]
    for target in targets:
        t.store(target.value, t.cast(x, target), target)
    a = random_array(np.random.default_rng(0), (3, 37), source)
    for name, (actual, expected) in run_both(t.build(), a.shape, {"x": a}, exact=False).items():
        np.testing.assert_array_equal(actual, expected.astype(actual.dtype), err_msg=f"{source.value} to {name}")


@pytest.mark.parametrize("dtype", [F16, BF16], ids=lambda d: d.value)
def test_every_half_value_survives(dtype: DType) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)[None]
    t = TileBuilder("same")
    t.store("out", t.load("x", dtype), dtype)
    a = bits if dtype is BF16 else bits.view(np.float16)
    ((actual, expected),) = run_both(t.build(), a.shape, {"x": a}, exact=False).values()
    np.testing.assert_array_equal(actual, expected.astype(actual.dtype))


@pytest.mark.parametrize("lanes_reduced", [True, False], ids=["rows", "columns"])
@pytest.mark.parametrize("dtype", VALUES, ids=lambda d: d.value)
def test_reductions(dtype: DType, lanes_reduced: bool) -> None:
    t = TileBuilder("reduce", axes=("keep",), reduced=("fold",), vector="fold" if lanes_reduced else "keep")
    strides = (Stride.ANY, Stride.ONE) if lanes_reduced else (Stride.ONE, Stride.ANY)
    x = t.load("x", dtype, strides)
    names = [name for name, row in REDUCTIONS.items() if dtype in row.accepts]
    for name in names:
        t.store(name, t.reduce(name, x), dtype)
    for sizes in [(3, 100), (100, 3), (1, 1), (70, 33), (5, 0)]:
        order = sizes if lanes_reduced else sizes[::-1]
        a = random_array(np.random.default_rng(0), order, dtype)
        if dtype.is_float and a.size > 60:
            a.flat[50] = np.nan
        a = a if lanes_reduced else a.T
        for name, (actual, expected) in run_both(t.build(), sizes, {"x": a}, exact=False).items():
            if dtype.is_float:
                np.testing.assert_allclose(actual, expected, 1e-4, 1e-5, err_msg=name)
            else:
                np.testing.assert_array_equal(actual, expected, err_msg=name)


def test_the_page_of_instructions_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run python -m graph_autofusion"
