"""Binaries of kernels: loading, launching by block index, queueing, capturing and saying no."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from runtime_client import AclError, acl, isolated

SOURCE = """
extern "C" void add_block(unsigned block, unsigned blocks, const void* args) {
  long* const* words = (long* const*)args;
  words[0][block] += block + 100 * blocks;
}
"""


def build(folder: Path) -> bytes:
    path = folder / "kernel.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", path], input=SOURCE.encode(), check=True)
    return bytes(path)


def load(path: bytes) -> tuple[int, int]:
    a = acl()
    binary, function = ctypes.c_void_p(), ctypes.c_void_p()
    a.aclrtBinaryLoadFromFile(path, None, ctypes.byref(binary))
    a.aclrtBinaryGetFunction(binary, b"add_block", ctypes.byref(function))
    return binary.value, function.value


def expected(blocks: int) -> list[int]:
    return [block + 100 * blocks for block in range(blocks)]


def numbers(pointer: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_buffer_copy(acl().read(pointer, 8 * count)))


@pytest.mark.parametrize("blocks", [1, 2, 3, 64])
def test_every_block_runs_once(tmp_path: Path, blocks: int) -> None:
    a = acl()
    _, function = load(build(tmp_path))
    pointer = a.malloc(8 * blocks)
    a.fill(pointer, 0, 8 * blocks, None)
    words = ctypes.c_int64(pointer)
    a.aclrtLaunchKernel(function, blocks, ctypes.byref(words), 8, None)
    assert numbers(pointer, blocks) == expected(blocks)
    a.aclrtLaunchKernelWithHostArgs(function, blocks, None, None, ctypes.byref(words), 8, None, 0)
    assert numbers(pointer, blocks) == [2 * n for n in expected(blocks)]


def test_launches_in_a_row_beside_busy_processors(tmp_path: Path) -> None:
    """Threads that help come late, or not at all; no block of 2,000 launches may run twice or be left out."""
    a = acl()
    _, function = load(build(tmp_path))
    pointer = a.malloc(8 * 7)
    a.fill(pointer, 0, 8 * 7, None)
    words = ctypes.c_int64(pointer)
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(os.cpu_count() or 1)]
    try:
        for launch in range(2000):
            a.aclrtLaunchKernel(function, 2 + launch % 6, ctypes.byref(words), 8, None)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    launched = [sum(2 + launch % 6 == blocks for launch in range(2000)) for blocks in range(8)]
    assert numbers(pointer, 7) == [
        sum((block + 100 * blocks) * launched[blocks] for blocks in range(block + 1, 8)) for block in range(7)
    ]


def test_load_from_memory(tmp_path: Path) -> None:
    a = acl()
    data = Path(build(tmp_path).decode()).read_bytes()
    binary = ctypes.c_void_p()
    a.aclrtBinaryLoadFromData(data, len(data), None, ctypes.byref(binary))
    function = a.get("aclrtBinaryGetFunction", ctypes.c_void_p, binary, b"add_block")
    assert function


def test_captured_kernel_outlives_its_binary(tmp_path: Path) -> None:
    a = acl()
    binary, function = load(build(tmp_path))
    pointer, stream, model = a.malloc(8), a.stream(), ctypes.c_void_p()
    a.fill(pointer, 0, 8, None)
    a.aclmdlRICaptureBegin(stream, a.ACL_MODEL_RI_CAPTURE_MODE_RELAXED)
    a.aclrtLaunchKernel(function, 1, ctypes.byref(ctypes.c_int64(pointer)), 8, stream)
    a.aclmdlRICaptureEnd(stream, ctypes.byref(model))
    assert numbers(pointer, 1) == [0]
    a.aclrtBinaryUnLoad(binary)
    for _ in range(2):
        a.aclmdlRIExecute(model, -1)
    assert numbers(pointer, 1) == [200]


@isolated(CANN_HOST_ASYNC="1", CANN_HOST_DELAY_US="1000")
def test_arguments_are_copied() -> None:
    a = acl()
    with tempfile.TemporaryDirectory() as folder:
        _, function = load(build(Path(folder)))
    pointer, stream = a.malloc(8), a.stream()
    a.fill(pointer, 0, 8, stream)
    words = ctypes.c_int64(pointer)
    a.aclrtLaunchKernel(function, 1, ctypes.byref(words), 8, stream)
    words.value = 0
    a.aclrtSynchronizeStream(stream)
    assert numbers(pointer, 1) == [100]


def test_refusals(tmp_path: Path) -> None:
    a = acl()
    binary, function = load(build(tmp_path))
    with pytest.raises(AclError, match="cannot be loaded as a shared library of the host"):
        a.aclrtBinaryLoadFromFile(b"/nowhere.so", None, ctypes.byref(ctypes.c_void_p()))
    with pytest.raises(AclError, match="has no such function"):
        a.aclrtBinaryGetFunction(binary, b"other", ctypes.byref(ctypes.c_void_p()))
    with pytest.raises(AclError, match="numBlocks=0"):
        a.aclrtLaunchKernel(function, 0, None, 0, None)
    a.aclrtBinaryUnLoad(binary)
    with pytest.raises(AclError, match="was destroyed"):
        a.aclrtLaunchKernel(function, 1, None, 0, None)
