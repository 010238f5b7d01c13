"""Streams and events."""

import ctypes
import gc
import threading

import pytest
import torch


def test_default_stream_is_current():
    assert torch.npu.current_stream() == torch.npu.default_stream()
    assert torch.npu.current_stream().stream_id == 0
    assert isinstance(torch.npu.current_stream(), torch.npu.Stream)
    assert torch.npu.current_stream("npu:0") == torch.npu.current_stream(0) == torch.npu.current_stream()


def test_pool_hands_out_32_streams_in_turn():
    streams = [torch.npu.Stream() for _ in range(33)]
    assert len({s.npu_stream for s in streams[:32]}) == 32
    assert streams[32] == streams[0]
    assert hash(streams[32]) == hash(streams[0])
    assert torch.npu.default_stream() not in streams


@pytest.mark.parametrize(("priority", "expected"), [(0, 0), (1, 0), (-1, -1), (-2, -1)])
def test_priorities(priority, expected):
    stream = torch.npu.Stream(priority=priority)
    assert stream.priority == expected
    assert stream.stream_id >> 5 == (4 if expected < 0 else 3)


def test_properties():
    stream = torch.npu.Stream(device="npu:0")
    assert stream.device == torch.device("npu:0")
    assert stream.device_index == 0
    assert isinstance(stream, torch.Stream)
    assert f"npu_stream={stream.npu_stream:#x}" in repr(stream)
    assert stream._as_parameter_.value == stream.npu_stream
    assert stream != torch.npu.Stream()
    assert stream != "stream"


def test_a_stream_is_rebuilt_from_its_three_numbers():
    for stream in (torch.npu.Stream(), torch.npu.Stream(priority=-1), torch.npu.default_stream()):
        again = torch.npu.Stream(
            stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
        )
        assert again == stream
        assert again.npu_stream == stream.npu_stream


@pytest.mark.parametrize(
    ("numbers", "match"),
    [
        ((99999, 0, 20), "there is no stream with id 99999 on npu:0"),
        ((-1, 0, 20), "there is no stream"),
        ((0, 999, 20), "invalid device index of a stream: 999"),
        ((0, 63, 20), "invalid device index: 63"),
        ((0, -1, 20), "invalid device index of a stream: -1"),
        ((0, 0, 1), "expected the device type of npu"),
    ],
)
def test_made_up_streams_are_refused(numbers, match):
    stream_id, device_index, device_type = numbers
    with pytest.raises(RuntimeError, match=match):
        torch.npu.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)


def test_stream_context_and_set_stream():
    default, a, b = torch.npu.current_stream(), torch.npu.Stream(), torch.npu.Stream()
    with torch.npu.stream(a):
        assert torch.npu.current_stream() == a
        with torch.npu.stream(b), torch.npu.stream(None):
            assert torch.npu.current_stream() == b
        assert torch.npu.current_stream() == a
    assert torch.npu.current_stream() == default
    with pytest.raises(ZeroDivisionError), torch.npu.stream(a):
        raise ZeroDivisionError
    assert torch.npu.current_stream() == default
    torch.npu.set_stream(a)
    assert torch.npu.current_stream() == a
    torch.npu.set_stream(None)
    assert torch.npu.current_stream() == a
    torch.npu.set_stream(default)
    with a:
        assert torch.npu.current_stream() == a
    assert torch.npu.current_stream() == default
    assert isinstance(torch.npu.stream(a), torch.npu.StreamContext)


def test_one_context_may_be_entered_again():
    stream = torch.npu.Stream()
    context = torch.npu.stream(stream)
    for _ in range(2):
        with context:
            assert torch.npu.current_stream() == stream
    assert torch.npu.current_stream() == torch.npu.default_stream()


def test_generic_streams_and_events():
    stream = torch.Stream("npu")
    assert stream.device == torch.device("npu:0")
    assert stream.query()
    stream.synchronize()
    torch.accelerator.set_stream(stream)
    assert torch.npu.current_stream() == stream == torch.accelerator.current_stream()
    torch.accelerator.set_stream(torch.npu.default_stream())
    start, end = torch.Event("npu", enable_timing=True), torch.Event("npu", enable_timing=True)
    start.record(stream)
    end.record(stream)
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    assert end.query()
    assert (
        stream.native_handle
        == torch.npu.Stream(stream_id=stream.stream_id, device_index=0, device_type=stream.device_type).npu_stream
    )


def test_current_stream_is_per_thread():
    mine = torch.npu.Stream()
    seen = []

    def work():
        seen.append(torch.npu.current_stream() == torch.npu.default_stream())
        with torch.npu.stream(torch.npu.Stream()):
            seen.append(torch.npu.current_stream() != mine)

    with torch.npu.stream(mine):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert torch.npu.current_stream() == mine
    assert seen == [True, True]


def test_work_on_streams_and_waiting():
    a, b = torch.npu.Stream(), torch.npu.Stream()
    with torch.npu.stream(a):
        x = torch.full((256,), 3.0, device="npu")
    b.wait_stream(a)
    with torch.npu.stream(b):
        y = x * 2
        x.record_stream(b)
    event = b.record_event()
    torch.npu.current_stream().wait_event(event)
    assert (y + 1).sum().item() == 7 * 256
    event.synchronize()
    b.synchronize()
    assert a.query()
    assert b.query()
    assert event.query()


def test_event_life():
    event = torch.npu.Event()
    assert isinstance(event, torch.Event)
    assert event.npu_event == 0
    assert "uninitialized" in repr(event)
    assert event.query(), "an event that was never recorded is complete"
    event.synchronize()
    event.wait()
    event.record()
    assert event.npu_event != 0
    assert f"{event.npu_event:#x}" in repr(event)
    assert event._as_parameter_.value == event.npu_event
    event.record(torch.npu.Stream())
    del event
    gc.collect()


def test_elapsed_time():
    start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    start.record()
    x = torch.ones(64, 64, device="npu")
    x @ x
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) > 0
    assert end.recorded_time() >= start.recorded_time()
    with pytest.raises(TypeError, match=r"expected a torch.Event"):
        start.elapsed_time(1.0)


def test_elapsed_time_needs_timing():
    start, end = torch.npu.Event(), torch.npu.Event(enable_timing=True)
    start.record()
    end.record()
    with pytest.raises(Exception, match="enable_timing=True"):
        start.elapsed_time(end)


def test_unrecorded_events_have_no_time():
    start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(Exception, match=r"[Bb]oth events must be recorded"):
        start.elapsed_time(end)
    with pytest.raises(RuntimeError, match="must be recorded"):
        start.recorded_time()


def test_interprocess_events_are_refused():
    with pytest.raises(NotImplementedError, match="interprocess=False"):
        torch.npu.Event(interprocess=True)


def test_blocking_events():
    event = torch.npu.Event(blocking=True)
    event.record()
    event.synchronize()
    assert event.query()


@pytest.fixture
def aclrt_stream():
    """A stream that other code owns."""
    stream = ctypes.c_void_p()
    assert torch.npu.npurt().npuStreamCreate(ctypes.addressof(stream)) == 0
    yield stream.value
    assert torch.npu.npurt().npuStreamDestroy(stream.value) == 0


def test_external_streams(aclrt_stream):
    stream = torch.npu.ExternalStream(aclrt_stream)
    assert isinstance(stream, torch.npu.Stream)
    assert isinstance(stream, torch.npu.ExternalStream)
    assert stream.npu_stream == aclrt_stream
    assert stream.device == torch.device("npu:0")
    assert stream.priority == 0
    assert stream == torch.npu.ExternalStream(aclrt_stream, "npu:0")
    with torch.npu.stream(stream):
        assert torch.npu.current_stream().npu_stream == aclrt_stream
        y = torch.ones(10, device="npu") + 1
    event = stream.record_event()
    torch.npu.current_stream().wait_event(event)
    assert y.sum().item() == 20
    with pytest.raises(ValueError, match="null pointer"):
        torch.npu.ExternalStream(0)


def test_external_streams_are_neither_asked_nor_waited_for(aclrt_stream, monkeypatch):
    stream = torch.npu.ExternalStream(aclrt_stream)
    with pytest.raises(RuntimeError, match=r"Cannot query the external stream .* query that"):
        stream.query()
    with pytest.raises(RuntimeError, match=r"NPUStream::synchronize does not wait for the external stream .* for that"):
        stream.synchronize()
    monkeypatch.setenv("PER_STREAM_QUEUE", "1")
    with pytest.raises(RuntimeError, match=r"not supported in NPUStream::stream\(\)"):
        stream.npu_stream  # noqa: B018
    monkeypatch.setenv("TASK_QUEUE_ENABLE", "0")
    assert stream.npu_stream == aclrt_stream


def test_names_of_the_vendors_c_functions():
    from torch_npu import _C

    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        assert _C._npu_getCurrentRawStream(0) == _C._npu_getCurrentRawStreamNoWait(0) == stream.npu_stream
    assert _C._npu_getDeviceCount() == torch.npu.device_count()
    assert _C._npu_getDevice() == torch.npu.current_device()
    assert _C._npu_get_soc_version() == torch.npu.get_soc_version()
    assert _C._npu_getOption("ALLOW_INTERNAL_FORMAT") == b"enable"
    assert _C._npu_getOption("ALLOW_MATMUL_HF32") == (b"enable" if torch.npu.matmul.allow_hf32 else b"disable")
    assert _C._npu_getOption("NOTHING") is None


def test_many_events():
    events = [torch.npu.Event() for _ in range(5000)]
    for event in events:
        event.record()
    torch.npu.synchronize()
    assert all(event.query() for event in events)


def test_streams_keep_their_order_when_work_is_asynchronous(run_python):
    run_python(
        """
        import torch
        a, b = torch.npu.Stream(), torch.npu.Stream()
        for _ in range(5):
            with torch.npu.stream(a):
                x = torch.ones(1000, device="npu")
                for _ in range(10):
                    x = x + 1
                event = a.record_event()
            with torch.npu.stream(b):
                b.wait_event(event)
                y = x * 2
            b.synchronize()
            assert torch.equal(y.cpu(), torch.full((1000,), 22.0))
        torch.npu.synchronize()
        """,
        CANN_HOST_ASYNC="1",
        CANN_HOST_DELAY_US="200",
    )


def test_an_unfinished_stream_says_so(run_python):
    run_python(
        """
        import torch
        x = torch.ones(10, device="npu")
        s = torch.npu.Stream()
        torch.npu.synchronize()
        event = torch.npu.Event()
        with torch.npu.stream(s):
            y = x + 1
            event.record()
        assert not s.query() and not event.query()
        event.synchronize()
        assert event.query()
        s.synchronize()
        assert s.query()
        """,
        CANN_HOST_ASYNC="1",
        CANN_HOST_DELAY_US="300000",
    )


def test_the_end_of_the_process_waits_for_queued_work(run_python):
    result = run_python(
        """
        import torch
        x = torch.ones(10, device="npu")
        for _ in range(5):
            x = x + 1
        """,
        CANN_HOST_ASYNC="1",
        CANN_HOST_DELAY_US="20000",
    )
    assert result.stderr == ""
