"""The op table: what it promises is what the libraries export and the documentation says."""

import subprocess
import sys

import pytest

import cann_host
from opspec import coverage, npu_page
from opspec.adapter import parse_call, rows
from opspec.expressions import translate
from opspec.table import TableError, aclnn_ops, parse_dtypes, parse_signature


def exported(library: str) -> set[str]:
    out = subprocess.run(
        ["nm", "-D", "--defined-only", cann_host.root() / "lib64" / library], capture_output=True, text=True, check=True
    )
    return {line.split()[-1] for line in out.stdout.splitlines()}


def test_every_row_is_exported_in_two_phases() -> None:
    symbols = exported("libopapi.so")
    missing = [
        s for op in aclnn_ops().values() for s in (op.symbol, f"{op.symbol}GetWorkspaceSize") if s not in symbols
    ]
    assert missing == []


def test_every_exported_operator_is_a_row() -> None:
    operators = {s for s in exported("libopapi.so") if s.startswith("aclnn") and s.endswith("GetWorkspaceSize")}
    assert operators == {f"{op.symbol}GetWorkspaceSize" for op in aclnn_ops().values()}


def test_size_of_the_table() -> None:
    assert len(aclnn_ops()) >= 250
    assert sum(len(row.kernels) for _, members in rows() for row in members) >= 300


def test_documentation_is_up_to_date() -> None:
    assert coverage.PAGE.read_text() == coverage.page(), "run python -m opspec.coverage"


def test_page_of_npu_operators_is_up_to_date() -> None:
    assert npu_page.PAGE.read_text() == npu_page.page(), "run python -m opspec.npu_page"


@pytest.mark.parametrize(
    ("expression", "cpp"),
    [
        ("[*x.shape[:-1], n // 2]", "SizeList<Int>().extend(SizeList<Int>(part<Int>(shape_of<Int>(x), 0, -1)))"),
        ("x.shape == [1, n]", "equal<Int>(shape_of<Int>(x), SizeList<Int>().append(Int(1)).append(Int(n)))"),
        ("layout in ('A', 'B') or b is None", '(layout == std::string_view("A") || layout == std::string_view("B"))'),
        ("x.dtype == float32", "(dtype_of(x) == at::kFloat)"),
    ],
)
def test_expressions_become_cpp(expression: str, cpp: str) -> None:
    assert cpp in translate(expression, {"n": "int"})


@pytest.mark.parametrize("expression", ["x ** 2", "x.stride()", "[x", "x.shape < [1]", "lambda: 1"])
def test_wrong_expressions_are_refused(expression: str) -> None:
    with pytest.raises(TableError, match=r"cannot translate|is no expression"):
        translate(expression, {})


@pytest.mark.slow
def test_generated_sources_are_reproducible(tmp_path) -> None:
    for _ in range(2):
        subprocess.run([sys.executable, "-m", "opspec.generate", str(tmp_path)], check=True)
        stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    subprocess.run([sys.executable, "-m", "opspec.generate", str(tmp_path)], check=True)
    assert stamps == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("Foo(Tensr self)", "cannot read parameter 'Tensr self'"),
        ("Foo(Tensor self, int)", "cannot read parameter 'int'"),
    ],
)
def test_wrong_signatures_are_refused(signature: str, message: str) -> None:
    with pytest.raises(TableError, match=message):
        parse_signature(signature, ())


def test_wrong_dtypes_are_refused() -> None:
    with pytest.raises(TableError, match="unknown dtype group 'flaot'"):
        parse_dtypes("flaot + int")


@pytest.mark.parametrize(
    ("call", "message"),
    [("Nothing(self)", "aclnnNothing is not in"), ("Mm(self, out)", "aclnnMm takes 4 arguments .* the row gives 2")],
)
def test_wrong_calls_are_refused(call: str, message: str) -> None:
    with pytest.raises(TableError, match=message):
        parse_call(call, "here")
