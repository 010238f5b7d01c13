"""Devices, contexts, their attributes, threads and forks."""

from __future__ import annotations

import ctypes
import os
import threading

import pytest
from runtime_client import Acl, AclError, acl, isolated

I32, U32, I64, PTR = ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_void_p


def in_thread(function) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def test_device_is_chosen_per_thread() -> None:
    a = acl()
    assert a.get("aclrtGetDevice", I32) == 0

    def other() -> None:
        with pytest.raises(AclError, match="no current device; call aclrtSetDevice") as raised:
            a.get("aclrtGetDevice", I32)
        assert raised.value.code == a.ACL_ERROR_RT_CONTEXT_NULL
        with pytest.raises(AclError):
            a.malloc(16)
        with pytest.raises(AclError):
            a.aclrtSynchronizeStream(None)

    in_thread(other)


@isolated(LOCAL_WORLD_SIZE="3")
def test_a_device_for_each_process_of_torchrun() -> None:
    assert acl().get("aclrtGetDeviceCount", U32) == 3


@isolated(LOCAL_WORLD_SIZE="3", CANN_HOST_DEVICES="2")
def test_two_devices_whatever_torchrun_starts() -> None:
    assert acl().get("aclrtGetDeviceCount", U32) == 2


@isolated(CANN_HOST_DEVICES="2")
def test_two_devices() -> None:
    a = acl()
    assert a.get("aclrtGetDeviceCount", U32) == 2
    on_0 = a.stream()
    a.aclrtSetDevice(1)
    assert a.get("aclrtGetDevice", I32) == 1
    with pytest.raises(AclError, match="is of device 0, and this thread's current device is 1") as raised:
        a.aclrtSynchronizeStream(on_0)
    assert raised.value.code == a.ACL_ERROR_RT_STREAM_CONTEXT
    assert not a.cannHostStreamRunsInline(on_0)
    can = I32()
    a.aclrtDeviceCanAccessPeer(ctypes.byref(can), 0, 1)
    assert can.value == 1
    a.aclrtDeviceCanAccessPeer(ctypes.byref(can), 1, 1)
    assert can.value == 0
    # an event goes from one device to the other
    event = a.event()
    a.aclrtSetDevice(0)
    a.aclrtRecordEvent(event, on_0)
    a.aclrtSetDevice(1)
    a.aclrtStreamWaitEvent(None, event)


@isolated(CANN_HOST_DEVICES="4", ASCEND_RT_VISIBLE_DEVICES="1,3")
def test_visible_devices() -> None:
    a = acl()
    assert a.get("aclrtGetDeviceCount", U32) == 2
    assert a.get("drvGetDevNum", U32) == 4
    assert [a.get("aclrtGetLogicDevIdByUserDevId", I32, i) for i in (0, 1)] == [1, 3]


@isolated(CANN_HOST_DEVICES="4", ASCEND_RT_VISIBLE_DEVICES="0,2, 3")
def test_what_is_no_list_of_ids_does_not_count() -> None:
    a = acl()
    assert a.get("aclrtGetDeviceCount", U32) == 2


@isolated(ASCEND_RT_VISIBLE_DEVICES="")
def test_no_visible_device() -> None:
    a = Acl()
    assert a.get("aclrtGetDeviceCount", U32) == 0
    with pytest.raises(AclError, match="there are 0"):
        a.aclrtSetDevice(0)


def test_first_stream_of_a_thread_chooses_the_first_device() -> None:
    a = acl()

    def by_stream() -> None:
        stream = a.stream()
        assert a.get("aclrtGetDevice", I32) == 0
        a.aclrtDestroyStream(stream)

    def by_question_for_memory() -> None:
        a.aclrtGetMemInfo(0, ctypes.byref(ctypes.c_size_t()), ctypes.byref(ctypes.c_size_t()))
        assert a.get("aclrtGetDevice", I32) == 0

    in_thread(by_stream)
    in_thread(by_question_for_memory)


def test_contexts() -> None:
    a = acl()
    primary = a.get("aclrtGetCurrentContext", PTR)
    context = PTR()
    a.aclrtCreateContext(ctypes.byref(context), 0)
    assert a.get("aclrtGetCurrentContext", PTR) == context.value != primary
    a.aclrtSetCurrentContext(primary)
    assert a.get("aclrtGetDevice", I32) == 0
    a.aclrtDestroyContext(context)
    with pytest.raises(AclError, match="is not a context"):
        a.aclrtSetCurrentContext(context)
    with pytest.raises(AclError, match="came with aclrtSetDevice"):
        a.aclrtDestroyContext(primary)


@isolated(CANN_HOST_DEVICES="2")
def test_primary_context_is_active_while_the_device_is_set() -> None:
    a = Acl()

    def active(device: int) -> int:
        result = I32()
        a.aclrtGetPrimaryCtxState(device, None, ctypes.byref(result))
        return result.value

    assert (active(0), active(1)) == (0, 0)
    a.aclrtSetDevice(1)
    assert (active(0), active(1)) == (0, 1)
    a.aclrtResetDevice(1)
    assert active(1) == 0
    with pytest.raises(AclError, match="no current device"):
        a.get("aclrtGetDevice", I32)


@isolated()
def test_init_and_finalize_count() -> None:
    a = Acl()
    a.aclInit(None)
    with pytest.raises(AclError) as raised:
        a.aclInit(None)
    assert raised.value.code == a.ACL_ERROR_REPEAT_INITIALIZE
    a.aclFinalize()
    with pytest.raises(AclError) as raised:
        a.aclFinalize()
    assert raised.value.code == a.ACL_ERROR_REPEAT_FINALIZE


@pytest.mark.parametrize(
    ("soc", "cube", "vector", "arch"), [("Ascend910B3", 20, 40, 2201), ("Ascend950PR_9599", 32, 64, 3510)]
)
def test_soc(soc: str, cube: int, vector: int, arch: int) -> None:
    isolated(CANN_HOST_SOC=soc)(check_soc)(soc=soc, cube=cube, vector=vector, arch=arch)


def check_soc(soc: str, cube: int, vector: int, arch: int) -> None:
    a = acl()
    assert a.aclrtGetSocName().decode() == soc
    assert a.get("aclGetDeviceCapability", I64, 0, a.ACL_DEVICE_INFO_AI_CORE_NUM) == cube
    assert a.get("aclrtGetDeviceInfo", I64, 0, a.ACL_DEV_ATTR_VECTOR_CORE_NUM) == vector
    assert a.get("aclrtGetDeviceInfo", I64, 0, a.ACL_DEV_ATTR_NPU_ARCH) == arch


def test_unknown_attribute_is_refused() -> None:
    with pytest.raises(AclError, match="attr=12345 is not known of Ascend910B3"):
        acl().get("aclrtGetDeviceInfo", I64, 0, 12345)


def test_core_limits_of_stream_then_device_then_soc() -> None:
    a = acl()
    stream, cube = a.stream(), a.ACL_RT_DEV_RES_CUBE_CORE
    assert a.get("aclrtGetStreamResLimit", U32, stream, cube) == 20
    a.aclrtSetDeviceResLimit(0, cube, 12)
    assert a.get("aclrtGetResInCurrentThread", U32, cube) == 12
    a.aclrtSetStreamResLimit(stream, cube, 4)
    a.aclrtUseStreamResInCurrentThread(stream)
    assert a.get("aclrtGetResInCurrentThread", U32, cube) == 4
    a.aclrtUnuseStreamResInCurrentThread(stream)
    a.aclrtResetStreamResLimit(stream)
    assert a.get("aclrtGetStreamResLimit", U32, stream, cube) == 12
    a.aclrtResetDeviceResLimit(0)
    assert a.get("aclrtGetDeviceResLimit", U32, 0, cube) == 20
    with pytest.raises(AclError, match="value=21: expected 1 to 20 cores"):
        a.aclrtSetDeviceResLimit(0, cube, 21)


def test_options_and_modes() -> None:
    a = acl()
    a.aclrtCtxSetSysParamOpt(a.ACL_OPT_DETERMINISTIC, 1)
    assert a.get("aclrtCtxGetSysParamOpt", I64, a.ACL_OPT_DETERMINISTIC) == 1
    assert a.get("aclrtGetSysParamOpt", I64, a.ACL_OPT_DETERMINISTIC) == 0
    a.aclrtCtxSetSysParamOpt(a.ACL_OPT_DETERMINISTIC, 0)
    a.aclrtSetDeviceSatMode(a.ACL_RT_OVERFLOW_MODE_INFNAN)
    with pytest.raises(AclError, match="cannot saturate"):
        a.aclrtSetDeviceSatMode(a.ACL_RT_OVERFLOW_MODE_SATURATION)
    assert a.get("aclGetCannAttribute", I32, a.ACL_CANN_ATTR_INF_NAN) == 1


def test_versions() -> None:
    a = acl()
    text = ctypes.create_string_buffer(128)
    a.aclsysGetVersionStr(ctypes.create_string_buffer(b"runtime"), text)
    assert text.value == b"8.5.0"
    package = ctypes.create_string_buffer(128 + 4 * 64 + 128)
    a.aclsysGetCANNVersion(a.ACL_PKG_NAME_CANN, package)
    assert package.raw[128:129] == b"8"


@pytest.mark.parametrize("asynchronous", ["0", "1"])
def test_forked_child_is_told(asynchronous: str) -> None:
    isolated(CANN_HOST_ASYNC=asynchronous)(check_fork)()


def check_fork() -> None:
    a = acl()
    pointer, stream = a.malloc(64), a.stream()
    a.fill(pointer, 1, 64, stream)
    if (child := os.fork()) == 0:
        calls = [
            lambda: a.aclrtSetDevice(0),
            lambda: a.get("aclrtGetDeviceCount", U32),
            lambda: a.aclrtFree(pointer),
            lambda: a.aclrtSynchronizeStream(stream),
            lambda: a.fill(pointer, 1, 64, stream),
        ]
        told = 0
        for call in calls:
            try:
                call()
            except AclError as error:
                told += "forked from one that was using a device" in error.text and "spawn" in error.text
        os._exit(0 if told == len(calls) and not a.cannHostStreamRunsInline(None) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    a.aclrtSynchronizeStream(stream)  # the parent goes on
    assert a.read(pointer, 2) == b"\1\1"


@isolated(CANN_HOST_DEVICES="2")
def test_fork_before_first_use_is_fine() -> None:
    a = Acl()
    assert a.get("aclrtGetDeviceCount", U32) == 2
    if (child := os.fork()) == 0:
        a.aclrtSetDevice(1)
        os._exit(0 if a.get("aclrtGetDevice", I32) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
