"""Device and host memory, copies and fills, and the limit of a device."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
from runtime_client import Acl, AclError, acl, isolated

MiB = 1 << 20


class PointerAttributes(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint32),
        ("type", ctypes.c_int32),
        ("page_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32 * 4),
    ]


def location(a: Acl, pointer: object) -> int:
    attributes = PointerAttributes()
    a.aclrtPointerGetAttributes(pointer, ctypes.byref(attributes))
    return attributes.type


def free_and_total(a: Acl) -> tuple[int, int]:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    a.aclrtGetMemInfo(a.ACL_HBM_MEM, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


@pytest.mark.parametrize("size", [1, 511, 512, 4097, MiB, 2 * MiB, 5 * MiB + 3])
def test_malloc_is_aligned_writable_and_counted(size: int) -> None:
    a = acl()
    before = free_and_total(a)[0]
    pointer = a.malloc(size)
    assert pointer % 512 == 0
    assert before - free_and_total(a)[0] == -(-size // 512) * 512
    a.write(pointer, bytes(range(256)) * (size // 256))
    a.aclrtMemset(pointer, size, 7, size)
    assert a.read(pointer, size) == b"\7" * size
    ctypes.memset(pointer, 9, size)  # the host may touch it: the library says so
    assert a.cannHostDeviceMemoryIsHostAccessible() == 1
    assert a.read(pointer + size - 1, 1) == b"\t"
    a.aclrtFree(pointer)
    assert free_and_total(a)[0] == before


@isolated(CANN_HOST_MEMORY="8M", CANN_HOST_DEVICES="2")
def test_each_device_has_its_limit() -> None:
    a = acl()
    assert free_and_total(a) == (8 * MiB, 8 * MiB)
    first = a.malloc(6 * MiB)
    with pytest.raises(
        AclError, match=f"device 0 has {2 * MiB} of {8 * MiB} bytes free, {3 * MiB} were asked"
    ) as raised:
        a.malloc(3 * MiB)
    assert raised.value.code == a.ACL_ERROR_RT_MEMORY_ALLOCATION
    a.aclrtSetDevice(1)
    second = a.malloc(7 * MiB)
    a.aclrtFree(first)  # of device 0, from device 1
    a.aclrtSetDevice(0)
    third = a.malloc(8 * MiB)
    a.aclrtFree(third)
    a.aclrtFree(second)


@pytest.mark.parametrize(("size", "code"), [(0, 100000), (1 << 62, 207001), ((1 << 64) - 1, 207001)])
def test_impossible_sizes(size: int, code: int) -> None:
    with pytest.raises(AclError) as raised:
        acl().malloc(size)
    assert raised.value.code == code


def test_wrong_free() -> None:
    a = acl()
    pointer = a.malloc(1024)
    host = ctypes.c_void_p()
    a.aclrtMallocHost(ctypes.byref(host), 64)
    for call, bad in [(a.aclrtFree, pointer + 512), (a.aclrtFree, host), (a.aclrtFreeHost, pointer), (a.aclrtFree, 3)]:
        with pytest.raises(AclError, match="is not what aclrtMalloc"):
            call(bad)
    a.aclrtFree(pointer)
    with pytest.raises(AclError, match="was freed before"):
        a.aclrtFree(pointer)
    a.aclrtFreeHost(host)


def test_pointer_attributes() -> None:
    a = acl()
    device, mine = a.malloc(1024), ctypes.create_string_buffer(4096)
    host, mapped = ctypes.c_void_p(), ctypes.c_void_p()
    a.aclrtMallocHost(ctypes.byref(host), 64)
    assert location(a, device + 1023) == a.ACL_MEM_LOCATION_TYPE_DEVICE
    assert location(a, device + 1024) != a.ACL_MEM_LOCATION_TYPE_DEVICE
    assert location(a, host) == a.ACL_MEM_LOCATION_TYPE_HOST
    assert location(a, mine) == a.ACL_MEM_LOCATION_TYPE_UNREGISTERED
    a.aclrtHostRegister(mine, 4096, a.ACL_HOST_REGISTER_MAPPED, ctypes.byref(mapped))
    assert mapped.value == ctypes.addressof(mine)
    assert location(a, mine) == a.ACL_MEM_LOCATION_TYPE_HOST
    with pytest.raises(AclError, match="registered or allocated"):
        a.aclrtHostRegisterV2(ctypes.addressof(mine) + 100, 10, 0)
    a.aclrtHostUnregister(mine)
    assert location(a, mine) == a.ACL_MEM_LOCATION_TYPE_UNREGISTERED
    # Clients also map what aclrtMallocHost gave them.
    a.aclrtHostRegister(host.value + 8, 56, a.ACL_HOST_REGISTER_MAPPED, ctypes.byref(mapped))
    assert mapped.value == host.value + 8
    a.aclrtHostUnregister(mapped)
    assert location(a, host) == a.ACL_MEM_LOCATION_TYPE_HOST
    a.aclrtFreeHost(host)


KINDS = {("host", "host"): 0, ("host", "device"): 1, ("device", "host"): 2, ("device", "device"): 3}


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(("src", "dst"), KINDS)
def test_copy_direction_is_checked(src: str, dst: str, kind: int) -> None:
    a = acl()
    buffers = {
        ("host", "src"): ctypes.addressof(source := ctypes.create_string_buffer(b"x" * 64, 64)),
        ("host", "dst"): ctypes.addressof(target := ctypes.create_string_buffer(64)),
        ("device", "src"): a.malloc(64),
        ("device", "dst"): a.malloc(64),
    }
    a.write(buffers["device", "src"], b"x" * 64)
    arguments = (buffers[dst, "dst"], 64, buffers[src, "src"], 64, kind)
    for copy, rest in ((a.aclrtMemcpy, ()), (a.aclrtMemcpyAsync, (None,))):
        if kind in (KINDS[src, dst], a.ACL_MEMCPY_DEFAULT):
            copy(*arguments, *rest)
            assert (target.raw if dst == "host" else a.read(buffers[dst, "dst"], 64)) == b"x" * 64
        else:
            with pytest.raises(
                AclError, match=r"is host memory, or was freed; memory of a device|is memory of device 0"
            ):
                copy(*arguments, *rest)
    assert source.raw == b"x" * 64


def test_copy_bounds() -> None:
    a = acl()
    small, large = a.malloc(512), a.malloc(4096)
    with pytest.raises(AclError, match="count=11 is more than destMax=10"):
        a.aclrtMemcpy(small, 10, large, 11, a.ACL_MEMCPY_DEVICE_TO_DEVICE)
    with pytest.raises(AclError, match=r"dst=0x[0-9a-f]+ has 12 bytes left in its allocation, 13 were asked for"):
        a.aclrtMemcpy(small + 500, 100, large, 13, a.ACL_MEMCPY_DEVICE_TO_DEVICE)
    with pytest.raises(AclError, match="kind=9 is not a kind"):
        a.aclrtMemcpy(small, 10, large, 10, 9)
    with pytest.raises(AclError, match="count=9 is more than maxCount=8"):
        a.aclrtMemset(small, 8, 0, 9)
    a.aclrtMemcpy(small, 0, large, 0, a.ACL_MEMCPY_DEVICE_TO_DEVICE)


def test_pitched_copy() -> None:
    a = acl()
    device = a.malloc(512)
    a.aclrtMemset(device, 512, ord("."), 512)
    source = ctypes.create_string_buffer(b"abc-def-", 8)
    a.aclrtMemcpy2d(device, 5, source, 4, 3, 2, a.ACL_MEMCPY_HOST_TO_DEVICE)
    assert a.read(device, 10) == b"abc..def.."
    target = ctypes.create_string_buffer(6)
    a.aclrtMemcpy2dAsync(target, 3, device, 5, 3, 2, a.ACL_MEMCPY_DEVICE_TO_HOST, None)
    a.aclrtSynchronizeStream(None)
    assert target.raw == b"abcdef"
    with pytest.raises(AclError, match="width=4 is more than dpitch=3"):
        a.aclrtMemcpy2d(target, 3, device, 5, 4, 1, a.ACL_MEMCPY_DEVICE_TO_HOST)


def test_batch_copy_names_the_failing_pair() -> None:
    a = acl()
    device, host = a.malloc(512), ctypes.create_string_buffer(b"hello", 16)
    dsts = (ctypes.c_void_p * 2)(device, device)
    srcs = (ctypes.c_void_p * 2)(ctypes.addressof(host), ctypes.addressof(host))
    rooms, sizes = (ctypes.c_size_t * 2)(512, 3), (ctypes.c_size_t * 2)(5, 4)
    failed = ctypes.c_size_t()
    with pytest.raises(AclError, match="count=4 is more than destMax=3"):
        a.aclrtMemcpyBatch(dsts, rooms, srcs, sizes, 2, None, None, 0, ctypes.byref(failed))
    assert failed.value == 1
    assert a.read(device, 5) == b"hello"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("CANN_HOST_MEMORY", "lots", "bytes, or a number with K, M, G or T, such as 8G"),
        ("CANN_HOST_DEVICES", "two", "a whole number"),
        ("CANN_HOST_SOC", "H100", "a name that begins with one of Ascend910B1"),
        ("ASCEND_RT_VISIBLE_DEVICES", "0,0", "ascending device ids with commas between"),
        ("CANN_HOST_ASYNC", "yes", "a whole number"),
    ],
)
def test_bad_setting_is_named(name: str, value: str, expected: str) -> None:
    code = "from runtime_client import acl; acl()"
    folder = __file__.rpartition("/")[0]
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {name: value, "PYTHONPATH": folder},
        capture_output=True,
        text=True,
    )
    assert f"{name}={value}: expected {expected}" in result.stderr
