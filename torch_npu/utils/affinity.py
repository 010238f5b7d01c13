"""Which CPU cores the calling thread runs on."""

import os

__all__ = ["reset_thread_affinity", "set_thread_affinity"]

_AT_IMPORT = os.sched_getaffinity(0)

Range = list[int]


def set_thread_affinity(core_range: Range | list[Range] | None = None) -> None:
    """Binds the calling thread to CPU cores.

    Args:
        core_range: ``[first, last]``, a list of such ranges, or None for what the process began with.

    Raises:
        ValueError: something else, or cores that the process may not use.
    """
    if core_range is None:
        return reset_thread_affinity()
    ranges = [core_range] if core_range and isinstance(core_range[0], int) else core_range
    cores: set[int] = set()
    for bounds in ranges:
        if not isinstance(bounds, list) or len(bounds) != 2 or not 0 <= bounds[0] <= bounds[1]:
            raise ValueError(f"set_thread_affinity: expected [first, last] or a list of such, got {core_range!r}")
        cores.update(range(bounds[0], bounds[1] + 1))
    if not cores & _AT_IMPORT:
        raise ValueError(
            f"set_thread_affinity: this process may run on the cores {sorted(_AT_IMPORT)}, got {core_range!r}"
        )
    os.sched_setaffinity(0, cores)


def reset_thread_affinity() -> None:
    """Lets the calling thread run on all cores that the process began with."""
    os.sched_setaffinity(0, _AT_IMPORT)
