"""Device memory: the pool against CANN's own allocation and against the CPU's malloc, from Python.

In the first group the column "cpu" is what a tensor costs without a pool: aclrtMalloc, a first write to every page and
aclrtFree. The aim at 16 MiB is a hundredth of that. In the others it is CPU PyTorch, whose large tensors come from the
system and go back to it.
"""

import ctypes
from collections.abc import Callable

import torch

import torch_npu
from benchmarks.timing import Case, Work

KiB, MiB = 1 << 10, 1 << 20
UNPOOLED = "aclrtMalloc, first touch, aclrtFree (as cpu) against the pool"


def size_of(nbytes: int) -> str:
    return f"{nbytes // MiB} MiB" if nbytes >= MiB else f"{nbytes // KiB} KiB" if nbytes >= KiB else f"{nbytes} B"


def empty(nbytes: int) -> Callable[[str], Work]:
    return lambda device: lambda: torch.empty(nbytes, dtype=torch.int8, device=device)


def unpooled_or_empty(nbytes: int) -> Callable[[str], Work]:
    def prepare(device: str) -> Work:
        if device == "npu":
            return empty(nbytes)(device)
        torch.empty(1, device="npu")  # makes the device current in this thread
        path = next(path for path in torch_npu.cann_info()["libraries"] if "libascendcl" in path)
        cann = ctypes.CDLL(path)
        size, pointer = ctypes.c_size_t(nbytes), ctypes.c_void_p()

        def allocate_touch_free() -> None:
            failed = cann.aclrtMalloc(ctypes.byref(pointer), size, 0)
            failed = failed or cann.aclrtMemset(pointer, size, 0, size) or cann.aclrtFree(pointer)
            if failed:
                raise RuntimeError(f"CANN returned error {failed}")

        return allocate_touch_free

    return prepare


def write_new(nbytes: int) -> Callable[[str], Work]:
    """The result of an operator is a new tensor; on the CPU each of its pages is touched for the first time."""

    def prepare(device: str) -> Work:
        x = torch.ones(nbytes // 4, device=device)
        return lambda: x + x

    return prepare


def grow_cache(steps: int) -> Callable[[str], Work]:
    """A key-value cache that is extended by one token a step, as models without a static cache do."""

    def prepare(device: str) -> Work:
        token = torch.randn(1, 8, 1, 64).to(device)

        def grow() -> None:
            cache = token
            for _ in range(steps):
                cache = torch.cat((cache, token), 2)

        return grow

    return prepare


def random_batches(device: str) -> Work:
    """Sixteen steps of a small model with batches of 1 to 32: sizes that change all the time."""
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).to(device)
    inputs = [torch.randn(batch, 64, 512).to(device) for batch in torch.randint(1, 33, (16,)).tolist()]
    return lambda: [model(x) for x in inputs]


def in_one_range(prepare: Callable[[str], Work]) -> Callable[[str], Work]:
    """The same on npu from a VMMemoryPool, which stays open for the cases that follow."""

    def prepare_in_pool(device: str) -> Work:
        if device == "npu" and torch_npu.VMMemoryPool.current() is None:
            torch_npu.VMMemoryPool(size_gb=8)
        return prepare(device)

    return prepare_in_pool


def cases() -> list[Case]:
    group = "torch.empty"
    result = [Case(f"{size_of(n)} unpooled", UNPOOLED, unpooled_or_empty(n)) for n in (64 * KiB, MiB)]
    result.append(Case("16 MiB unpooled", UNPOOLED, unpooled_or_empty(16 * MiB), aim=100))
    result.append(Case("128 MiB unpooled", UNPOOLED, unpooled_or_empty(128 * MiB), aim=100))
    result += [Case(f"empty, {size_of(n)}", group, empty(n)) for n in (512, 64 * KiB, 16 * MiB, 128 * MiB)]
    work = "work in new memory"
    result += [Case(f"x + x, {size_of(n)}", work, write_new(n), aim=1.0) for n in (16 * MiB, 64 * MiB, 256 * MiB)]
    result.append(Case("cache of 8 heads, 500 tokens", work, grow_cache(500)))
    result.append(Case("batches of 1 to 32", work, random_batches, aim=1.0))
    group = "the same from a VMMemoryPool"
    for name, prepare in (
        ("empty, 16 MiB, in one range", empty(16 * MiB)),
        ("x + x, 64 MiB, in one range", write_new(64 * MiB)),
        ("cache of 8 heads, 500 tokens, in one range", grow_cache(500)),
        ("batches of 1 to 32, in one range", random_batches),
    ):
        result.append(Case(name, group, in_one_range(prepare)))
    return result
