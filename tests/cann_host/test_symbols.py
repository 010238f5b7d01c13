"""What the libraries export is what the headers declare, name for name."""

from __future__ import annotations

import re
import subprocess

import pytest

import cann_host
from opspec.generate import outputs

LIBRARIES = sorted(
    path.stem.removeprefix("lib")
    for path in (cann_host.root() / "lib64").glob("lib*.so")
    if path.stem != "libcann_kernels_test"  # for tests only, never installed
)


def exported(name: str) -> set[str]:
    """C functions of one library."""
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", str(cann_host.library(name))]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    symbols = {line.split()[0] for line in lines if line.split()[1] in "TW"}
    return {symbol for symbol in symbols if not symbol.startswith("_")}  # C++ names and the linker's


def declared() -> set[str]:
    include = cann_host.root() / "include" / "cann"
    texts = [path.read_text() for path in include.glob("*.h")]
    texts += [text for name, text in outputs() if name.startswith("cann/aclnn/")]
    functions = set()
    for text in texts:
        source = re.sub(r"//[^\n]*", "", text)
        functions |= set(re.findall(r"^[A-Za-z][\w ]*[ *]+(\w+)\([^;{]*\);", source, re.MULTILINE))
    return functions


def test_libraries_are_built() -> None:
    assert {"ascendcl", "opapi", "hccl"} < set(LIBRARIES)


def test_exported_is_declared_and_declared_is_exported() -> None:
    available = set().union(*map(exported, LIBRARIES))
    assert len(available) > 1000
    assert sorted(available - declared()) == []
    assert sorted(declared() - available) == []


@pytest.mark.parametrize("name", [name for name in LIBRARIES if name not in ("ascendcl", "opapi", "hccl")])
def test_companions_have_no_functions_of_their_own(name: str) -> None:
    assert exported(name) == set()
