"""Reserved addresses and the physical memory that is mapped to them."""

from __future__ import annotations

import ctypes

import pytest
from runtime_client import Acl, AclError, acl, isolated

MiB = 1 << 20
PAGE = 2 * MiB


class PhysicalProperties(ctypes.Structure):
    _fields_ = [
        ("handle_type", ctypes.c_int32),
        ("allocation_type", ctypes.c_int32),
        ("memory_attribute", ctypes.c_int32),
        ("location_id", ctypes.c_uint32),
        ("location_type", ctypes.c_int32),
        ("reserve", ctypes.c_uint64),
    ]


class AccessDescription(ctypes.Structure):
    _fields_ = [
        ("flags", ctypes.c_int32),
        ("location_id", ctypes.c_uint32),
        ("location_type", ctypes.c_int32),
        ("reserved", ctypes.c_uint8 * 12),
    ]


def physical(a: Acl, size: int, device: int = 0) -> int:
    properties = PhysicalProperties(0, 0, a.ACL_HBM_MEM_HUGE, device, a.ACL_MEM_LOCATION_TYPE_DEVICE, 0)
    handle = ctypes.c_void_p()
    a.aclrtMallocPhysical(ctypes.byref(handle), size, ctypes.byref(properties), 0)
    return handle.value


def reserve(a: Acl, size: int) -> int:
    pointer = ctypes.c_void_p()
    a.aclrtReserveMemAddress(ctypes.byref(pointer), size, 0, None, 0)
    return pointer.value


def test_map_write_unmap_and_map_again_keeps_the_bytes() -> None:
    a = acl()
    base, memory = reserve(a, 4 * PAGE), physical(a, PAGE)
    a.aclrtMapMem(base + PAGE, PAGE, 0, memory, 0)
    a.write(base + PAGE, b"kept")
    a.aclrtUnmapMem(base + PAGE)
    with pytest.raises(AclError, match="is host memory, or was freed"):
        a.read(base + PAGE, 4)
    a.aclrtMapMem(base + 3 * PAGE, PAGE, 0, memory, 0)
    assert a.read(base + 3 * PAGE, 4) == b"kept"
    a.aclrtFreePhysical(memory)  # lives on while it is mapped
    assert a.read(base + 3 * PAGE, 4) == b"kept"
    a.aclrtUnmapMem(base + 3 * PAGE)
    a.aclrtReleaseMemAddress(base)


def test_mappings_that_touch_are_one_piece_of_memory() -> None:
    a = acl()
    base = reserve(a, 3 * PAGE)
    parts = [physical(a, PAGE), physical(a, PAGE)]
    for i, part in enumerate(parts):
        a.aclrtMapMem(base + i * PAGE, PAGE, 0, part, 0)
    a.write(base + PAGE - 2, b"abcd")
    assert a.read(base + PAGE - 2, 4) == b"abcd"
    access = AccessDescription(a.ACL_RT_MEM_ACCESS_FLAGS_READWRITE, 0, a.ACL_MEM_LOCATION_TYPE_DEVICE)
    a.aclrtMemSetAccess(base, 2 * PAGE, ctypes.byref(access), 1)
    with pytest.raises(AclError, match="bytes left in its allocation"):
        a.aclrtMemSetAccess(base, 3 * PAGE, ctypes.byref(access), 1)
    access.flags = a.ACL_RT_MEM_ACCESS_FLAGS_READ
    with pytest.raises(AclError, match="only ACL_RT_MEM_ACCESS_FLAGS_READWRITE"):
        a.aclrtMemSetAccess(base, PAGE, ctypes.byref(access), 1)
    for i, part in enumerate(parts):
        a.aclrtUnmapMem(base + i * PAGE)
        a.aclrtFreePhysical(part)
    a.aclrtReleaseMemAddress(base)


def test_a_reservation_is_of_whole_pages() -> None:
    a = acl()
    base, memory = reserve(a, 512), physical(a, PAGE)
    a.aclrtMapMem(base, PAGE, 0, memory, 0)
    a.aclrtUnmapMem(base)
    a.aclrtFreePhysical(memory)
    a.aclrtReleaseMemAddress(base)


def test_refusals() -> None:
    a = acl()
    base, memory = reserve(a, 2 * PAGE), physical(a, PAGE)
    cases = [
        (lambda: reserve(a, 0), "size=0: expected a number of bytes"),
        (lambda: physical(a, 100), "size=100: expected a positive multiple of 2097152"),
        (lambda: physical(a, PAGE, device=9), "device 9 does not exist"),
        (lambda: a.aclrtMapMem(base + 2 * PAGE, PAGE, 0, memory, 0), "do not lie in a reservation"),
        (lambda: a.aclrtMapMem(base, 2 * PAGE, 0, memory, 0), "do not lie in the 2097152 bytes of the physical memory"),
        (lambda: a.aclrtMapMem(base, PAGE, 0, base, 0), "is not physical memory"),
        (lambda: a.aclrtUnmapMem(base), "aclrtMapMem mapped nothing there"),
        (lambda: a.aclrtReleaseMemAddress(base + PAGE), "is not what aclrtReserveMemAddress returned"),
    ]
    for call, text in cases:
        with pytest.raises(AclError, match=text):
            call()
    a.aclrtMapMem(base, PAGE, 0, memory, 0)
    with pytest.raises(AclError, match="mapped there already"):
        a.aclrtMapMem(base, PAGE, 0, memory, 0)
    with pytest.raises(AclError, match="call aclrtUnmapMem first"):
        a.aclrtReleaseMemAddress(base)
    a.aclrtUnmapMem(base)
    a.aclrtReleaseMemAddress(base)
    a.aclrtFreePhysical(memory)


@isolated(CANN_HOST_MEMORY="8M")
def test_physical_memory_counts_until_nothing_refers_to_it() -> None:
    a = acl()
    base, memory = reserve(a, 4 * PAGE), physical(a, 3 * PAGE)
    with pytest.raises(AclError, match="8388608 bytes free") as raised:
        physical(a, 2 * PAGE)
    assert raised.value.code == a.ACL_ERROR_RT_MEMORY_ALLOCATION
    a.aclrtMapMem(base, 3 * PAGE, 0, memory, 0)
    a.aclrtFreePhysical(memory)
    with pytest.raises(AclError):
        physical(a, 2 * PAGE)
    a.aclrtUnmapMem(base)
    a.aclrtFreePhysical(physical(a, 4 * PAGE))


def test_granularity() -> None:
    a = acl()
    properties = PhysicalProperties()
    size = ctypes.c_size_t()
    a.aclrtMemGetAllocationGranularity(
        ctypes.byref(properties), a.ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM, ctypes.byref(size)
    )
    assert size.value == PAGE
