"""Compiles printed kernels with the machine's g++ and caches the binaries on disk.

The cache is safe between processes: a binary is written under a name of its own and then renamed, so that a reader
sees all of it or none, and two that compile the same kernel write the same bytes. Its key covers everything that the
binary depends on.

Settings: ``GRAPH_AUTOFUSION_CXX`` (compiler, default ``g++``), ``GRAPH_AUTOFUSION_CACHE`` (folder, default
``~/.cache/graph_autofusion``), ``GRAPH_AUTOFUSION_ISA`` (``avx512``, ``avx2`` or ``baseline``; default: what the
processor has).
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

VERSION = 1
"""Part of every key: raised when printed kernels are called differently."""

_FLAGS = (
    *("-std=c++20", "-O2", "-fPIC", "-shared", "-nostdlib", "-w"),
    *("-fno-math-errno", "-ffp-contract=fast", "-fno-trapping-math"),  # -ffast-math would change NaN and inf
    *("-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables", "-fno-stack-protector"),
)
_ISA_FLAGS = {
    "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    "avx2": ["-march=x86-64-v3"],
    "baseline": [],
}
_ISA_NEEDS = {
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "fma"},
    "avx2": {"avx2", "fma", "f16c", "bmi1", "bmi2"},
}


class CompilerError(RuntimeError):
    """No compiler, or one that refused a kernel or died."""


@dataclass(frozen=True)
class Toolchain:
    """The compiler and its flags."""

    path: str
    version: str
    flags: tuple[str, ...]
    isa: str


@functools.cache
def processor_isa() -> str:
    """The best instruction set of this processor for which kernels are printed."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "baseline"
    flags = next((set(line.split()) for line in text.splitlines() if line.startswith("flags")), set())
    return next((isa for isa, needs in _ISA_NEEDS.items() if needs <= flags), "baseline")


def toolchain() -> Toolchain:
    """The compiler that the settings name.

    Raises:
        CompilerError: there is none, or it does not run.
        ValueError: GRAPH_AUTOFUSION_ISA names an unknown instruction set.
    """
    return _toolchain(os.environ.get("GRAPH_AUTOFUSION_CXX", "g++"), os.environ.get("GRAPH_AUTOFUSION_ISA", ""))


@functools.cache
def _toolchain(name: str, isa: str) -> Toolchain:
    path = shutil.which(name)
    if path is None:
        raise CompilerError(
            f"no compiler {name!r} was found, and fused kernels need one: install g++ 11 or later, name one in "
            "GRAPH_AUTOFUSION_CXX, or run unfused (torch.compile option fusion=False)"
        )
    isa = isa or processor_isa()
    if isa not in _ISA_FLAGS:
        raise ValueError(f"GRAPH_AUTOFUSION_ISA={isa!r}: expected one of {', '.join(_ISA_FLAGS)}")
    found = subprocess.run([path, "-dumpfullversion", "-dumpmachine"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise CompilerError(f"{path} does not run: {found.stderr.strip() or found.returncode}")
    return Toolchain(path, found.stdout.strip(), (*_FLAGS, *_ISA_FLAGS[isa]), isa)


def cache_folder() -> Path:
    """Where binaries are kept."""
    given = os.environ.get("GRAPH_AUTOFUSION_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graph_autofusion"


def key_of(source: str, tools: Toolchain) -> str:
    """Hash of everything that a binary depends on."""
    parts = (str(VERSION), platform.machine(), tools.version, " ".join(tools.flags), source)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@dataclass
class CacheCounters:
    """What happened since the start of the process."""

    hits: int = 0
    compiled: int = 0


counters = CacheCounters()


def build(source: str) -> Path:
    """The binary of a kernel: from the cache, or compiled into it.

    Raises:
        CompilerError: there is no compiler, it refused the source (its messages are given) or was killed.
    """
    tools = toolchain()
    folder = cache_folder()
    key = key_of(source, tools)
    binary = folder / f"{key}.so"
    if binary.exists():
        counters.hits += 1
        return binary
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as work:
        made = Path(work) / "kernel.so"
        _compile(source, made, tools)
        (Path(work) / "kernel.cpp").write_text(source)
        os.replace(Path(work) / "kernel.cpp", folder / f"{key}.cpp")
        os.replace(made, binary)
    counters.compiled += 1
    return binary


def _compile(source: str, binary: Path, tools: Toolchain) -> None:
    command = [tools.path, *tools.flags, "-x", "c++", "-", "-o", str(binary)]
    result = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if result.returncode < 0:
        raise CompilerError(f"{tools.path} was killed by signal {-result.returncode}; nothing was put into the cache")
    if result.returncode != 0:
        raise CompilerError(f"{' '.join(command)} refused a generated kernel:\n{result.stderr.strip()[:4000]}")
