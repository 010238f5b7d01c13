"""The kernel cache: hits, racing processes, a compiler that is missing, refuses or dies."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from graph_autofusion.dtypes import DType
from graph_autofusion.host import compiler
from graph_autofusion.kernel import HostKernel
from graph_autofusion.program import Stride, TileBuilder

SOURCE = 'extern "C" int one() { return 1; }\n'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRAPH_AUTOFUSION_CACHE", str(tmp_path))
    return tmp_path


def script(folder: Path, text: str) -> str:
    path = folder / "fake-g++"
    path.write_text(f"#!/bin/sh\ncase $1 in -dumpfullversion) echo 12; exit 0;; esac\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_second_build_is_a_hit(cache: Path) -> None:
    before = compiler.counters.compiled, compiler.counters.hits
    assert compiler.build(SOURCE) == compiler.build(SOURCE)
    assert (compiler.counters.compiled, compiler.counters.hits) == (before[0] + 1, before[1] + 1)
    assert sorted(path.suffix for path in cache.iterdir()) == [".cpp", ".so"]


def test_key_covers_what_the_binary_depends_on() -> None:
    tools = compiler.Toolchain("g++", "12", ("-O2",), "avx2")
    others = [compiler.Toolchain("g++", "13", ("-O2",), "avx2"), compiler.Toolchain("g++", "12", ("-O3",), "avx2")]
    keys = {compiler.key_of(SOURCE, tools), compiler.key_of(SOURCE + " ", tools)}
    assert len(keys | {compiler.key_of(SOURCE, t) for t in others}) == 4


def test_racing_processes(cache: Path) -> None:
    code = (
        "import ctypes; from graph_autofusion.host import compiler\n"
        f"for i in range(3): assert ctypes.CDLL(str(compiler.build({SOURCE!r} + '//' * i))).one() == 1"
    )
    racing = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [process.wait(timeout=60) for process in racing] == [0, 0, 0]
    assert len(list(cache.glob("*.so"))) == 3
    assert not list(cache.glob("build-*"))


def test_no_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPH_AUTOFUSION_CXX", "no-such-compiler")
    with pytest.raises(compiler.CompilerError, match=r"no compiler 'no-such-compiler' was found.*run unfused"):
        compiler.build(SOURCE)


def test_refused_source(cache: Path) -> None:
    with pytest.raises(compiler.CompilerError, match=r"refused a generated kernel:\n.*error"):
        compiler.build("no C++ at all")
    assert not list(cache.iterdir())


def test_killed_compiler(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("GRAPH_AUTOFUSION_CXX", script(tmp_path_factory.mktemp("bin"), "kill -9 $$"))
    with pytest.raises(compiler.CompilerError, match="was killed by signal 9"):
        compiler.build(SOURCE)
    assert not list(cache.iterdir())


def test_unknown_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPH_AUTOFUSION_ISA", "mmx")
    with pytest.raises(ValueError, match=r"GRAPH_AUTOFUSION_ISA='mmx': expected one of avx512, avx2, baseline"):
        compiler.build(SOURCE)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx2", "baseline"])
def test_other_instruction_sets(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What older processors get, on this one."""
    if isa == "avx2" and compiler.processor_isa() == "baseline":
        pytest.skip("this processor has no AVX2")
    import test_instructions

    from graph_autofusion.dtypes import F16, F32

    monkeypatch.setenv("GRAPH_AUTOFUSION_ISA", isa)
    test_instructions.test_elementwise(F32)
    test_instructions.test_conversions(F16)
    test_instructions.test_every_half_value_survives(F16)
    test_instructions.test_reductions(F32, True)
    for name in ("exp", "log", "tanh", "erf", "sin"):
        test_instructions.test_float32_accuracy(name)


def test_kernels_compile_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    both_compile = threading.Barrier(2, timeout=20)

    def build(_: str) -> Path:
        both_compile.wait()
        return Path()

    monkeypatch.setattr(compiler, "build", build)
    kernels = []
    for number in (1, 2):
        builder = TileBuilder(f"plus_{number}", axes=("x",))
        value = builder.load("x", DType.F32, (Stride.ONE,)).apply("add", number)
        builder.store("y", value, DType.F32, (Stride.ONE,))
        kernels.append(HostKernel(builder.build()))
    with ThreadPoolExecutor(2) as pool:
        assert len(list(pool.map(lambda kernel: kernel.binary, kernels))) == 2
