"""The host kernels on another processor: cross-compiled for aarch64 and run under qemu, against this machine's."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from tolerance import tolerance

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "cann_host" / "kernels"
CROSS = "aarch64-linux-gnu-g++"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which(CROSS) and shutil.which("qemu-aarch64")),
        reason="needs Debian's packages g++-aarch64-linux-gnu and qemu-user",
    ),
]
DTYPES = {0: torch.float32, 1: torch.float16, 27: torch.bfloat16}  # aclDataType


# Instruction sets that the kernels choose from at run time, as in cann_host/kernels/CMakeLists.txt.
X86 = {"avx2": ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]}
X86["avx512"] = [*X86["avx2"], "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"]


def build(compiler: str, folder: Path) -> Path:
    """The program, linked statically with the kernels of all instruction sets of the compiler's processor."""
    program = folder / f"dump-{compiler}"
    options = ["-std=c++20", "-O2", "-fopenmp", "-w", "-fno-math-errno", "-fno-trapping-math", f"-I{ROOT}"]
    sets = {"baseline": []} | (X86 if compiler != CROSS and platform.machine() == "x86_64" else {})
    objects = []
    for source in sorted(KERNELS.glob("*_kernels.cpp")):
        for isa, flags in sets.items():
            objects.append(str(folder / f"{compiler}-{isa}-{source.stem}.o"))
            command = [compiler, *options, *flags, f"-DCANN_HOST_ISA={isa}", "-c", str(source), "-o", objects[-1]]
            subprocess.run(command, check=True)
    others = [s for s in KERNELS.glob("*.cpp") if not s.name.endswith(("_kernels.cpp", "test_shim.cpp"))]
    files = [str(s) for s in (*others, ROOT / "tests" / "cpp" / "kernels_dump.cpp")]
    subprocess.run([compiler, *options, "-static", *files, *objects, "-o", str(program)], check=True)
    return program


def run(*command: str) -> list[tuple[str, torch.dtype, torch.Tensor]]:
    """(kernel, dtype, numbers) of each line that the program prints."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    text = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    lines = [line.split() for line in text.splitlines()]
    return [(name, DTYPES[int(kind)], torch.tensor([float(v) for v in values])) for name, kind, *values in lines]


def test_kernels_agree_with_this_machines(tmp_path: Path) -> None:
    here = run(str(build("g++", tmp_path)))
    there = run("qemu-aarch64", str(build(CROSS, tmp_path)))
    assert len(here) == 3 * 53 + 2  # lines for each dtype, and convolutions
    assert [line[:2] for line in there] == [line[:2] for line in here]
    for (name, dtype, expected), (_, _, actual) in zip(here, there, strict=True):
        allowed = tolerance(dtype, 64)
        torch.testing.assert_close(
            actual,
            expected,
            rtol=allowed.relative,
            atol=allowed.absolute,
            equal_nan=True,
            msg=lambda m, name=name: f"{name}: {m}",
        )
