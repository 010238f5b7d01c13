"""The library exports what the header declares, and bad arguments are refused and never crash."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest
from runtime_client import CONSTANTS, PROTOTYPES, AclError, acl, ctype, isolated

import cann_host


def test_header_was_understood() -> None:
    assert len(PROTOTYPES) > 150
    assert CONSTANTS["ACL_ERROR_RT_MEMORY_ALLOCATION"] == 207001
    assert CONSTANTS["ACL_MEM_MALLOC_HUGE_ONLY"] == 1
    assert CONSTANTS["ACL_BF16"] == 27


@pytest.mark.parametrize("name", PROTOTYPES)
def test_declared_function_is_exported(name: str) -> None:
    assert getattr(ctypes.CDLL(str(cann_host.library())), name)


@isolated()
def test_header_is_valid_c() -> None:
    include = cann_host.root() / "include"
    command = ["cc", "-x", "c", "-std=c11", "-Wall", "-Werror", "-fsyntax-only", f"-I{include}", "-"]
    subprocess.run(command, input=b"#include <cann/acl.h>\n", check=True)


NEEDS_POINTER = sorted(
    name
    for name, (result, parameters) in PROTOTYPES.items()
    if result == "aclError" and any(ctype(parameter) is ctypes.c_void_p for parameter in parameters)
)
# null is a valid argument here: the default stream, no configuration, no condition to report
NULL_IS_FINE = {
    "aclInit",
    "aclrtSynchronizeStream",
    "aclrtSynchronizeStreamWithTimeout",
    "aclrtStreamAbort",
    "aclrtResetStreamResLimit",
    "aclrtSetStreamOverflowSwitch",
    "aclrtUseStreamResInCurrentThread",
    "aclrtUnuseStreamResInCurrentThread",
}


@isolated()
def test_null_arguments_are_refused() -> None:
    """Every pointer null and every number 0, with a current device and without one."""
    for with_device in (False, True):
        if with_device:
            acl()
        library = ctypes.CDLL(str(cann_host.library()))
        library.aclGetRecentErrMsg.restype = ctypes.c_char_p
        for name in NEEDS_POINTER:
            arguments = [kind() for kind in map(ctype, PROTOTYPES[name][1])]
            code = getattr(library, name)(*arguments)
            text = library.aclGetRecentErrMsg().decode()
            if name not in NULL_IS_FINE:
                assert code != 0, name
            assert code == 0 or text.startswith(("acl", "cannHost", "launch")), (name, code, text)


@isolated()
def test_foreign_and_stale_handles_are_refused() -> None:
    a = acl()
    stream, event = a.stream(), a.event()
    for bad in (1, 0x1000, stream + 8, event, 2**63):
        with pytest.raises(AclError, match="is not a stream") as raised:
            a.aclrtSynchronizeStream(bad)
        assert raised.value.code == a.ACL_ERROR_RT_INVALID_HANDLE
    with pytest.raises(AclError, match="is not an event"):
        a.aclrtRecordEvent(stream, stream)
    a.aclrtDestroyStream(stream)
    a.aclrtDestroyEvent(event)
    with pytest.raises(AclError, match="was destroyed"):
        a.aclrtSynchronizeStream(stream)
    with pytest.raises(AclError, match="was destroyed"):
        a.aclrtDestroyEvent(event)


def test_message_is_given_once() -> None:
    a = acl()
    library = ctypes.CDLL(str(cann_host.library()))
    assert library.aclrtSetDevice(99) == a.ACL_ERROR_RT_INVALID_DEVICEID
    assert library.aclrtPeekAtLastError(0) == a.ACL_ERROR_RT_INVALID_DEVICEID
    assert library.aclrtGetLastError(0) == a.ACL_ERROR_RT_INVALID_DEVICEID
    assert library.aclrtGetLastError(0) == 0
    assert a.aclGetRecentErrMsg().startswith(b"aclrtSetDevice: device 99 does not exist: there are 1")
    assert a.aclGetRecentErrMsg() == b""


@pytest.mark.parametrize("name", ["acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel", "atb"])
def test_companion_brings_the_runtime(name: str) -> None:
    code = f"import ctypes; ctypes.CDLL({str(cann_host.library(name))!r}).aclopCompileAndExecute"
    subprocess.run([sys.executable, "-c", code], check=True)
