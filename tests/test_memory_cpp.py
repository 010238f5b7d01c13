"""The caching allocator's own tests, in C++ against a driver without a device (tests/cpp/allocator_test.cpp)."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"


def build() -> Path:
    cmake = [sys.executable, "-m", "cmake"]
    if not (BUILD / "build.ninja").exists():
        subprocess.run(
            [*cmake, "-S", ROOT, "-B", BUILD, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}"], check=True
        )
    subprocess.run([*cmake, "--build", BUILD, "--target", "allocator_test", "-j", "2"], check=True)
    return BUILD / "tests" / "cpp" / "allocator_test"


def test_allocator() -> None:
    binary = build()
    names = subprocess.run([binary], check=True, capture_output=True, text=True).stdout.split()
    assert len(names) > 10
    runs = {name: subprocess.run([binary, name], capture_output=True, text=True) for name in names}
    assert {name: run.stderr for name, run in runs.items() if run.returncode} == {}
