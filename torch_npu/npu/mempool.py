"""Private pools of device memory: ``torch.npu.MemPool`` and ``torch.npu.use_mem_pool``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch_npu import _C
from torch_npu.npu._utils import _get_device_index
from torch_npu.npu.devices import DeviceLike, _lazy_init

__all__ = ["MemPool", "use_mem_pool"]


class MemPool(_C._MemPool):
    """Memory of the current device that serves only what is allocated inside :func:`use_mem_pool`.

    Freed memory stays in the pool: :func:`torch.npu.empty_cache` gives none of it back while the pool object, a graph
    that records into it or a ``use_mem_pool`` block lives. When the object goes, its unused memory goes back to the
    device; what tensors still hold is theirs until they are freed.

    Args:
        allocator: where the pool's segments come from: ``NPUPluggableAllocator(…).allocator()``; None: the device.
        use_on_oom: let the pool's free memory serve other allocations when the device is full.
        no_split: give each allocation a whole segment of memory.
    """

    def __init__(
        self, allocator: "_C._PluggableAllocator | None" = None, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        super().__init__(allocator, True, use_on_oom, no_split)

    @property
    def id(self) -> tuple[int, int]:
        """Names the pool in snapshots (``segment_pool_id``), in ``memory_stats`` and for graphs that share it."""
        return super().id

    def use_count(self) -> int:
        """How many keep the pool: this object, graphs, and open :func:`use_mem_pool` blocks."""
        return super().use_count()

    def snapshot(self) -> list[dict[str, Any]]:
        """The pool's segments with their blocks, as :func:`torch.npu.memory_snapshot` gives them."""
        return _C._memory_segments(self.id)


@contextmanager
def use_mem_pool(pool: MemPool, device: DeviceLike = None) -> Iterator[None]:
    """Take what this thread allocates on ``device`` (default: the current one) from ``pool``; blocks may be nested.

    Other threads are not concerned, among them those that run ``backward()``; with
    ``torch.autograd.set_multithreading_enabled(False)`` gradients are allocated by this thread.
    """
    _lazy_init()
    index = _get_device_index(device, optional=True)
    _C._begin_allocate_current_thread_to_pool(index, pool.id)
    try:
        yield
    finally:
        _C._end_allocate_to_pool(index, pool.id)
        _C._release_pool(index, pool.id)
