"""Parameters that take an index value (embedding), and those of which only a part is there (padding, concatenation)."""

from __future__ import annotations

import numpy as np
import pytest

from graph_autofusion.dtypes import F32, I64
from graph_autofusion.interpreter import interpret
from graph_autofusion.jit import jit_compile
from graph_autofusion.kernel import HostKernel
from graph_autofusion.launch_words import Binding
from graph_autofusion.program import Stride, TileBuilder, TileProgram

ZERO, ONE, ANY = Stride.ZERO, Stride.ONE, Stride.ANY


def run(program: TileProgram, sizes: tuple[int, ...], bindings: list[Binding]) -> None:
    HostKernel(program).launch(sizes, bindings)


def address(array: np.ndarray, element: int = 0) -> int:
    return array.ctypes.data + element * array.itemsize


@pytest.mark.parametrize("columns", [1, 16, 37])
def test_rows_of_a_table(columns: int) -> None:
    rng = np.random.default_rng(0)
    table, index = rng.normal(size=(9, columns)).astype(np.float32), rng.integers(0, 9, 5)
    t = TileBuilder("embedding")
    row = t.load("index", I64, (ONE, ZERO))
    t.store("out", t.load("table", F32, (ZERO, ONE), index=row) * 2.0, F32)
    out = np.empty((5, columns), np.float32)
    given = [
        Binding(address(index), (1, 0)),
        Binding(address(table), (0, 1), index_stride=columns),
        Binding(address(out), (columns, 1)),
    ]
    run(t.build(), (5, columns), given)
    np.testing.assert_array_equal(out, table[index] * 2)


def test_an_index_for_each_element() -> None:
    rng = np.random.default_rng(0)
    table, index = rng.normal(size=100).astype(np.float32), rng.integers(0, 100, 37)
    t = TileBuilder("take", axes=("i",))
    t.store("out", t.load("table", F32, (ZERO,), index=t.load("index", I64, (ONE,))), F32, (ONE,))
    out = np.empty(37, np.float32)
    run(
        t.build(),
        (37,),
        [Binding(address(index), (1,)), Binding(address(table), (0,), index_stride=1), Binding(address(out), (1,))],
    )
    np.testing.assert_array_equal(out, table[index])


def scaled_rows_of_a_table() -> TileProgram:
    """Indices held within the table, whose size is a number of the launch."""
    t = TileBuilder("scaled_embedding")
    index = t.load("index", I64, (ONE, ZERO)).maximum(0).minimum(t.scalar(I64) - 1)
    t.store("out", t.load("table", F32, (ZERO, ONE), index=index) * 2.0, F32)
    return t.build()


@pytest.mark.parametrize("columns", [1, 16, 37])
def test_interpreter_and_kernel_are_one(columns: int) -> None:
    """A gathered array has one more dimension, that the index counts along."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(1, columns, 9)).astype(np.float32)
    inputs = {"index": np.array([[3], [-5], [8], [12], [0]]), "table": table}
    program = scaled_rows_of_a_table()
    expected = interpret(program, (5, columns), inputs, [9])["out"]
    np.testing.assert_array_equal(expected, table[0, :, [3, 0, 8, 8, 0]] * 2)
    rows = {**inputs, "table": np.moveaxis(np.ascontiguousarray(np.moveaxis(table, 1, 2)), 2, 1)}
    np.testing.assert_array_equal(HostKernel(program).run_arrays((5, columns), rows, [9])["out"], expected)


def test_interpreter_raises_beyond_the_table() -> None:
    t = TileBuilder("take", axes=("i",))
    t.store("out", t.load("table", F32, (ZERO,), index=t.load("index", I64, (ONE,))), F32, (ONE,))
    for index in (4, -1):
        with pytest.raises(IndexError, match="of a table of 4"):
            interpret(t.build(), (1,), {"index": np.array([index]), "table": np.zeros((1, 4), np.float32)})


def test_tables_are_no_tensors_of_rows() -> None:
    with pytest.raises(ValueError, match="takes numbers of the launch, tables or windows"):
        jit_compile(scaled_rows_of_a_table())(np.zeros(3), np.zeros(3))


@pytest.mark.parametrize(
    ("backend", "lines"),
    [
        (
            "Ascend C",
            ["t0 = index_gm.GetValue(row);", "t2 = t0 > 0 ? t0 : 0;", "t3 = scalar0;", "table_gm[t6 * cols]"],
        ),
        ("PTO", ["Tile<Vec, int64, R, 1> t0; TLOAD(t0, index[tile]);", "MGATHER(t7, table, t6);"]),
    ],
)
def test_ascend_source(backend: str, lines: list[str]) -> None:
    source = jit_compile(scaled_rows_of_a_table(), backend=backend, target="Ascend910B3").source
    assert not [line for line in lines if line not in source]


def test_mlir_has_no_tables() -> None:
    with pytest.raises(ValueError, match="the MLIR printer takes whole float tensors"):
        jit_compile(scaled_rows_of_a_table(), backend="MLIR", target="Ascend910B3")


@pytest.mark.parametrize(("low", "high"), [(0, 37), (3, 20), (17, 33), (36, 37), (5, 5)])
def test_window_along_the_lanes(low: int, high: int) -> None:
    """Padding: outside the window the value is 0, and nothing is read."""
    x = np.random.default_rng(0).normal(size=(4, high - low)).astype(np.float32)
    t = TileBuilder("pad")
    t.store("out", t.load("x", F32, (ANY, ONE), window=1), F32)
    out = np.empty((4, 37), np.float32)
    given = [Binding(address(x, -low), (high - low, 1), (low, high)), Binding(address(out), (37, 1))]
    run(t.build(), out.shape, given)
    np.testing.assert_array_equal(out, np.pad(x, ((0, 0), (low, 37 - high))))


def test_window_along_the_rows() -> None:
    x = np.random.default_rng(0).normal(size=(2, 37)).astype(np.float32)
    t = TileBuilder("pad_rows")
    t.store("out", t.load("x", F32, (ANY, ONE), window=0), F32)
    out = np.empty((5, 37), np.float32)
    run(t.build(), out.shape, [Binding(address(x, -37), (37, 1), (1, 3)), Binding(address(out), (37, 1))])
    np.testing.assert_array_equal(out, np.pad(x, ((1, 2), (0, 0))))
