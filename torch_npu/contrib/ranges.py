"""``torch.cuda.nvtx`` for programs on npu: named ranges, which PyTorch's profiler shows."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.profiler import record_function

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]


class _Open(threading.local):
    def __init__(self) -> None:
        self.ranges: list[record_function] = []


_open = _Open()


def range_push(msg: str) -> int:
    """Begins a range inside this thread's last one; returns its depth, from 0."""
    entered = record_function(msg)
    entered.__enter__()
    _open.ranges.append(entered)
    return len(_open.ranges) - 1


def range_pop() -> int:
    """Ends this thread's last range; returns its depth, or -1 where none is open, as NVTX does."""
    if _open.ranges:
        _open.ranges.pop().__exit__(None, None, None)
        return len(_open.ranges)
    return -1


@contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    """A block as a range, named ``msg.format(*args, **kwargs)``."""
    with record_function(msg.format(*args, **kwargs)):
        yield


def range_start(msg: str) -> record_function:
    """Begins a range that any order of ends may follow; returns what :func:`range_end` takes."""
    entered = record_function(msg)
    entered.__enter__()
    return entered


def range_end(range_id: record_function) -> None:
    range_id.__exit__(None, None, None)


def mark(msg: str) -> None:
    """A moment, as a range without length."""
    with record_function(msg):
        pass
