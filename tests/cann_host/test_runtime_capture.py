"""Work captured into models and run again."""

from __future__ import annotations

import ctypes
import json
import threading
from pathlib import Path

import pytest
from runtime_client import Acl, AclError, HostFunction, acl, isolated

PTR, I32 = ctypes.c_void_p, ctypes.c_int32
both_modes = pytest.mark.parametrize("mode", ["0", "1"], ids=["inline", "asynchronous"])


def in_mode(mode: str, check) -> None:
    isolated(CANN_HOST_ASYNC=mode, CANN_HOST_DELAY_US="200")(check)()


def begin(a: Acl, stream: int | None, mode: str = "RELAXED") -> None:
    a.aclmdlRICaptureBegin(stream, getattr(a, f"ACL_MODEL_RI_CAPTURE_MODE_{mode}"))


def end(a: Acl, stream: int) -> int:
    return a.get("aclmdlRICaptureEnd", PTR, stream)


def status(a: Acl, stream: int) -> tuple[int, int | None]:
    state, model = I32(), PTR()
    a.aclmdlRICaptureGetInfo(stream, ctypes.byref(state), ctypes.byref(model))
    return state.value, model.value


@both_modes
def test_capture_records_and_replay_runs(mode: str) -> None:
    in_mode(mode, check_replay)


def check_replay() -> None:
    a = acl()
    stream, source, target, runs = a.stream(), a.malloc(16), a.malloc(16), []
    note = HostFunction(lambda argument: runs.append(argument))
    a.write(source, b"first           ")
    a.write(target, b"untouched       ")
    assert status(a, stream) == (a.ACL_MODEL_RI_CAPTURE_STATUS_NONE, None)
    begin(a, stream)
    assert status(a, stream)[0] == a.ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE
    assert a.cannHostStreamRunsInline(stream) == 0
    a.aclrtMemcpyAsync(target, 16, source, 16, a.ACL_MEMCPY_DEVICE_TO_DEVICE, stream)
    a.aclrtLaunchHostFunc(stream, note, 42)
    model = end(a, stream)
    assert (a.read(target, 9), runs) == (b"untouched", [])
    for text in (b"second", b"third "):
        a.write(source, text)
        a.aclmdlRIExecuteAsync(model, stream)
        a.aclrtSynchronizeStream(stream)
        assert a.read(target, 6) == text
    a.aclmdlRIExecute(model, 10_000)
    assert runs == [42, 42, 42]
    a.aclmdlRIDestroy(model)
    with pytest.raises(AclError, match="is not a captured model"):
        a.aclmdlRIExecuteAsync(model, stream)


@both_modes
def test_events_fork_and_join(mode: str) -> None:
    in_mode(mode, check_fork_and_join)


def check_fork_and_join() -> None:
    a = acl()
    origin, side, fork, join = a.stream(), a.stream(), a.event(), a.event()
    p, q = a.malloc(8), a.malloc(8)
    begin(a, origin)
    a.fill(p, 1, 8, origin)
    a.aclrtRecordEvent(fork, origin)
    a.aclrtStreamWaitEvent(side, fork)
    assert status(a, side) == status(a, origin)
    a.aclrtMemcpyAsync(q, 8, p, 8, a.ACL_MEMCPY_DEVICE_TO_DEVICE, side)
    with pytest.raises(AclError) as raised:
        end(a, side)
    assert raised.value.code == a.ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED
    for wait in (a.aclrtSynchronizeEvent, lambda e: a.get("aclrtQueryEventStatus", I32, e)):
        with pytest.raises(AclError) as raised:
            wait(fork)
        assert raised.value.code == a.ACL_ERROR_RT_EVENT_CAPTURED
    a.aclrtRecordEvent(join, side)
    a.aclrtStreamWaitEvent(origin, join)
    model = end(a, origin)
    # streams and events are free again
    assert status(a, side)[0] == a.ACL_MODEL_RI_CAPTURE_STATUS_NONE
    a.aclrtSynchronizeEvent(join)
    a.aclrtStreamWaitEvent(a.stream(), join)
    a.aclrtDestroyStream(side)
    a.aclrtMemset(q, 8, 0, 8)
    a.aclmdlRIExecute(model, 10_000)
    assert a.read(q, 8) == b"\1" * 8


def test_unjoined_stream_spoils_the_capture() -> None:
    a = acl()
    origin, side, event, pointer = a.stream(), a.stream(), a.event(), a.malloc(8)
    begin(a, origin)
    a.aclrtRecordEvent(event, origin)
    a.aclrtStreamWaitEvent(side, event)
    a.fill(pointer, 1, 8, side)
    a.aclrtRecordEvent(event, side)
    a.aclrtStreamWaitEvent(origin, event)
    a.fill(pointer, 2, 8, side)  # after what the origin waits for
    side_id = a.get("aclrtStreamGetId", I32, side)
    with pytest.raises(AclError, match=f"the last work of stream {side_id}: record an event there") as raised:
        end(a, origin)
    assert raised.value.code == a.ACL_ERROR_RT_STREAM_UNJOINED
    a.fill(pointer, 3, 8, side)  # both streams work again
    a.aclrtSynchronizeStream(origin)
    assert a.read(pointer, 1) == b"\3"


def test_join_through_a_third_stream_counts() -> None:
    a = acl()
    streams, event, pointer = [a.stream() for _ in range(3)], a.event(), a.malloc(8)
    begin(a, streams[0])
    for before, after in ((0, 1), (1, 2), (2, 0)):
        a.aclrtRecordEvent(event, streams[before])
        a.aclrtStreamWaitEvent(streams[after], event)
        a.fill(pointer, after, 8, streams[after])
    a.aclmdlRIDestroy(end(a, streams[0]))


def test_refusals() -> None:
    a = acl()
    stream, other, outside = a.stream(), a.stream(), a.event()
    pointer = a.malloc(8)
    a.aclrtRecordEvent(outside, other)
    with pytest.raises(AclError) as raised:
        begin(a, None)
    assert raised.value.code == a.ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT
    with pytest.raises(AclError) as raised:
        end(a, stream)
    assert raised.value.code == a.ACL_ERROR_RT_STREAM_NOT_CAPTURED
    begin(a, stream)
    begin(a, other)
    inside = a.event()
    a.aclrtRecordEvent(inside, other)
    cases = [
        (lambda: begin(a, stream), "STREAM_CAPTURED"),
        (lambda: a.aclrtSynchronizeStream(stream), "STREAM_CAPTURED"),
        (lambda: a.get("aclrtStreamQuery", I32, stream), "STREAM_CAPTURED"),
        (lambda: a.aclrtDestroyStream(stream), "STREAM_CAPTURED"),
        (lambda: a.aclrtStreamWaitEvent(stream, outside), "CAPTURE_DEPENDENCY"),
        (lambda: a.aclmdlRIExecuteAsync(status(a, stream)[1], None), "MODEL_CAPTURED"),
    ]
    for call, name in cases:
        with pytest.raises(AclError) as raised:
            call()
        assert raised.value.code == getattr(a, f"ACL_ERROR_RT_{name}")
    with pytest.raises(AclError) as raised:
        a.aclrtStreamWaitEvent(stream, inside)
    assert raised.value.code == a.ACL_ERROR_STREAM_CAPTURE_CONFLICT
    for captured in (stream, other):
        a.aclmdlRIDestroy(end(a, captured))
    a.aclrtFree(pointer)


def unsafe_calls_are_allowed(a: Acl) -> bool:
    outcomes = []
    pointer = a.malloc(8)
    for call in (lambda: a.aclrtMemset(pointer, 8, 0, 8), lambda: a.read(pointer, 1), a.aclrtSynchronizeDevice):
        try:
            call()
            outcomes.append(True)
        except AclError as error:
            outcomes.append(error.code)
    assert outcomes in ([True] * 3, [a.ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT] * 3)
    return outcomes[0] is True


@pytest.mark.parametrize(
    ("mode", "here", "elsewhere"), [("GLOBAL", False, False), ("THREAD_LOCAL", False, True), ("RELAXED", True, True)]
)
def test_modes_guard_calls_that_are_not_recorded(mode: str, here: bool, elsewhere: bool) -> None:
    a = acl()
    stream, seen = a.stream(), []

    def other_thread() -> None:
        a.aclrtSetDevice(0)
        seen.append(unsafe_calls_are_allowed(a))

    begin(a, stream, mode)
    assert unsafe_calls_are_allowed(a) is here
    exchanged = I32(a.ACL_MODEL_RI_CAPTURE_MODE_RELAXED)
    a.aclmdlRICaptureThreadExchangeMode(ctypes.byref(exchanged))
    assert exchanged.value == a.ACL_MODEL_RI_CAPTURE_MODE_GLOBAL
    assert unsafe_calls_are_allowed(a)
    a.aclmdlRICaptureThreadExchangeMode(ctypes.byref(exchanged))
    thread = threading.Thread(target=other_thread)
    thread.start()
    thread.join()
    assert seen == [elsewhere]
    a.aclmdlRIDestroy(end(a, stream))
    assert unsafe_calls_are_allowed(a)


@pytest.mark.parametrize(("mode", "allowed"), [("GLOBAL", False), ("THREAD_LOCAL", False), ("RELAXED", True)])
def test_only_relaxed_captures_end_on_another_thread(mode: str, allowed: bool) -> None:
    a = acl()
    stream, codes = a.stream(), []

    def finish() -> None:
        a.aclrtSetDevice(0)
        try:
            end(a, stream)
            codes.append(0)
        except AclError as error:
            codes.append(error.code)

    begin(a, stream, mode)
    thread = threading.Thread(target=finish)
    thread.start()
    thread.join()
    if allowed:
        assert codes == [0]
    else:
        assert codes == [a.ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD]
        end(a, stream)


def test_failing_task_stops_the_model_and_is_named() -> None:
    a = acl()
    stream, pointer, word = a.stream(), a.malloc(8), a.malloc(8)
    a.aclrtMemset(word, 8, 0, 8)
    begin(a, stream)
    a.fill(pointer, 1, 8, stream)
    a.aclrtValueWait(word, 1, a.ACL_VALUE_WAIT_EQ, stream)
    a.fill(pointer, 2, 8, stream)
    model = end(a, stream)
    with pytest.raises(AclError, match=r"model \d+: wait for the value 1: .* write it first") as raised:
        a.aclmdlRIExecuteAsync(model, stream)
    assert raised.value.code == a.ACL_ERROR_RT_WAIT_TIMEOUT
    assert a.read(pointer, 1) == b"\1"
    a.aclrtValueWrite(word, 1, 0, stream)
    a.aclmdlRIExecuteAsync(model, stream)
    assert a.read(pointer, 1) == b"\2"


def test_external_events_are_part_of_the_model() -> None:
    a = acl()
    stream, before, after = a.stream(), a.event("ACL_EVENT_EXTERNAL"), a.event("ACL_EVENT_EXTERNAL")
    begin(a, stream)
    a.aclrtStreamWaitEvent(stream, before)
    a.aclrtRecordEvent(after, stream)
    model = end(a, stream)
    with pytest.raises(AclError, match="a model that runs inline cannot wait for it"):
        a.aclmdlRIExecuteAsync(model, stream)
    a.aclrtRecordEvent(before, None)
    a.aclmdlRIExecuteAsync(model, stream)
    assert a.get("aclrtQueryEventStatus", I32, after) == a.ACL_EVENT_RECORDED_STATUS_COMPLETE


def test_model_inside_a_model() -> None:
    a = acl()
    stream, pointer = a.stream(), a.malloc(8)
    begin(a, stream)
    a.fill(pointer, 4, 8, stream)
    inner = end(a, stream)
    begin(a, stream)
    a.aclmdlRIExecuteAsync(inner, stream)
    outer = end(a, stream)
    with pytest.raises(AclError) as raised:
        a.aclmdlRIDestroy(inner)
    assert raised.value.code == a.ACL_ERROR_RT_MODEL_RUNNING
    a.aclmdlRIExecuteAsync(outer, stream)
    assert a.read(pointer, 1) == b"\4"
    a.aclmdlRIDestroy(outer)
    a.aclmdlRIDestroy(inner)


def test_task_group_is_recorded_anew() -> None:
    a = acl()
    stream, updater, p, q = a.stream(), a.stream(), a.malloc(8), a.malloc(8)
    a.aclrtMemset(p, 8, 0, 8)
    a.aclrtMemset(q, 8, 0, 8)
    begin(a, stream)
    a.aclmdlRICaptureTaskGrpBegin(stream)
    a.fill(p, 1, 8, stream)
    group = a.get("aclmdlRICaptureTaskGrpEnd", PTR, stream)
    a.fill(q, 2, 8, stream)
    model = end(a, stream)
    a.aclmdlRICaptureTaskUpdateBegin(updater, group)
    a.fill(p, 5, 8, updater)
    a.aclmdlRICaptureTaskUpdateEnd(updater)
    assert a.read(p, 1) == b"\0"
    a.aclmdlRIExecuteAsync(model, stream)
    assert (a.read(p, 1), a.read(q, 1)) == (b"\5", b"\2")
    a.aclmdlRICaptureTaskUpdateBegin(updater, group)
    with pytest.raises(AclError, match="the group has 1 tasks, the update gave 0; it stays as it was"):
        a.aclmdlRICaptureTaskUpdateEnd(updater)
    a.aclmdlRIExecuteAsync(model, stream)
    a.aclmdlRIDestroy(model)
    with pytest.raises(AclError, match="is not a task group"):
        a.aclmdlRICaptureTaskUpdateBegin(updater, group)


@both_modes
def test_functions_of_the_client_are_like_operators(mode: str) -> None:
    in_mode(mode, check_functions_of_the_client)


def check_functions_of_the_client() -> None:
    a = acl()
    calls: list[str] = []
    fails = [False]

    @ctypes.CFUNCTYPE(I32, PTR, PTR, ctypes.c_size_t)
    def run(argument: int, message: int, room: int) -> int:
        calls.append(f"run {argument}")
        if fails[0]:
            text = b"it is said why"[: room - 1] + b"\0"
            ctypes.memmove(message, text, len(text))
        return fails[0]

    @ctypes.CFUNCTYPE(None, PTR)
    def release(argument: int) -> None:
        calls.append(f"release {argument}")

    stream = a.stream()

    def launch(argument: int) -> None:
        a.cannHostLaunchFunction(b"client::op", run, release, argument, stream)

    launch(1)
    a.aclrtSynchronizeStream(stream)
    assert calls == ["run 1", "release 1"]
    begin(a, stream)
    launch(2)
    model = end(a, stream)
    assert calls == ["run 1", "release 1"]
    a.aclmdlRIExecute(model, 10_000)
    fails[0] = True
    with pytest.raises(AclError, match="client::op: it is said why"):
        a.aclmdlRIExecute(model, 10_000)
    a.aclmdlRIDestroy(model)
    assert calls[2:] == ["run 2", "run 2", "release 2"]
    with pytest.raises(AclError, match="is not a stream"):
        a.cannHostLaunchFunction(b"client::op", run, release, 3, 12345)
    assert calls[5:] == ["release 3"]


def test_dump_lists_the_tasks(tmp_path: Path) -> None:
    a = acl()
    stream, pointer, path = a.stream(), a.malloc(8), tmp_path / "model.json"
    begin(a, stream)
    a.fill(pointer, 4, 8, stream)
    model = end(a, stream)
    a.aclmdlRISetName(model, b'decode "step"')
    name = ctypes.create_string_buffer(32)
    a.aclmdlRIGetName(model, 32, name)
    a.aclmdlRIDebugJsonPrint(model, str(path).encode(), 0)
    (event,) = json.loads(path.read_text())
    assert name.value.decode() == event["pid"] == 'decode "step"'
    stream_id = a.get("aclrtStreamGetId", I32, stream)
    assert (event["name"], event["tid"]) == ("fill of 8 bytes", f"stream{stream_id}")
    model_id = a.get("aclmdlRIGetId", ctypes.c_uint32, model)
    assert event["args"] == {"Model Id": model_id, "Stream Id": stream_id, "Task Id": 0}
    with pytest.raises(AclError, match="cannot be written"):
        a.aclmdlRIDebugJsonPrint(model, b"/nonexistent/x.json", 0)


@isolated(CANN_HOST_ASYNC="1", CANN_HOST_DELAY_US="20000")
def test_running_model_is_not_destroyed() -> None:
    a = acl()
    stream, pointer = a.stream(), a.malloc(8)
    begin(a, stream)
    a.fill(pointer, 4, 8, stream)
    model = end(a, stream)
    a.aclmdlRIExecuteAsync(model, stream)
    with pytest.raises(AclError, match="synchronise its stream first") as raised:
        a.aclmdlRIDestroy(model)
    assert raised.value.code == a.ACL_ERROR_RT_MODEL_RUNNING
    a.aclrtSynchronizeStream(stream)
    a.aclmdlRIDestroy(model)
