"""torch.npu.NPUPluggableAllocator: device memory from a shared library that is compiled here."""

import subprocess
from pathlib import Path

import pytest
import torch

import torch_npu

# Takes its memory from CANN, as an allocator for a device must, and counts.
SOURCE = """
#include <dlfcn.h>
#include <stdlib.h>
#include <stddef.h>
static size_t live, largest;
static void *cann(const char *name) { return dlsym(dlopen("libascendcl.so", RTLD_NOW), name); }
void *take(size_t size, int device, void *stream) {
  void *ptr = 0;
  if (((int (*)(void **, size_t, int))cann("aclrtMalloc"))(&ptr, size, 0)) return 0;
  ++live;
  if (size > largest) largest = size;
  return ptr;
}
void give(void *ptr, size_t size, int device, void *stream) {
  --live;
  ((int (*)(void *))cann("aclrtFree"))(ptr);
}
size_t live_blocks(void) { return live; }
size_t largest_block(void) { return largest; }
"""

PRELUDE = """
    import ctypes, os, pytest, sys, torch, torch_npu
    library = ctypes.CDLL({path!r})
    allocator = torch.npu.memory.NPUPluggableAllocator({path!r}, "take", "give")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pluggable")
    (folder / "counting.c").write_text(SOURCE.replace("libascendcl.so", _libascendcl()))
    command = ["gcc", "-shared", "-fPIC", "-o", folder / "counting.so", folder / "counting.c", "-ldl"]
    subprocess.run(command, check=True)
    return folder / "counting.so"


def _libascendcl() -> str:
    return next(path for path in torch_npu.cann_info()["libraries"] if "libascendcl" in path)


def run(run_python, library: Path, code: str) -> None:
    run_python(PRELUDE.format(path=str(library)) + code)


@pytest.mark.slow
def test_every_allocation(run_python, library):
    run(
        run_python,
        library,
        """
    assert torch.npu.get_allocator_backend() == "native"
    torch.npu.memory.change_current_allocator(allocator)
    assert torch.npu.get_allocator_backend() == "pluggable"
    assert torch.npu.memory._get_current_allocator().allocator() is allocator.allocator()
    x = torch.randn(1000, device="npu")
    assert library.live_blocks() == 1 and library.largest_block() == 4096
    y = (x.cpu() * 2, (x * 2).cpu())
    assert torch.equal(*y)
    assert library.live_blocks() == 1 and torch.npu.memory_allocated() == torch.npu.memory_reserved() == 4096
    model = torch.nn.Linear(30, 50).to("npu")
    with torch.autograd.set_multithreading_enabled(False):
        model(torch.randn(7, 30, device="npu")).sum().backward()
    assert torch.equal(model.bias.grad.cpu(), torch.full((50,), 7.0))
    del x, model
    assert library.live_blocks() == 0 and torch.npu.memory_reserved() == 0
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        torch.empty(1 << 45, dtype=torch.int8, device="npu")
    """,
    )


def test_too_late(run_python, library):
    run(
        run_python,
        library,
        """
    torch.ones(3, device="npu")
    with pytest.raises(RuntimeError, match="Can't swap an already initialized allocator"):
        torch.npu.memory.change_current_allocator(allocator)
    """,
    )


def test_in_a_mempool(run_python, library):
    run(
        run_python,
        library,
        """
    pool = torch.npu.MemPool(allocator.allocator())
    with torch.npu.use_mem_pool(pool):
        x = torch.ones(1000, device="npu")
        y = torch.ones(1000, device="npu")
    z = torch.ones(1000, device="npu")
    assert library.live_blocks() == 1 and library.largest_block() == 2 << 20  # a segment, cut in the pool
    assert len(pool.snapshot()) == 1 and (x + y + z == 3).all()
    del x, y
    torch.npu.empty_cache()
    assert library.live_blocks() == 1
    del pool
    assert library.live_blocks() == 0
    """,
    )


def test_names(library):
    with pytest.raises(OSError):
        torch.npu.NPUPluggableAllocator("/no/such/library.so", "take", "give")
    with pytest.raises(AttributeError):
        torch.npu.NPUPluggableAllocator(library, "take", "no_such_function")
    with pytest.raises(ValueError, match="the device's own allocator"):
        torch.npu.change_current_allocator(torch.npu.memory._NPUAllocator(None))
