"""``torch_npu.VMMemoryPool``: a device's memory as one range of addresses that is reserved at once."""

import warnings
from dataclasses import dataclass
from types import TracebackType

import torch

from torch_npu import _C
from torch_npu.npu._utils import _get_device_index
from torch_npu.npu.devices import DeviceLike, _lazy_init

__all__ = ["VMMemoryPool", "VMMemoryPoolStats"]

_GIB = 1 << 30
_open_pools: "dict[tuple[int, tuple[int, int]], VMMemoryPool]" = {}  # by device and id; keeps pools nobody refers to


@dataclass(frozen=True)
class VMMemoryPoolStats:
    """How a :class:`VMMemoryPool` is used; sizes in bytes."""

    size: int  # reserved addresses
    in_use: int  # by tensors
    peak_in_use: int
    mapped: int  # physical memory behind the addresses
    peak_mapped: int
    free_mapped: int  # physical memory that nothing uses now
    largest_free: int  # its longest stretch
    live: int  # allocations that are not freed
    allocations: int  # since the pool was made
    hits: int  # of these, served by memory that was there

    @property
    def hit_rate(self) -> float:
        """Share of the allocations that needed nothing of the device, 0 to 1."""
        return self.hits / self.allocations if self.allocations else 0.0

    @property
    def fragmentation(self) -> float:
        """Share of the free physical memory that lies outside its longest stretch, 0 (one piece) to 1."""
        return 1 - self.largest_free / self.free_mapped if self.free_mapped else 0.0

    def __str__(self) -> str:
        def mib(nbytes: int) -> str:
            return f"{nbytes / 2**20:.1f}"

        return (
            f"{self.size >> 20} MiB of addresses, {mib(self.mapped)} MiB mapped (peak {mib(self.peak_mapped)}); "
            f"{mib(self.in_use)} MiB in use by {self.live} allocations (peak {mib(self.peak_in_use)}); "
            f"{self.allocations} allocations, {self.hit_rate:.1%} from the pool; fragmentation {self.fragmentation:.2f}"
        )


class VMMemoryPool:
    """One range of device addresses that serves all tensors of the device from now on, with memory mapped as needed.

    Every allocation on the device, of all threads and streams, of operators' workspaces too, is then a piece of this
    range: programs need no change. Memory is mapped in pages of 2 MiB when a tensor needs them and stays for reuse;
    :func:`torch.npu.empty_cache` unmaps what nothing uses. Since any free pages can be unmapped and others mapped side
    by side, a small batch after a large one, or the reverse, finds its memory without a fixed segment in the way.

    Tensors from before, and those of ``MemPool`` and graphs, stay where they are. Pools form a stack: the last one that
    is open serves.

    Args:
        size_gb: addresses to reserve, in GiB; it may exceed the device's memory, whose limit holds all the same.
        device: the device; the current one if None.
        preallocate: map memory behind all addresses now, and keep it until :meth:`close`.

    Raises:
        ValueError: ``size_gb`` is not positive.
        torch.OutOfMemoryError: with ``preallocate``, the device has no such amount; without, the machine has no such
            range of addresses.
    """

    def __init__(self, size_gb: float, device: DeviceLike = None, preallocate: bool = False) -> None:
        if not size_gb > 0:
            raise ValueError(f"VMMemoryPool: size_gb must be positive, but is {size_gb}")
        _lazy_init()
        self.device = torch.device("npu", _get_device_index(device, optional=True))
        self.id: tuple[int, int] = _C._vm_open(self.device.index, int(size_gb * _GIB), preallocate)
        self._closed = False
        self._serves = True
        _open_pools[self._key] = self
        _C._vm_set_default(*self._key, True)

    @property
    def _key(self) -> tuple[int, tuple[int, int]]:
        return self.device.index, self.id

    @property
    def closed(self) -> bool:
        return self._closed

    @staticmethod
    def current(device: DeviceLike = None) -> "VMMemoryPool | None":
        """The pool that serves ``device`` (default: the current one), if one does."""
        index = _get_device_index(device, optional=True)
        serving = [pool for (owner, _), pool in _open_pools.items() if owner == index and pool._serves]
        return serving[-1] if serving else None

    def stats(self) -> VMMemoryPoolStats:
        """The pool's use now and its peaks (since :func:`torch.npu.reset_peak_memory_stats`)."""
        self._check_open()
        return VMMemoryPoolStats(**_C._vm_usage(*self._key))

    def offset(self, tensor: torch.Tensor) -> int:
        """Bytes from the start of the range to the tensor's storage.

        Raises:
            ValueError: the tensor is not in this pool.
        """
        self._check_open()
        offset = tensor.untyped_storage().data_ptr() - _C._vm_base(*self._key)
        if tensor.device != self.device or not 0 <= offset < self.stats().size:
            raise ValueError(f"the tensor on {tensor.device} is not in the {self!r}")
        return offset

    def close(self) -> None:
        """Give memory and addresses back; the pool or allocator that served before serves again.

        Raises:
            RuntimeError: tensors live in the pool; says how many, and which Python lines made them if
                ``torch.npu.memory._record_memory_history`` was on. The pool stays in use.
        """
        if self._closed:
            return
        _C._vm_close(*self._key)
        self._closed = True
        del _open_pools[self._key]

    def __enter__(self) -> "VMMemoryPool":
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the pool's service in any case, and closes it; an error under way is not replaced by a refusal."""
        if self._closed:
            return
        _C._vm_set_default(*self._key, False)
        self._serves = False
        try:
            self.close()
        except RuntimeError as refusal:
            if error is None:
                raise
            warnings.warn(str(refusal), RuntimeWarning, stacklevel=2)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the VMMemoryPool is closed; make a new one")

    def __repr__(self) -> str:
        state = "closed" if self._closed else str(self.stats())
        return f"VMMemoryPool({self.device}, {state})"
