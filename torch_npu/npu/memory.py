"""Memory of the npu devices: the caching allocator, its statistics and limits, and pinned host memory.

Freed memory stays reserved for later tensors, so ``memory_reserved`` is what the process holds and
``memory_allocated`` what its tensors use. ``PYTORCH_NPU_ALLOC_CONF`` sets the allocator up, as comma-separated
``key:value``; an unknown key is refused with the list of those that exist.

Sizes are multiples of 512 bytes. On SoCs before Ascend 950 each allocation has 32 bytes more than asked for, because
their vector units read whole 32-byte pieces, so a tensor of 512 bytes counts as 1024.
"""

import pickle
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from torch._utils import _augment_memory_snapshot_stack_traces
from torch.cuda._memory_viz import memory, segments

from torch_npu import _C
from torch_npu.npu._utils import _get_device_index
from torch_npu.npu.devices import DeviceLike, _lazy_init, is_initialized, mem_get_info
from torch_npu.npu.mempool import MemPool, use_mem_pool
from torch_npu.npu.pluggable import (
    NPUPluggableAllocator,
    change_current_allocator,
)
from torch_npu.npu.pluggable import (
    _get_current_allocator as _get_current_allocator,
)
from torch_npu.npu.pluggable import (
    _NPUAllocator as _NPUAllocator,
)
from torch_npu.npu.streams import Stream, current_stream

__all__ = [
    "MemPool",
    "NPUPluggableAllocator",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "change_current_allocator",
    "empty_cache",
    "empty_virt_addr_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "host_empty_cache",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "use_mem_pool",
]


def caching_allocator_alloc(size: int, device: DeviceLike = None, stream: Stream | int | None = None) -> int:
    """Allocate ``size`` bytes for use by other libraries; :func:`caching_allocator_delete` gives them back.

    Args:
        size: bytes; 0 gives the null address.
        device: where; the current device if None.
        stream: a ``torch.npu.Stream`` or the address of an aclrtStream on which the memory is used first; the
            device's current stream if None.

    Returns:
        The address in device memory.

    Raises:
        torch.OutOfMemoryError: the device has no such amount left.
    """
    index = _get_device_index(device, optional=True)
    if stream is None:
        stream = current_stream(index)
    if isinstance(stream, Stream):
        stream = stream.npu_stream
    if not isinstance(stream, int):
        raise TypeError(
            "Invalid type for stream argument, must be `torch.npu.Stream` or `int` representing a pointer to an "
            f"existing stream, but got {type(stream).__name__}"
        )
    return _C._raw_alloc(size, index, stream)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Free memory of :func:`caching_allocator_alloc`. Work that is queued on its stream may still use it.

    Raises:
        RuntimeError: ``mem_ptr`` is no such address, or was freed before.
    """
    _C._raw_delete(mem_ptr)


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limit what this process may reserve to ``fraction`` (0 to 1) of the device's total memory.

    Beyond it an allocation raises ``torch.OutOfMemoryError``, as if the device were full.
    """
    _lazy_init()
    if not isinstance(fraction, float):
        raise TypeError(f"Invalid type for fraction argument, must be `float`, but got {type(fraction).__name__}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _C._set_memory_fraction(fraction, _get_device_index(device, optional=True))


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """The fraction of the device's total memory that this process may reserve, 0 to 1."""
    _lazy_init()
    return _C._memory_fraction(_get_device_index(device, optional=True))


def empty_cache() -> None:
    """Return all reserved memory that no tensor uses to the devices."""
    if is_initialized():
        _C._empty_cache()


def empty_virt_addr_cache() -> None:
    """The same as :func:`empty_cache`: what is unmapped goes back to the device rather than being kept aside."""
    empty_cache()


def memory_stats(device: DeviceLike = None) -> "OrderedDict[str, Any]":
    """Statistics of the allocator, by the keys of ``torch.cuda.memory_stats``; empty before the first use of npu.

    Most keys read ``"<metric>.<pool>.<kind>"``.

    - metric: ``allocation``, ``segment``, ``active`` and ``inactive_split`` count; ``allocated_bytes``,
      ``reserved_bytes``, ``active_bytes``, ``inactive_split_bytes`` and ``requested_bytes`` are in bytes. Active is
      what is allocated or still used by another stream (``Tensor.record_stream``); inactive_split is free, but shares
      its segment with memory in use; requested is what was asked for, before rounding.
    - pool: ``all``, ``large_pool`` or ``small_pool`` (up to 1 MiB).
    - kind: ``current``, ``peak``, and the totals ``allocated`` and ``freed``.

    Besides: ``num_alloc_retries`` (the cache was flushed because the device was full), ``num_ooms``,
    ``num_sync_all_streams``, ``num_device_alloc``, ``num_device_free``, ``num_oom_rejections``, ``max_split_size`` (-1:
    no limit), ``oversize_allocations.<kind>``, ``oversize_segments.<kind>``, and
    ``reserved_bytes_by_private_pools.<id>.<pool>.<kind>``.
    """
    return OrderedDict(sorted(_flatten(memory_stats_as_nested_dict(device))))


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """:func:`memory_stats` with a dictionary for each part of a key."""
    if not is_initialized():
        return {}
    return _C._memory_stats(_get_device_index(device, optional=True))


def _flatten(stats: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in stats.items():
        name = "_".join(map(str, key)) if isinstance(key, tuple) else key
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Set the ``allocated`` and ``freed`` totals and the event counters of :func:`memory_stats` to zero."""
    _lazy_init()
    _C._reset_accumulated_memory_stats(_get_device_index(device, optional=True))


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Let the ``peak`` values of :func:`memory_stats` start from the current ones."""
    _lazy_init()
    _C._reset_peak_memory_stats(_get_device_index(device, optional=True))


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes that tensors use now."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Most bytes that tensors used at a time since the start or :func:`reset_peak_memory_stats`."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes that the allocator holds now, for tensors and for reuse."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Most bytes that the allocator held at a time since the start or :func:`reset_peak_memory_stats`."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def _warn_renamed(old: str, new: str) -> None:
    warnings.warn(f"torch.npu.{old} has been renamed to torch.npu.{new}", DeprecationWarning, stacklevel=3)


def memory_cached(device: DeviceLike = None) -> int:
    """Deprecated; see :func:`memory_reserved`."""
    _warn_renamed("memory_cached", "memory_reserved")
    return memory_reserved(device)


def max_memory_cached(device: DeviceLike = None) -> int:
    """Deprecated; see :func:`max_memory_reserved`."""
    _warn_renamed("max_memory_cached", "max_memory_reserved")
    return max_memory_reserved(device)


def _warn_resets_all(name: str) -> None:
    warnings.warn(
        f"torch.npu.{name} now calls torch.npu.reset_peak_memory_stats, which resets /all/ peak memory stats.",
        DeprecationWarning,
        stacklevel=3,
    )


def reset_max_memory_allocated(device: DeviceLike = None) -> None:
    """Deprecated; see :func:`reset_peak_memory_stats`, which this calls: it resets all peaks."""
    _warn_resets_all("reset_max_memory_allocated")
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: DeviceLike = None) -> None:
    """Deprecated; see :func:`reset_peak_memory_stats`, which this calls: it resets all peaks."""
    _warn_resets_all("reset_max_memory_cached")
    reset_peak_memory_stats(device)


def memory_snapshot(mempool_id: tuple[int, int] | None = None) -> list[dict[str, Any]]:
    """The segments that the allocator holds on all devices, each with its blocks, by the keys of torch.cuda's.

    Args:
        mempool_id: leave out all but the segments of this pool (``MemPool.id``); None: those of all pools.
    """
    if not is_initialized():
        return []
    return _C._memory_segments(mempool_id or (0, 0))


def _record_memory_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: DeviceLike = None,
    clear_history: bool = False,
    skip_actions: Sequence[str] = (),
) -> None:
    """Record what the allocators of all devices do, with call stacks, for :func:`_snapshot`.

    Args:
        enabled: None stops; ``"state"`` records for memory in use; ``"all"`` also keeps all allocations and frees.
        context: which of them get a call stack: None, ``"state"`` (memory in use), ``"alloc"`` (also past allocations),
            ``"all"`` (also frees).
        stacks: ``"python"`` (and TorchScript) or ``"all"`` (also C++, which takes longer to look up).
        max_entries: how many events are kept; each takes up to several KB.
        device: accepted for compatibility; all devices are recorded.
        clear_history: forget earlier events.
        skip_actions: events to leave out: alloc, free_requested, free_completed, segment_alloc, segment_free,
            segment_map, segment_unmap, oom, snapshot.

    Raises:
        ValueError: an argument has none of these values.
    """
    _lazy_init()
    _C._record_memory_history(enabled, context, stacks, max_entries, clear_history, list(skip_actions))


def _snapshot(device: DeviceLike = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """The state of the allocators and the recorded events of all devices, as torch.cuda.memory._snapshot gives them.

    The keys: ``segments`` (see :func:`memory_snapshot`, here with the call stacks), ``device_traces`` (a list of events
    for each device), ``allocator_settings`` and ``external_annotations``. ``augment_with_fx_traces`` adds to frames of
    FX-generated code where in the model they come from.
    """
    _lazy_init()
    snapshot: Any = _C._memory_snapshot()
    if augment_with_fx_traces:
        snapshot = _augment_memory_snapshot_stack_traces(snapshot)
    return snapshot


def _dump_snapshot(filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
    """Pickle :func:`_snapshot` into a file that the viewer at pytorch.org/memory_viz opens."""
    snapshot = _snapshot(augment_with_fx_traces=augment_with_fx_traces)
    with open(filename, "wb") as file:
        pickle.dump(snapshot, file)


def _save_segment_usage(filename: str = "output.svg", snapshot: dict[str, Any] | None = None) -> None:
    """Write a flame graph of the segments and the call stacks that hold them."""
    with open(filename, "w") as file:
        file.write(segments(snapshot or _snapshot()))


def _save_memory_usage(filename: str = "output.svg", snapshot: dict[str, Any] | None = None) -> None:
    """Write a flame graph of the allocated memory by call stack."""
    with open(filename, "w") as file:
        file.write(memory(snapshot or _snapshot()))


def _format_size(size: int, reference: int) -> str:
    """``size`` in the unit that suits ``reference``, so that the parts of a sum have the unit of the sum."""
    units = iter(("B ", "KB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while reference >= 768 * 1024:
        unit = next(units)
        size //= 1024
        reference //= 1024
    return f"{size:7d} {unit}"


def _format_count(count: int, reference: int) -> str:
    for unit in " K":
        if reference < 750 * 1000:
            return f"{count:7d} {unit} "
        count //= 1000
        reference //= 1000
    return f"{count:7d} M "


_KINDS = ("current", "peak", "allocated", "freed")
_SUMMARY_ROWS = (
    ("allocated_bytes", "Allocated memory", _format_size),
    ("active_bytes", "Active memory", _format_size),
    ("requested_bytes", "Requested memory", _format_size),
    ("reserved_bytes", "NPU reserved memory", _format_size),
    ("inactive_split_bytes", "Non-releasable memory", _format_size),
    ("allocation", "Allocations", _format_count),
    ("active", "Active allocs", _format_count),
    ("segment", "NPU reserved segments", _format_count),
    ("inactive_split", "Non-releasable allocs", _format_count),
)
_SUMMARY_OVERSIZE_ROWS = (
    ("oversize_allocations", "Oversize allocations"),
    ("oversize_segments", "Oversize NPU segments"),
)


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """:func:`memory_stats` as a table; ``abbreviated`` leaves out the rows of the single pools."""
    _lazy_init()
    index = _get_device_index(device, optional=True)
    stats = memory_stats(index)
    double, single = "=" * 75, "-" * 75
    lines = [
        double,
        f" {'':16} PyTorch NPU memory summary, device ID {index:<18d} ",
        single,
        f"  {'':9} NPU OOMs: {stats['num_ooms']:<13d} | {'':6} npuMalloc retries: {stats['num_alloc_retries']:<9d}  ",
        double,
        "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ",
    ]

    def row(title: str, metric: str, reference: str, formatter: Any) -> str:
        cells = (formatter(stats[f"{metric}.{kind}"], stats[f"{reference}.{kind}"]) for kind in _KINDS)
        return f" {title:<21} | {' | '.join(cells)} "

    pools = [("all", "")]
    if not abbreviated:
        pools += [("large_pool", "      from large pool"), ("small_pool", "      from small pool")]
    for metric, title, formatter in _SUMMARY_ROWS:
        lines.append(single)
        lines += [row(name or title, f"{metric}.{pool}", f"{metric}.all", formatter) for pool, name in pools]
    for metric, title in _SUMMARY_OVERSIZE_ROWS:
        lines += [single, row(title, metric, metric, _format_count)]
    return "".join(f"|{line}|\n" for line in [*lines, double])


def get_allocator_backend() -> str:
    """``"native"``, the caching allocator of this package, or ``"pluggable"`` (see NPUPluggableAllocator)."""
    return "native" if _get_current_allocator().allocator() is None else "pluggable"


def _set_allocator_settings(settings: str) -> None:
    """Replace the settings that ``PYTORCH_NPU_ALLOC_CONF`` gave; they hold for later allocations.

    Raises:
        ValueError: names the first unknown key or bad value; nothing is changed then.
    """
    _C._set_allocator_settings(settings)


def host_empty_cache() -> None:
    """Return all pinned host memory that no tensor uses to the system."""
    if is_initialized():
        _C._host_empty_cache()


def host_memory_stats() -> "OrderedDict[str, Any]":
    """Statistics of pinned host memory, by the keys of ``torch.cuda.host_memory_stats``; empty before the first use.

    ``allocations`` and ``allocated_bytes`` are what the cache holds, ``active_requests`` and ``active_bytes`` what
    tensors use, each with ``current``, ``peak``, ``allocated`` and ``freed``. ``host_alloc_time`` and
    ``host_free_time`` have ``total``, ``max``, ``min``, ``count`` and ``avg`` in microseconds. Sizes are rounded up
    to powers of two.
    """
    return OrderedDict(sorted(_flatten(host_memory_stats_as_nested_dict())))


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """:func:`host_memory_stats` with a dictionary for each part of a key."""
    return _C._host_memory_stats() if is_initialized() else {}


def reset_accumulated_host_memory_stats() -> None:
    """Set the totals of :func:`host_memory_stats` to zero."""
    _C._reset_accumulated_host_memory_stats()


def reset_peak_host_memory_stats() -> None:
    """Let the peaks of :func:`host_memory_stats` start from the current values."""
    _C._reset_peak_host_memory_stats()
