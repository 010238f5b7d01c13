"""A client of libascendcl.so for tests: functions and constants come from its headers themselves."""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cann_host

HEADER = "".join((cann_host.root() / "include" / "cann" / name).read_text() for name in ("acl.h", "hal.h"))
SOURCE = re.sub(r"//[^\n]*", "", HEADER)

SCALARS = {
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "uint8_t": ctypes.c_uint8,
    "size_t": ctypes.c_size_t,
    "int": ctypes.c_int,
    "float": ctypes.c_float,
}
POINTER_TYPES = re.findall(r"typedef void\* (\w+);", SOURCE) + re.findall(r"typedef \w+ \(\*(\w+)\)", SOURCE)


def ctype(declared: str) -> Any:
    """The ctypes type of a parameter such as ``const void* src``; enumerations are ints."""
    if "*" in declared or "[" in declared:
        return ctypes.c_void_p
    name = declared.replace("const", "").split()[0]
    return ctypes.c_void_p if name in POINTER_TYPES else SCALARS.get(name, ctypes.c_int32)


def _constants() -> dict[str, int]:
    values: dict[str, int] = {}
    for body in re.findall(r"enum\s*\{(.*?)\}", SOURCE, re.DOTALL):
        following = 0
        for entry in filter(None, (part.strip() for part in body.split(","))):
            name, _, value = (part.strip() for part in entry.partition("="))
            following = int(value, 0) if value else following
            values[name] = following
            following += 1
    return values


CONSTANTS = _constants()
# name -> (result, parameters); what libopapi.so implements is left out
PROTOTYPES = {
    name: (result.strip(), [] if parameters.strip() == "void" else [p.strip() for p in parameters.split(",")])
    for result, name, parameters in re.findall(
        r"^([a-z][\w ]*\*?) ?\b(acl\w+|cannHost\w+|drv\w+)\(([^;{]*)\);", SOURCE, re.MULTILINE
    )
    if result.strip() != "aclnnStatus" and not re.match(r"aclCreate(Tensor|Scalar|.*(Array|List))$", name)
}


class AclError(Exception):
    """A code that is not ACL_SUCCESS, with the text of aclGetRecentErrMsg."""

    def __init__(self, code: int, text: str) -> None:
        names = [name for name, value in CONSTANTS.items() if value == code and "ERROR" in name]
        super().__init__(f"{names[0] if names else code}: {text}")
        self.code = code
        self.text = text


class Acl:
    """``acl.aclrtMalloc(…)`` raises AclError where C returns a code; ``acl.ACL_HBM_MEM`` is the constant."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(cann_host.library()))
        for name, (result, parameters) in PROTOTYPES.items():
            function = getattr(self._library, name)
            function.argtypes = [ctype(parameter) for parameter in parameters]
            if "*" in result:
                function.restype = ctypes.c_char_p if "char" in result else ctypes.c_void_p
            elif result == "void":
                function.restype = None

    def __getattr__(self, name: str) -> Any:
        if name in CONSTANTS:
            return CONSTANTS[name]
        function = getattr(self._library, name)
        if PROTOTYPES[name][0] != "aclError":
            return function

        def call(*arguments: Any) -> None:
            code = function(*arguments)
            if code:
                raise AclError(code, self._library.aclGetRecentErrMsg().decode())

        return call

    def get(self, name: str, kind: Any, *arguments: Any) -> Any:
        """Calls a function whose last parameter is where the result goes."""
        result = kind()
        getattr(self, name)(*arguments, ctypes.byref(result))
        return result.value

    def malloc(self, size: int) -> int:
        pointer = ctypes.c_void_p()
        self.aclrtMalloc(ctypes.byref(pointer), size, self.ACL_MEM_MALLOC_HUGE_FIRST)
        return pointer.value

    def stream(self) -> int:
        return self.get("aclrtCreateStream", ctypes.c_void_p)

    def event(self, flags: str = "ACL_EVENT_TIME_LINE") -> int:
        event = ctypes.c_void_p()
        self.aclrtCreateEventExWithFlag(ctypes.byref(event), CONSTANTS[flags])
        return event.value

    def write(self, pointer: int, data: bytes) -> None:
        self.aclrtMemcpy(pointer, len(data), data, len(data), self.ACL_MEMCPY_HOST_TO_DEVICE)

    def read(self, pointer: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self.aclrtMemcpy(data, size, pointer, size, self.ACL_MEMCPY_DEVICE_TO_HOST)
        return data.raw

    def fill(self, pointer: int, value: int, size: int, stream: int | None) -> None:
        self.aclrtMemsetAsync(pointer, size, value, size, stream)


@functools.cache
def acl() -> Acl:
    """The library, with device 0 as the calling thread's."""
    library = Acl()
    library.aclrtSetDevice(0)
    return library


HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def isolated(**environment: str) -> Callable:
    """Runs the test in a process of its own, as the settings of the library are read once."""

    def decorate(test: Callable) -> Callable:
        @functools.wraps(test)
        def run(**arguments: Any) -> None:
            file = Path(inspect.getfile(test))
            code = (
                f"import inspect, sys; sys.path.insert(0, {str(file.parent)!r}); import {file.stem} as m; "
                f"inspect.unwrap(m.{test.__name__})(**{arguments!r})"
            )
            result = subprocess.run(
                [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=120
            )
            assert result.returncode == 0, result.stdout + result.stderr

        return run

    return decorate
