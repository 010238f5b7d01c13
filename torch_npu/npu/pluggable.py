"""Device memory from two functions of a shared library: ``torch.npu.NPUPluggableAllocator``."""

import ctypes
import os

from torch_npu import _C

__all__ = ["NPUPluggableAllocator", "change_current_allocator"]


class _NPUAllocator:
    """What :func:`change_current_allocator` takes; :meth:`allocator` is what ``torch.npu.MemPool`` takes."""

    def __init__(self, allocator: "_C._PluggableAllocator | None") -> None:
        self._allocator = allocator

    def allocator(self) -> "_C._PluggableAllocator | None":
        """The native object; None stands for the device's own memory."""
        return self._allocator


class NPUPluggableAllocator(_NPUAllocator):
    """An allocator of device memory in a shared library, in C::

        void *alloc_fn(size_t size, int device, aclrtStream stream);
        void free_fn(void *ptr, size_t size, int device, aclrtStream stream);

    ``alloc_fn`` returns memory of ``device``, at an address that is a multiple of 512, or null if there is none left.
    Both are called with the allocator locked: they must neither allocate tensors nor run Python. Sizes are multiples of
    512 bytes and include the padding that the device's kernels need.

    Args:
        path_to_so_file: the library; it stays loaded.
        alloc_fn_name, free_fn_name: the functions' names in it.

    Raises:
        OSError: the library cannot be loaded.
        AttributeError: it has no function of that name.
    """

    def __init__(self, path_to_so_file: str | os.PathLike[str], alloc_fn_name: str, free_fn_name: str) -> None:
        library = ctypes.CDLL(os.fspath(path_to_so_file))
        addresses = [
            ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in (alloc_fn_name, free_fn_name)
        ]
        super().__init__(_C._PluggableAllocator(*addresses))


def change_current_allocator(allocator: _NPUAllocator) -> None:
    """Take all memory outside of ``MemPool`` from ``allocator``, on all devices and without a cache, from now on.

    Statistics, snapshots and memory limits go on working.

    Raises:
        RuntimeError: a tensor was allocated on a device before.
    """
    native = allocator.allocator()
    if native is None:
        raise ValueError(
            "change_current_allocator: expected an NPUPluggableAllocator, but got the device's own allocator"
        )
    _C._replace_allocator(native)


def _get_current_allocator() -> _NPUAllocator:
    return _NPUAllocator(_C._current_allocator())
