"""How many cores and how much time work may take."""

from collections.abc import Callable

import torch

from torch_npu import _C
from torch_npu.npu.devices import device_count
from torch_npu.npu.streams import Stream

__all__ = [
    "get_device_limit",
    "get_stream_limit",
    "reset_stream_limit",
    "set_device_limit",
    "set_op_timeout_ms",
    "set_stream_limit",
]

_CUBE, _VECTOR = 0, 1  # aclrtDevResLimitType


def _checked_device(device: int) -> int:
    if isinstance(device, bool) or not isinstance(device, int):
        raise TypeError(f"device must be an int, but got {type(device).__name__}")
    if not 0 <= device < device_count():
        raise AssertionError(f"Invalid device id: {device}, this process sees {device_count()} npu device(s)")
    return device


def _handle(stream: torch.Stream) -> int:
    if not isinstance(stream, Stream):
        raise TypeError(f"stream must be a torch.npu.Stream, but got {type(stream).__name__}")
    return stream.npu_stream


def _set(put: Callable[[int, int, int], None], owner: int, cube_num: int, vector_num: int) -> None:
    """``owner`` is a device's index or a stream's handle."""
    for kind, number in ((_CUBE, cube_num), (_VECTOR, vector_num)):
        if number != -1:
            put(owner, kind, number)


def _get(limit: Callable[[int, int], int], owner: int) -> dict[str, int]:
    return {"cube_core_num": limit(owner, _CUBE), "vector_core_num": limit(owner, _VECTOR)}


def set_device_limit(device: int, cube_num: int = -1, vector_num: int = -1) -> None:
    """Limits the matrix (cube) and vector cores that the device's work may use; -1 leaves a limit as it is.

    Raises:
        TypeError: ``device`` is no int.
        AssertionError: there is no such device.
    """
    _set(_C._set_device_limit, _checked_device(device), cube_num, vector_num)


def get_device_limit(device: int) -> dict[str, int]:
    """``{"cube_core_num": …, "vector_core_num": …}`` of the device."""
    return _get(_C._device_limit, _checked_device(device))


def set_stream_limit(stream: Stream, cube_num: int = -1, vector_num: int = -1) -> None:
    """The same for the work of one stream, in place of the device's limits."""
    _set(_C._set_stream_limit, _handle(stream), cube_num, vector_num)


def get_stream_limit(stream: Stream) -> dict[str, int]:
    """The limits that hold for the stream."""
    return _get(_C._stream_limit, _handle(stream))


def reset_stream_limit(stream: Stream) -> None:
    """Makes the device's limits hold for the stream again."""
    _C._reset_stream_limit(_handle(stream))


def set_op_timeout_ms(timeout: int) -> None:
    """How long one operator may run, in milliseconds; CANN rounds up.

    Raises:
        ValueError: the number is negative or does not fit 32 bits.
    """
    if timeout < 0:
        raise ValueError(f"set_op_timeout_ms({timeout}): can't convert negative value to unsigned int")
    if timeout >= 1 << 32:
        raise ValueError(f"set_op_timeout_ms({timeout}): Overflow when unpacking an unsigned int of 32 bits")
    _C._set_op_timeout(timeout * 1000)
