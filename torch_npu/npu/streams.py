"""Streams and events.

A stream is a queue of work on one device. Work of different streams may overlap; an event orders them. Each thread has
a current stream on every device, at first the device's default one.
"""

import ctypes
import os
from collections.abc import Callable
from typing import Any

import torch

from torch_npu import _C
from torch_npu.npu._utils import _get_device_index
from torch_npu.npu.devices import DeviceLike


class Stream(torch.Stream):
    """A stream of the device's pool (32 of each priority, handed out in turn).

    Args:
        device: where it lives; the current device if None.
        priority: negative is high. An NPU knows two: high and normal.
        is_sync_launch: accepted; operators are launched by the thread that calls them on every stream.
        stream_id, device_index, device_type: instead of the two above, names an existing stream.

    Raises:
        RuntimeError: there is no such device or stream.
    """

    def __new__(
        cls, device: DeviceLike = None, priority: int = 0, is_sync_launch: bool = False, **kwargs: int
    ) -> "Stream":
        if kwargs:
            _C._stream_handle(**kwargs)  # raises if there is no such stream
            return super().__new__(cls, **kwargs)
        index = _get_device_index(device, optional=True)
        return _wrap(_C._stream_from_pool(index, priority), cls)

    @property
    def npu_stream(self) -> int:
        """The aclrtStream, as an address."""
        return _C._stream_handle(self.stream_id, self.device_index, self.device_type)

    @property
    def priority(self) -> int:
        """-1 for a stream of high priority, else 0."""
        return _C._stream_priority(self.stream_id, self.device_index, self.device_type)

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.npu_stream)

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Records ``event``, or a new one, at the end of the work that the stream has now; returns it."""
        if event is None:
            event = Event()
        event.record(self)
        return event

    def wait_stream(self, stream: torch.Stream) -> None:
        """Makes later work of this stream wait for the work that ``stream`` has now."""
        self.wait_event(stream.record_event())

    def __repr__(self) -> str:
        return f"<torch_npu.npu.Stream device={self.device} npu_stream={self.npu_stream:#x}>"


class SyncLaunchStream(Stream):
    """A stream whose operators are launched by the thread that calls them. So are those of every stream here."""


class ExternalStream(Stream):
    """A stream that other code created and keeps alive.

    Work may be put on it, and events order that work. As in the vendor's torch_npu the stream itself is neither asked
    nor waited for, because only its owner knows whether it still exists; a program that does so would fail there.

    Args:
        stream_ptr: the aclrtStream, as an address.
        device: where it lives; the current device if None.
    """

    def __new__(cls, stream_ptr: int, device: DeviceLike = None) -> "ExternalStream":
        return _wrap(_C._external_stream(stream_ptr, _get_device_index(device, optional=True)), cls)

    @property
    def npu_stream(self) -> int:
        """The aclrtStream, as an address.

        Raises:
            RuntimeError: TASK_QUEUE_ENABLE and PER_STREAM_QUEUE ask for a task queue of each stream, of which the
                vendor's torch_npu gives none to streams of other code.
        """
        if os.environ.get("PER_STREAM_QUEUE") == "1" and os.environ.get("TASK_QUEUE_ENABLE", "1") != "0":
            raise RuntimeError(
                "external streams are not supported in NPUStream::stream() with PER_STREAM_QUEUE=1: set it to 0, or "
                "use torch.npu.Stream"
            )
        return super().npu_stream

    def query(self) -> bool:
        """Refused.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(f"Cannot query {self._of_other_code()}: record an event on it and query that")

    def synchronize(self) -> None:
        """Refused.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            f"NPUStream::synchronize does not wait for {self._of_other_code()}: record an event on it and wait for that"
        )

    def _of_other_code(self) -> str:
        return f"the external stream {super().npu_stream:#x}, which other code owns"


class Event(torch.Event):
    """A mark in a stream's work, which other streams and the host can wait for. The first record() makes it real.

    Args:
        enable_timing: whether it has a time stamp.
        blocking: accepted; waiting on the host always blocks.
        interprocess: must be False.

    Raises:
        NotImplementedError: ``interprocess``.
    """

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> "Event":
        if interprocess:
            raise NotImplementedError("npu events cannot be shared between processes: use interprocess=False")
        return super().__new__(cls, "npu", enable_timing=enable_timing, blocking=blocking)

    @property
    def npu_event(self) -> int:
        """The aclrtEvent, as an address; 0 before the first record()."""
        return self.event_id

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.npu_event)

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Milliseconds from this event to ``end_event``. Both need enable_timing, and must have been reached."""
        return _C._elapsed_time(self, end_event)

    def recorded_time(self) -> int:
        """The device's clock when the event was reached, in microseconds. Needs enable_timing."""
        return _C._recorded_time(self.npu_event)

    def __repr__(self) -> str:
        state = f"{self.npu_event:#x}" if self.npu_event else "uninitialized"
        return f"<torch_npu.npu.Event {state}>"


class ExternalEvent:
    """An event between a captured graph and work outside it.

    In a capture, ``wait`` is recorded as a wait for the next ``record`` outside, and ``reset`` makes the event ready
    for another round: so each replay waits until, say, another stream has updated the arguments of one of its tasks.
    """

    def __init__(self) -> None:
        self._event = _C._ExternalEvent()

    def record(self, stream: torch.Stream | None = None) -> None:
        """Marks the event in the stream (default: the current one)."""
        self._event.record(_triple(stream))

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Makes later work of the stream (default: the current one) wait for the mark."""
        self._event.wait(_triple(stream))

    def reset(self, stream: torch.Stream | None = None) -> None:
        """Takes the mark away, in the stream's order."""
        self._event.reset(_triple(stream))

    @property
    def npu_event(self) -> int:
        """The aclrtEvent, as an address."""
        return self._event.handle()

    def __repr__(self) -> str:
        return f"<torch_npu.npu.ExternalEvent {self.npu_event:#x}>"


def _triple(stream: torch.Stream | None) -> tuple[int, int, int]:
    stream = current_stream() if stream is None else stream
    return stream.stream_id, stream.device_index, stream.device_type


def _launch_host_func(stream: torch.Stream, function: Callable[[Any], Any], argument: Any) -> None:
    """Has the stream call ``function(argument)`` on a thread of CANN's, in its order; in a capture at every replay.

    An exception in it is printed and ends nothing. The function must not wait for the stream.
    """
    _C._launch_host_function(_triple(stream), function, argument)


def _subscribe_report(stream: torch.Stream) -> None:
    """Nothing: CANN calls host functions on a thread of its own. Accepted for code written for older versions."""


def _unsubscribe_report(stream: torch.Stream) -> None:
    """Nothing, see :func:`_subscribe_report`."""


def _wrap(triple: tuple[int, int, int], cls: type = Stream) -> Any:
    stream_id, device_index, device_type = triple
    return torch.Stream.__new__(cls, stream_id=stream_id, device_index=device_index, device_type=device_type)


def current_stream(device: DeviceLike = None) -> Stream:
    """The calling thread's current stream on the device (default: the current one)."""
    return _wrap(_C._current_stream(_get_device_index(device, optional=True)))


def default_stream(device: DeviceLike = None) -> Stream:
    """The stream that is current on the device until another is selected."""
    return _wrap(_C._default_stream(_get_device_index(device, optional=True)))


def set_stream(stream: torch.Stream | None) -> None:
    """Makes ``stream`` the current one of its device, and its device the current one; None changes nothing."""
    if stream is None:
        return
    _C._exchange_stream(stream.stream_id, stream.device_index, stream.device_type)
    _C._set_device(stream.device_index)


class StreamContext:
    """Context manager under which ``stream`` and its device are current; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            stream = self.stream
            self._device = _C._exchange_device(stream.device_index)
            self._previous = _C._exchange_stream(stream.stream_id, stream.device_index, stream.device_type)

    def __exit__(self, *exc_info: object) -> None:
        if self.stream is not None:
            _C._exchange_stream(*self._previous)
            _C._exchange_device(self._device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """``with torch.npu.stream(s):`` work goes to ``s``."""
    return StreamContext(stream)
