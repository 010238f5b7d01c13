"""Loads binaries and launches kernels through CANN's C ABI: aclrtBinaryLoadFromFile, aclrtLaunchKernel."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class LaunchError(RuntimeError):
    """CANN refused a binary or a launch."""


class Runtime:
    """The few functions of libascendcl.so that kernels need. Devices and streams are the caller's."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        pointer, u32, size = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_size_t
        self.load = library.aclrtBinaryLoadFromFile
        self.load.argtypes = [ctypes.c_char_p, pointer, pointer]
        self.get_function = library.aclrtBinaryGetFunction
        self.get_function.argtypes = [pointer, ctypes.c_char_p, pointer]
        self.launch = library.aclrtLaunchKernel
        self.launch.argtypes = [pointer, u32, pointer, size, pointer]
        self.get_device = library.aclrtGetDevice
        self.set_device = library.aclrtSetDevice
        self._message = library.aclGetRecentErrMsg
        self._message.restype = ctypes.c_char_p

    def check(self, code: int) -> None:
        """Raises LaunchError with CANN's message for a code that is not success."""
        if code:
            raise LaunchError(f"error {code}: {(self._message() or b'').decode()}")

    def function(self, binary: Path, name: str) -> int:
        """Handle of a kernel of a binary, which stays loaded."""
        self.ensure_device()
        handle, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.load(os.fsencode(binary), None, ctypes.byref(handle)))
        self.check(self.get_function(handle, name.encode(), ctypes.byref(function)))
        assert function.value is not None
        return function.value

    def ensure_device(self, index: int = 0) -> None:
        """Makes a device current if the thread has none."""
        device = ctypes.c_int32()
        if self.get_device(ctypes.byref(device)):
            self.check(self.set_device(index))


@functools.cache
def runtime() -> Runtime:
    """The runtime of the bundled software CANN."""
    import cann_host

    return Runtime(cann_host.library())


def words_of(values: Sequence[int]) -> Any:
    """Launch arguments as C memory."""
    return (ctypes.c_int64 * len(values))(*values)
