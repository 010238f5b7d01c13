"""The caching allocator's own tests, in C++ against a driver without a device (tests/cpp/allocator_test.cpp)."""

import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture(scope="module")
def allocator_test() -> Path:
    return build()


def test_allocator(allocator_test: Path, subtests: pytest.Subtests) -> None:
    names = subprocess.run([allocator_test], check=True, capture_output=True, text=True).stdout.split()
    assert len(names) > 10
    for name in names:
        with subtests.test(name):
            result = subprocess.run([allocator_test, name], capture_output=True, text=True)
            assert result.returncode == 0, result.stderr
