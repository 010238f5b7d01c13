"""Streams, events and callbacks, inline and with a thread behind each stream."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest
from runtime_client import Acl, AclError, HostFunction, acl, isolated

I32, U32, U64 = ctypes.c_int32, ctypes.c_uint32, ctypes.c_uint64
both_modes = pytest.mark.parametrize("mode", ["0", "1"], ids=["inline", "asynchronous"])


def in_mode(mode: str, check, delay_us: int = 2000) -> None:
    """Runs the check in a process with that CANN_HOST_ASYNC."""
    isolated(CANN_HOST_ASYNC=mode, CANN_HOST_DELAY_US=str(delay_us))(check)()


def query(a: Acl, stream: int | None) -> int:
    return a.get("aclrtStreamQuery", I32, stream)


class Gate:
    """A host function that holds a stream up until it is opened."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.function = HostFunction(lambda _: self.event.wait(30) and None)

    def close(self, a: Acl, stream: int | None) -> None:
        a.aclrtLaunchHostFunc(stream, self.function, None)

    def open(self) -> None:
        self.event.set()


@both_modes
def test_work_is_done_in_order(mode: str) -> None:
    in_mode(mode, check_order)


def check_order() -> None:
    a = acl()
    stream, pointer, seen = a.stream(), a.malloc(8), []
    note = HostFunction(lambda argument: seen.append(argument))
    for i in range(1, 6):
        a.fill(pointer, i, 8, stream)
        a.aclrtLaunchHostFunc(stream, note, i)
    a.aclrtSynchronizeStream(stream)
    assert seen == [1, 2, 3, 4, 5]
    assert a.read(pointer, 8) == b"\5" * 8
    assert query(a, stream) == a.ACL_STREAM_STATUS_COMPLETE
    a.aclrtDestroyStream(stream)


@isolated()
def test_inline_work_is_done_when_the_call_returns() -> None:
    a = acl()
    stream, pointer = a.stream(), a.malloc(8)
    assert a.cannHostStreamRunsInline(stream) == 1
    a.fill(pointer, 3, 8, stream)
    assert ctypes.string_at(pointer, 8) == b"\3" * 8


@isolated(CANN_HOST_TRACE="1")
def test_traced_work_is_not_inline_but_immediate() -> None:
    a = acl()
    pointer = a.malloc(8)
    assert a.cannHostStreamRunsInline(None) == 0
    a.fill(pointer, 3, 8, None)
    assert ctypes.string_at(pointer, 8) == b"\3" * 8


@isolated(CANN_HOST_ASYNC="1")
def test_asynchronous_call_returns_before_the_work() -> None:
    a = acl()
    stream, pointer, gate = a.stream(), a.malloc(8), Gate()
    assert a.cannHostStreamRunsInline(stream) == 0
    a.aclrtMemset(pointer, 8, 0, 8)
    gate.close(a, stream)
    a.fill(pointer, 3, 8, stream)
    assert query(a, stream) == a.ACL_STREAM_STATUS_NOT_READY
    assert ctypes.string_at(pointer, 8) == bytes(8)  # what a client sees that forgot to synchronise
    with pytest.raises(AclError) as raised:
        a.aclrtSynchronizeStreamWithTimeout(stream, 20)
    assert raised.value.code == a.ACL_ERROR_RT_STREAM_SYNC_TIMEOUT
    gate.open()
    a.aclrtSynchronizeStream(stream)
    assert ctypes.string_at(pointer, 8) == b"\3" * 8


@isolated(CANN_HOST_ASYNC="1")
def test_event_orders_two_streams() -> None:
    a = acl()
    first, second, event, gate = a.stream(), a.stream(), a.event(), Gate()
    source, target = a.malloc(8), a.malloc(8)
    a.aclrtMemset(target, 8, 0, 8)
    gate.close(a, first)
    a.fill(source, 9, 8, first)
    a.aclrtRecordEvent(event, first)
    a.aclrtStreamWaitEvent(second, event)
    a.aclrtMemcpyAsync(target, 8, source, 8, a.ACL_MEMCPY_DEVICE_TO_DEVICE, second)
    time.sleep(0.02)
    assert query(a, second) == a.ACL_STREAM_STATUS_NOT_READY
    assert a.get("aclrtQueryEventStatus", I32, event) == a.ACL_EVENT_RECORDED_STATUS_NOT_READY
    assert a.get("aclrtQueryEventWaitStatus", I32, event) == a.ACL_EVENT_WAIT_STATUS_NOT_READY
    a.aclrtDestroyEvent(event)  # the wait goes on without the handle
    gate.open()
    a.aclrtSynchronizeDevice()
    assert a.read(target, 8) == b"\t" * 8


@isolated(CANN_HOST_ASYNC="1", CANN_HOST_DELAY_US="3000")
def test_free_and_destroy_wait_for_the_work() -> None:
    a = acl()
    stream, pointer, seen = a.stream(), a.malloc(8), []
    note = HostFunction(lambda _: seen.append(1))
    a.aclrtLaunchHostFunc(stream, note, None)
    a.aclrtFree(pointer)
    assert seen == [1]
    a.aclrtLaunchHostFunc(stream, note, None)
    a.aclrtDestroyStream(stream)
    assert seen == [1, 1]


@isolated(CANN_HOST_ASYNC="1")
def test_forced_destruction_drops_what_has_not_started() -> None:
    a = acl()
    stream, seen, gate = a.stream(), [], Gate()
    note = HostFunction(lambda _: seen.append(1))
    event = a.event()
    gate.close(a, stream)
    time.sleep(0.02)
    a.aclrtLaunchHostFunc(stream, note, None)
    a.aclrtRecordEvent(event, stream)
    threading.Timer(0.05, gate.open).start()
    a.aclrtDestroyStreamForce(stream)
    a.aclrtSynchronizeEvent(event)  # a dropped record does not leave its waiters behind
    assert seen == []


@isolated(CANN_HOST_ASYNC="1")
def test_failure_of_a_task_is_told_once_at_the_next_synchronisation() -> None:
    a = acl()
    stream, word = a.stream(), a.malloc(8)
    event = a.event("ACL_EVENT_EXTERNAL")
    a.aclmdlRICaptureBegin(stream, a.ACL_MODEL_RI_CAPTURE_MODE_RELAXED)
    a.aclrtStreamWaitEvent(stream, event)
    model = a.get("aclmdlRICaptureEnd", ctypes.c_void_p, stream)
    a.aclrtDestroyEvent(event)  # so that running the model must fail
    a.aclmdlRIExecuteAsync(model, stream)
    a.fill(word, 5, 8, stream)
    with pytest.raises(AclError, match=r"model \d+: wait for external event \d+: the event was destroyed") as raised:
        a.aclrtSynchronizeStream(stream)
    assert raised.value.code == a.ACL_ERROR_RT_INVALID_HANDLE
    a.aclrtSynchronizeStream(stream)
    assert a.read(word, 1) == b"\5"  # later tasks went on: ACL_CONTINUE_ON_FAILURE

    a.aclrtSetStreamFailureMode(stream, a.ACL_STOP_ON_FAILURE)
    a.aclmdlRIExecuteAsync(model, stream)
    a.fill(word, 6, 8, stream)
    with pytest.raises(AclError):
        a.aclrtSynchronizeDevice()
    assert a.read(word, 1) == b"\5"


@both_modes
def test_events_measure_time(mode: str) -> None:
    in_mode(mode, check_event_times)


def check_event_times() -> None:
    a = acl()
    stream, start, end = a.stream(), a.event(), a.event()
    pause = HostFunction(lambda _: time.sleep(0.02))
    a.aclrtRecordEvent(start, stream)
    a.aclrtLaunchHostFunc(stream, pause, None)
    a.aclrtRecordEvent(end, stream)
    a.aclrtSynchronizeEvent(end)
    ms = ctypes.c_float()
    a.aclrtEventElapsedTime(ctypes.byref(ms), start, end)
    assert 20 <= ms.value < 2000
    assert a.get("aclrtEventGetTimestamp", U64, end) - a.get("aclrtEventGetTimestamp", U64, start) >= 19_000
    with pytest.raises(AclError) as raised:
        a.aclrtEventElapsedTime(ctypes.byref(ms), end, start)
    assert raised.value.code == a.ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL
    untimed = a.event("ACL_EVENT_SYNC")
    a.aclrtRecordEvent(untimed, stream)
    a.aclrtSynchronizeStream(stream)
    with pytest.raises(AclError, match="created without ACL_EVENT_TIME_LINE"):
        a.aclrtEventElapsedTime(ctypes.byref(ms), start, untimed)


@both_modes
def test_event_states(mode: str) -> None:
    in_mode(mode, check_event_states)


def check_event_states() -> None:
    a = acl()
    event, stream = a.event(), a.stream()
    status = lambda: a.get("aclrtQueryEventStatus", I32, event)  # noqa: E731
    assert status() == a.ACL_EVENT_RECORDED_STATUS_NOT_READY
    a.aclrtSynchronizeEvent(event)  # never recorded: nothing to wait for
    a.aclrtStreamWaitEvent(stream, event)
    a.aclrtRecordEvent(event, stream)
    a.aclrtSynchronizeEventWithTimeout(event, 10_000)
    assert status() == a.ACL_EVENT_RECORDED_STATUS_COMPLETE
    assert a.get("aclrtQueryEvent", I32, event) == a.ACL_EVENT_STATUS_COMPLETE
    a.aclrtResetEvent(event, stream)
    assert status() == a.ACL_EVENT_RECORDED_STATUS_NOT_READY
    with pytest.raises(AclError, match="unknown bits 0x1000"):
        a.aclrtCreateEventExWithFlag(ctypes.byref(ctypes.c_void_p()), 0x1001)
    with pytest.raises(AclError, match="between processes"):
        a.event("ACL_EVENT_IPC")


def test_stream_properties() -> None:
    a = acl()
    stream = ctypes.c_void_p()
    a.aclrtCreateStreamWithConfig(ctypes.byref(stream), 3, a.ACL_STREAM_FAST_LAUNCH)
    assert a.get("aclrtStreamGetPriority", U32, stream) == 3
    assert a.get("aclrtStreamGetFlags", U32, stream) == a.ACL_STREAM_FAST_LAUNCH
    assert a.get("aclrtStreamGetId", I32, stream) != a.get("aclrtStreamGetId", I32, a.stream())
    with pytest.raises(AclError, match=r"priority=8: expected 0 \(most urgent\) to 7"):
        a.aclrtCreateStreamWithConfig(ctypes.byref(stream), 8, 0)
    a.aclrtSetStreamOverflowSwitch(stream, 1)
    assert a.get("aclrtGetStreamOverflowSwitch", U32, stream) == 1
    value = (U32 * 4)(5)
    a.aclrtSetStreamAttribute(stream, a.ACL_STREAM_ATTR_USER_CUSTOM_TAG, value)
    other = (U32 * 4)()
    a.aclrtGetStreamAttribute(stream, a.ACL_STREAM_ATTR_USER_CUSTOM_TAG, other)
    assert other[0] == 5
    with pytest.raises(AclError, match="failure mode cannot be set"):
        a.aclrtSetStreamFailureMode(None, 1)
    with pytest.raises(AclError, match="stmAttrType=77"):
        a.aclrtSetStreamAttribute(stream, 77, value)


@both_modes
def test_callbacks_run_on_the_subscribed_thread(mode: str) -> None:
    in_mode(mode, check_callbacks)


def check_callbacks() -> None:
    a = acl()
    stream, ran_on, stop = a.stream(), [], threading.Event()
    callback = HostFunction(lambda _: ran_on.append(threading.get_ident()))
    with pytest.raises(AclError) as raised:
        a.aclrtLaunchCallback(callback, None, a.ACL_CALLBACK_NO_BLOCK, stream)
    assert raised.value.code == a.ACL_ERROR_RT_STREAM_NO_CB_REG

    def report() -> None:
        while not stop.is_set():
            try:
                a.aclrtProcessReport(20)
            except AclError as error:
                assert error.code in (a.ACL_ERROR_RT_REPORT_TIMEOUT, a.ACL_ERROR_RT_THREAD_SUBSCRIBE)  # noqa: PT017

    thread = threading.Thread(target=report)
    thread.start()
    a.aclrtSubscribeReport(thread.ident, stream)
    a.aclrtLaunchCallback(callback, None, a.ACL_CALLBACK_NO_BLOCK, stream)
    a.aclrtLaunchCallback(callback, None, a.ACL_CALLBACK_BLOCK, stream)
    a.aclrtSynchronizeStream(stream)
    deadline = time.monotonic() + 10
    while len(ran_on) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(ran_on) == 2
    assert thread.ident in ran_on
    a.aclrtUnSubscribeReport(thread.ident, stream)
    stop.set()
    thread.join()


@both_modes
def test_values(mode: str) -> None:
    in_mode(mode, check_values)


def check_values() -> None:
    a = acl()
    stream, other, word = a.stream(), a.stream(), a.malloc(8)
    a.aclrtMemset(word, 8, 0, 8)
    if a.cannHostStreamRunsInline(stream):
        with pytest.raises(AclError, match="cannot wait for it: write it first"):
            a.aclrtValueWait(word, 7, a.ACL_VALUE_WAIT_GEQ, stream)
    else:
        a.aclrtValueWait(word, 7, a.ACL_VALUE_WAIT_GEQ, stream)
    a.aclrtValueWrite(word, 8, 0, other)
    a.aclrtValueWait(word, 8, a.ACL_VALUE_WAIT_EQ, stream)
    a.aclrtSynchronizeStreamWithTimeout(stream, 10_000)
    with pytest.raises(AclError) as raised:
        a.aclrtValueWrite(word + 4, 8, 0, other)
    assert raised.value.code in (a.ACL_ERROR_RT_ADDR_UNALIGNED, a.ACL_ERROR_INVALID_PARAM)


@isolated(CANN_HOST_ASYNC="1")
def test_waiting_for_itself_is_refused() -> None:
    a = acl()
    stream, codes = a.stream(), []

    def synchronise(_: int | None) -> None:
        try:
            a.aclrtSynchronizeStream(stream)
        except AclError as error:
            codes.append(error.text)

    function = HostFunction(synchronise)
    a.aclrtLaunchHostFunc(stream, function, None)
    a.aclrtSynchronizeStream(stream)
    assert ["cannot wait for the stream it runs on" in text for text in codes] == [True]


@isolated(CANN_HOST_ASYNC="1", CANN_HOST_DELAY_US="5000")
def test_pageable_copies_are_safe_to_forget() -> None:
    a = acl()
    stream, pointer = a.stream(), a.malloc(1 << 20)
    for size in (16, 1 << 20):  # a snapshot, and a wait
        source = ctypes.create_string_buffer(b"a" * size, size)
        a.aclrtMemcpyAsync(pointer, size, source, size, a.ACL_MEMCPY_HOST_TO_DEVICE, stream)
        ctypes.memset(source, ord("b"), size)
        target = ctypes.create_string_buffer(size)
        a.aclrtMemcpyAsync(target, size, pointer, size, a.ACL_MEMCPY_DEVICE_TO_HOST, stream)
        assert target.raw == b"a" * size


@isolated(CANN_HOST_ASYNC="1", CANN_HOST_DELAY_US="5000")
def test_pinned_copies_are_not_waited_for() -> None:
    a = acl()
    stream, pointer, pinned = a.stream(), a.malloc(512), ctypes.c_void_p()
    a.aclrtMallocHost(ctypes.byref(pinned), 16)
    ctypes.memset(pinned, ord("a"), 16)
    a.aclrtMemcpyAsync(pointer, 16, pinned, 16, a.ACL_MEMCPY_HOST_TO_DEVICE, stream)
    ctypes.memset(pinned, ord("b"), 16)
    a.aclrtSynchronizeStream(stream)
    assert a.read(pointer, 16) == b"b" * 16


@both_modes
def test_many_threads_and_streams(mode: str) -> None:
    in_mode(mode, check_many_threads, delay_us=0)


def check_many_threads() -> None:
    a = acl()
    failures: list[str] = []

    def work(seed: int) -> None:
        a.aclrtSetDevice(0)
        stream, event = a.stream(), a.event()
        for i in range(50):
            pointer, value = a.malloc(4096), (seed * 50 + i) % 251
            a.fill(pointer, value, 4096, stream)
            a.aclrtRecordEvent(event, stream)
            a.aclrtStreamWaitEvent(None, event)
            a.aclrtSynchronizeEvent(event)
            if ctypes.string_at(pointer, 4096) != bytes([value]) * 4096:
                failures.append(f"{seed}/{i}")
            a.aclrtFree(pointer)
        a.aclrtDestroyEvent(event)
        a.aclrtDestroyStream(stream)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@isolated(CANN_HOST_ASYNC="1", CANN_HOST_DELAY_US="20000")
def test_exit_with_work_in_flight() -> None:
    a = acl()
    pointer = a.malloc(64)
    for _ in range(100):
        a.fill(pointer, 1, 64, a.stream())
