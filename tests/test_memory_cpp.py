"""The allocator's own tests, in C++ against a driver without a device (tests/cpp)."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
BINARIES = ("allocator_test", "private_pool_test", "reserved_pool_test")


@pytest.fixture(scope="module")
def built() -> Path:
    cmake = [sys.executable, "-m", "cmake"]
    configure = [*cmake, "-S", ROOT, "-B", BUILD, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}"]
    BUILD.mkdir(exist_ok=True)
    with open(BUILD / "cpp_tests.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers want the same binaries
        if not (BUILD / "build.ninja").exists():
            subprocess.run(configure, check=True)
        subprocess.run([*cmake, "--build", BUILD, "-j", "2", "--target", *BINARIES], check=True)
    return BUILD / "tests" / "cpp"


@pytest.mark.parametrize("name", BINARIES)
def test_cpp(built: Path, name: str) -> None:
    binary = built / name
    tests = subprocess.run([binary], check=True, capture_output=True, text=True).stdout.split()
    assert len(tests) > 10
    runs = {test: subprocess.run([binary, test], capture_output=True, text=True) for test in tests}
    assert {test: run.stderr for test, run in runs.items() if run.returncode} == {}
