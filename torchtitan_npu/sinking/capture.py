"""Captures a block of work into a graph, whole or not at all."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torchtitan_npu.driver import npu
from torchtitan_npu.sinking.reasons import CannotSink

__all__ = ["PoolId", "capture"]

PoolId = tuple[int, int]

_lock = threading.Lock()  # the stream is shared
_streams: dict[int, torch.Stream] = {}


@contextmanager
def capture(graph: Any, pool: PoolId) -> Iterator[None]:
    """Captures the block; if it raises, leaves nothing of it. Whatever it raises becomes the reason why not.

    Raises:
        CannotSink: the block raised an Exception, of which this is the first line.
    """
    current = npu.current_stream()
    side = _capture_stream()
    with _lock, npu.stream(side):
        side.wait_stream(current)
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            yield
            graph.capture_end()
        except Exception as error:
            graph.reset()
            raise CannotSink(_first_line(error)) from error
        except BaseException:
            graph.reset()
            raise
    current.wait_stream(side)


def _capture_stream() -> torch.Stream:
    device = npu.current_device()
    if device not in _streams:
        _streams[device] = npu.Stream()
    return _streams[device]


def _first_line(error: Exception) -> str:
    if isinstance(error, CannotSink):
        return str(error)
    return (str(error) or type(error).__name__).splitlines()[0]
