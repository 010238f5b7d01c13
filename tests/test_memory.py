"""torch.npu's memory functions, torch.accelerator's, out-of-memory behaviour and pinned memory."""

import gc
import os
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

import torch_npu  # noqa: F401

KiB = 1024
MiB = 1024 * KiB
# Gets a segment of its own, whatever is alive in the process: no hole in a segment of smaller blocks holds it.
OWN_SEGMENT = 64 * MiB

# The parts of the keys that torch.cuda.memory_stats documents.
POOL_METRICS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
SINGLE_METRICS = ("oversize_allocations", "oversize_segments")
KINDS = ("current", "peak", "allocated", "freed")
COUNTERS = (
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "num_oom_rejections",
    "max_split_size",
)


def empty(nbytes: int, device: str = "npu") -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.int8, device=device)


def run_python(code: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env={**os.environ, **env}, capture_output=True, text=True
    )


@pytest.fixture(autouse=True)
def _fresh_cache():
    """Blocks that earlier tests left in the pool would serve the allocations that are counted here."""
    torch.npu.init()
    gc.collect()
    torch.npu.empty_cache()
    torch.npu.reset_peak_memory_stats()
    yield
    torch.npu.memory._set_allocator_settings("")
    torch.npu.set_per_process_memory_fraction(1.0)


def test_stats_have_the_keys_of_torch_cuda():
    expected = {f"{m}.{p}.{k}" for m in POOL_METRICS for p in ("all", "large_pool", "small_pool") for k in KINDS}
    expected |= {f"{m}.{k}" for m in SINGLE_METRICS for k in KINDS} | set(COUNTERS)
    stats = torch.npu.memory_stats()
    of_pools = {key for key in stats if key.startswith("reserved_bytes_by_private_pools.")}  # if there were any
    assert set(stats) - of_pools == expected
    assert list(stats) == sorted(stats)
    assert all(isinstance(value, int) for value in stats.values())


def test_allocated_and_reserved():
    before = torch.npu.memory_allocated()
    a = empty(1000)
    assert torch.npu.memory_allocated() - before == 1536  # 1000 + 32 bytes, in steps of 512
    b = empty(OWN_SEGMENT)
    assert torch.npu.memory_allocated() - before == 1536 + OWN_SEGMENT + 512
    assert torch.npu.max_memory_allocated() == torch.npu.memory_allocated()
    reserved = torch.npu.memory_reserved()
    assert reserved > OWN_SEGMENT
    del a, b
    assert torch.npu.memory_allocated() == before
    assert torch.npu.max_memory_allocated() - before == 1536 + OWN_SEGMENT + 512
    assert torch.npu.memory_reserved() == reserved
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() <= reserved - OWN_SEGMENT
    assert torch.npu.max_memory_reserved() >= reserved
    torch.npu.reset_peak_memory_stats()
    assert torch.npu.max_memory_allocated() == torch.npu.memory_allocated()


def test_requested_bytes_are_those_of_the_tensor():
    before = torch.npu.memory_stats()["requested_bytes.all.current"]
    a = empty(1001)
    assert torch.npu.memory_stats()["requested_bytes.all.current"] - before == 1001
    del a


def test_reset_accumulated_stats():
    empty(100)
    assert torch.npu.memory_stats()["allocation.all.allocated"] > 0
    torch.npu.reset_accumulated_memory_stats()
    assert torch.npu.memory_stats()["allocation.all.allocated"] == 0
    assert torch.npu.memory_stats()["num_device_alloc"] == 0


def test_snapshot_agrees_with_stats():
    tensors = [empty(size) for size in (10, 5000, 2 * MiB, 15 * MiB, 700 * KiB)]
    del tensors[1], tensors[1]
    expected: dict[str, int] = {}
    for segment in torch.npu.memory_snapshot():
        pool = segment["segment_type"] + "_pool"
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            address += block["size"]
        assert address == segment["address"] + segment["total_size"]
        active = [b for b in segment["blocks"] if b["state"].startswith("active_")]
        inactive = [b for b in segment["blocks"] if b["state"] == "inactive" and len(segment["blocks"]) > 1]
        for name in ("all", pool):
            for metric, amount in (
                ("segment", 1),
                ("reserved_bytes", segment["total_size"]),
                ("allocated_bytes", segment["allocated_size"]),
                ("active_bytes", segment["active_size"]),
                ("requested_bytes", segment["requested_size"]),
                ("active", len(active)),
                ("inactive_split", len(inactive)),
                ("inactive_split_bytes", sum(b["size"] for b in inactive)),
            ):
                key = f"{metric}.{name}.current"
                expected[key] = expected.get(key, 0) + amount
    stats = torch.npu.memory_stats()
    assert {key: stats[key] for key in expected} == expected


def test_summary():
    summary = torch.npu.memory_summary()
    assert "PyTorch NPU memory summary, device ID 0" in summary
    assert "from large pool" in summary
    assert "from large pool" not in torch.npu.memory_summary(abbreviated=True)
    assert {len(line) for line in summary.splitlines()} == {77}


def test_deprecated_names():
    with pytest.warns(DeprecationWarning, match="renamed to torch.npu.memory_reserved"):
        assert torch.npu.memory_cached() == torch.npu.memory_reserved()
    with pytest.warns(DeprecationWarning, match="renamed to torch.npu.max_memory_reserved"):
        assert torch.npu.max_memory_cached() == torch.npu.max_memory_reserved()
    for reset in (torch.npu.reset_max_memory_allocated, torch.npu.reset_max_memory_cached):
        with pytest.warns(DeprecationWarning, match="resets /all/ peak"):
            reset()


def test_accelerator_api():
    tensor = empty(MiB)
    assert torch.accelerator.memory_allocated() == torch.npu.memory_allocated()
    assert torch.accelerator.max_memory_allocated() == torch.npu.max_memory_allocated()
    assert torch.accelerator.memory_reserved() == torch.npu.memory_reserved()
    assert torch.accelerator.max_memory_reserved() == torch.npu.max_memory_reserved()
    assert torch.accelerator.get_memory_info() == torch.npu.mem_get_info()
    assert torch.accelerator.memory_stats()["requested_bytes.all.current"] >= MiB
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()
    del tensor
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()


def test_free_memory_shrinks_by_what_is_reserved():
    free, total = torch.npu.mem_get_info()
    tensor = empty(64 * MiB)
    assert torch.npu.mem_get_info()[1] == total
    assert free - torch.npu.mem_get_info()[0] >= 64 * MiB
    del tensor
    torch.npu.empty_cache()
    assert torch.npu.mem_get_info()[0] >= free


def test_caching_allocator_alloc():
    before = torch.npu.memory_allocated()
    address = torch.npu.caching_allocator_alloc(5000)
    assert address % 512 == 0
    assert torch.npu.memory_allocated() > before
    torch.npu.caching_allocator_delete(address)
    assert torch.npu.memory_allocated() == before
    with pytest.raises(RuntimeError, match="was not allocated by caching_allocator_alloc"):
        torch.npu.caching_allocator_delete(address)
    stream = torch.npu.Stream()
    for argument in (stream, stream.npu_stream):
        torch.npu.caching_allocator_delete(torch.npu.caching_allocator_alloc(10, "npu:0", argument))
    with pytest.raises(TypeError, match="Invalid type for stream argument"):
        torch.npu.caching_allocator_alloc(10, stream="default")


def test_out_of_memory():
    tensor = torch.zeros(1024, device="npu")
    total = torch.npu.mem_get_info()[1]
    ooms = torch.npu.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError, match=r"NPU out of memory\. Tried to allocate .* Device 0 has a total"):
        empty(2 * total)
    with pytest.raises(RuntimeError, match=r"Tried to allocate 800000000\.00 GiB"):
        empty(1024**3 * 800_000_000)
    with pytest.raises(RuntimeError, match="Tried to allocate more than 1EB memory"):
        empty(1024**3 * 8_000_000_000)
    assert torch.npu.memory_stats()["num_ooms"] == ooms + 3
    tensor.fill_(1)
    assert (tensor.cpu() == 1).all()
    assert empty(MiB).numel() == MiB


def test_memory_fraction():
    total = torch.npu.mem_get_info()[1]
    torch.npu.set_per_process_memory_fraction(0.5, 0)
    assert torch.npu.get_per_process_memory_fraction() == 0.5
    below = empty(int(total * 0.499) - torch.npu.memory_reserved())
    del below
    with pytest.raises(torch.OutOfMemoryError, match=r"memory fraction 0\.5"):
        empty(total // 2)
    with pytest.raises(TypeError, match="Invalid type"):
        torch.npu.set_per_process_memory_fraction(1)
    for bad in (-0.1, 2.0):
        with pytest.raises(ValueError, match="Invalid fraction value"):
            torch.npu.set_per_process_memory_fraction(bad)


def test_settings_by_environment():
    result = run_python("""
        import os, pytest, torch, torch_npu

        def refused(message, key, value):
            os.environ[key] = value
            with pytest.raises(ValueError, match=message):
                torch.npu.caching_allocator_alloc(100)

        npu = "PYTORCH_NPU_ALLOC_CONF"
        refused("unknown key 'max_split_size'. Known keys: expandable_segments", npu, "max_split_size:1")
        refused("must be a number from 0 to 1, but got '2.0'", npu, "per_process_memory_fraction:2.0")
        refused("are both set and differ", "PYTORCH_ALLOC_CONF", "max_split_size_mb:40")
        del os.environ["PYTORCH_ALLOC_CONF"]
        os.environ[npu] = "roundup_power2_divisions:4"
        torch.npu.caching_allocator_alloc(65 << 20)
        assert torch.npu.memory_allocated() == 80 << 20
    """)
    assert result.returncode == 0, result.stderr


def test_settings_at_run_time():
    with pytest.raises(ValueError, match="max_split_size_mb must be a number from 21"):
        torch.npu.memory._set_allocator_settings("max_split_size_mb:20")
    torch.npu.memory._set_allocator_settings("max_split_size_mb:50")
    assert torch.npu.memory_stats()["max_split_size"] == 50 * MiB


def test_expandable_segments():
    torch.npu.memory._set_allocator_settings("expandable_segments:True")
    before = torch.npu.memory_reserved()
    first = empty(50 * MiB)
    address = first.data_ptr()
    assert torch.npu.memory_reserved() - before == 60 * MiB  # chunks of 20 MiB
    del first
    second = empty(110 * MiB)  # grows where the first one was
    assert second.data_ptr() == address
    assert torch.npu.memory_reserved() - before == 120 * MiB
    assert any(s["is_expandable"] and s["total_size"] == 120 * MiB for s in torch.npu.memory_snapshot())
    del second
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() == before
    with pytest.raises(ValueError, match="excludes max_split_size_mb"):
        torch.npu.memory._set_allocator_settings("expandable_segments:True,max_split_size_mb:30")


def test_memory_is_reused_in_order_of_its_stream():
    side = torch.npu.Stream()
    first = torch.npu.caching_allocator_alloc(5000)
    torch.npu.caching_allocator_delete(first)
    other = torch.npu.caching_allocator_alloc(5000, stream=side)
    again = torch.npu.caching_allocator_alloc(5000)
    assert again == first
    assert other != first
    torch.npu.caching_allocator_delete(other)
    torch.npu.caching_allocator_delete(again)


def test_record_stream():
    side = torch.npu.Stream()
    tensor = empty(MiB)
    tensor.record_stream(side)
    tensor.record_stream(torch.npu.current_stream())
    before = torch.npu.memory_stats()["active.all.current"]
    del tensor
    torch.npu.synchronize()
    torch.npu.empty_cache()
    assert torch.npu.memory_stats()["active.all.current"] == before - 1


def test_memory_in_use_by_another_stream_is_not_reused():
    result = run_python(
        """
        import torch, torch_npu
        side = torch.npu.Stream()
        x = torch.ones(1 << 20, device="npu")
        address = x.data_ptr()
        torch.npu.synchronize()
        with torch.npu.stream(side):
            y = x + 1  # still queued below
        x.record_stream(side)
        del x
        z = torch.empty(1 << 20, device="npu")
        assert z.data_ptr() != address
        z.fill_(5)
        torch.npu.synchronize()
        assert (y.cpu() == 2).all()
        again = torch.empty(1 << 20, device="npu")
        assert again.data_ptr() == address
        """,
        CANN_HOST_ASYNC="1",
        CANN_HOST_DELAY_US="20000",
    )
    assert result.returncode == 0, result.stderr


def test_profiler_sees_memory():
    with torch.profiler.profile(profile_memory=True) as profile:
        tensor = empty(3 * MiB)
        del tensor
    assert sum(event.self_device_memory_usage for event in profile.events()) == 0
    assert any(event.self_device_memory_usage == 3 * MiB + 512 for event in profile.events())


def test_threads():
    before = torch.npu.memory_allocated()
    failures = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        live: list[int] = []
        try:
            for size in torch.randint(1, 4 * MiB, (2000,), generator=generator).tolist():
                live.append(torch.npu.caching_allocator_alloc(size))
                if len(live) > 20:
                    torch.npu.caching_allocator_delete(live.pop(size % 20))
            for address in live:
                torch.npu.caching_allocator_delete(address)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert torch.npu.memory_allocated() == before


def test_nothing_is_initialised_by_asking():
    result = run_python("""
        import torch, torch_npu
        assert torch.npu.memory_allocated() == 0
        assert torch.npu.memory_stats() == {} and torch.npu.memory_snapshot() == []
        torch.npu.empty_cache(), torch.npu.host_empty_cache(), torch.accelerator.empty_cache()
        assert torch.accelerator.memory_allocated() == 0
        assert not torch.npu.is_initialized()
    """)
    assert result.returncode == 0, result.stderr


def test_pinned_memory():
    source = torch.arange(1000.0)
    pinned = source.pin_memory()
    assert pinned.is_pinned()
    assert not source.is_pinned()
    assert torch.equal(pinned, source)
    assert torch.equal(pinned.to("npu", non_blocking=True).cpu(), source)
    address = pinned.data_ptr()
    torch.npu.synchronize()
    del pinned
    again = torch.empty(1000).pin_memory()
    assert again.data_ptr() == address
    assert torch.empty(10, pin_memory=True).is_pinned()
    assert torch.empty(0, pin_memory=True).numel() == 0


def test_host_memory_stats():
    torch.npu.host_empty_cache()
    before = torch.npu.host_memory_stats()
    pinned = torch.empty(3000, dtype=torch.int8, pin_memory=True)
    stats = torch.npu.host_memory_stats()
    assert stats["active_bytes.current"] - before["active_bytes.current"] == 4096
    assert stats["num_host_alloc"] == before["num_host_alloc"] + 1
    assert stats["host_alloc_time.count"] == before["host_alloc_time.count"] + 1
    del pinned
    torch.npu.host_empty_cache()
    assert torch.npu.host_memory_stats()["allocated_bytes.current"] == before["allocated_bytes.current"]
    torch.npu.reset_peak_host_memory_stats()
    torch.npu.reset_accumulated_host_memory_stats()
    assert torch.npu.host_memory_stats()["num_host_alloc"] == 0


@pytest.fixture
def recorded():
    def record(*args, **kwargs) -> None:
        torch.npu.memory._record_memory_history(*args, clear_history=True, **kwargs)

    yield record
    torch.npu.memory._record_memory_history(None)


def allocate_here(nbytes: int) -> torch.Tensor:
    return empty(nbytes)


def free_here(tensors: list[torch.Tensor]) -> None:
    tensors.clear()


def test_history_has_call_stacks(recorded):
    recorded(stacks="python")
    tensors = [allocate_here(OWN_SEGMENT)]
    address = tensors[0].data_ptr()
    free_here(tensors)
    torch.npu.empty_cache()
    events = torch.npu.memory._snapshot()["device_traces"][0]
    assert [e["action"] for e in events] == [
        "segment_alloc",
        "alloc",
        "free_requested",
        "free_completed",
        "segment_free",
    ]
    alloc, free = events[1], events[2]
    assert (alloc["addr"], alloc["size"]) == (free["addr"], free["size"]) == (address, OWN_SEGMENT)
    assert "allocate_here" in [frame["name"] for frame in alloc["frames"]]
    assert any(frame["filename"] == __file__ for frame in alloc["frames"])
    assert "free_here" in [frame["name"] for frame in free["frames"]]
    assert 0 <= free["time_us"] - alloc["time_us"] < 60e6


@pytest.mark.parametrize("context", ["state", "alloc", "all", None])
def test_history_contexts(recorded, context):
    recorded(context=context, stacks="python")
    tensors = [allocate_here(100)]
    live = str(torch.npu.memory._snapshot()["segments"])
    free_here(tensors)
    past = str(torch.npu.memory._snapshot()["device_traces"])
    assert ("allocate_here" in live) == (context is not None)
    assert ("allocate_here" in past) == (context in ("alloc", "all"))
    assert ("free_here" in past) == (context == "all")


def test_history_with_cpp_frames(recorded):
    recorded("state", stacks="all")
    tensor = empty(12345)
    blocks = [b for s in torch.npu.memory._snapshot()["segments"] for b in s["blocks"] if b["requested_size"] == 12345]
    assert "at::" in str(blocks[0]["frames"])
    del tensor


def test_history_keeps_the_last_events(recorded):
    recorded(context=None, max_entries=3)
    for size in range(1, 11):
        empty(size)
    events = torch.npu.memory._snapshot()["device_traces"][0]
    assert [(e["action"], e["size"]) for e in events] == [("alloc", 10), ("free_requested", 10), ("free_completed", 10)]
    recorded(context=None, skip_actions=["free_requested", "free_completed", "segment_alloc", "snapshot"])
    empty(1)
    empty(2)
    events = torch.npu.memory._snapshot()["device_traces"][0]
    assert [(e["action"], e["size"]) for e in events] == [("alloc", 1), ("alloc", 2)]


def test_history_of_out_of_memory(recorded):
    recorded(context=None)
    free, total = torch.npu.mem_get_info()
    with pytest.raises(torch.OutOfMemoryError):
        empty(2 * total)
    event = torch.npu.memory._snapshot()["device_traces"][0][-1]
    assert (event["action"], event["size"], event["device_free"]) == ("oom", 2 * total, free)


def test_history_arguments():
    for arguments in ({"enabled": "yes"}, {"context": "some"}, {"stacks": "cpp"}, {"max_entries": 0}):
        with pytest.raises(ValueError, match=r"expected|max_entries"):
            torch.npu.memory._record_memory_history(**arguments)


def test_snapshot_feeds_the_visualiser(recorded, tmp_path):
    from torch.cuda._memory_viz import segment_plot, trace_plot

    recorded(stacks="python")
    tensor = allocate_here(5000)
    snapshot = torch.npu.memory._snapshot()
    assert len(trace_plot(snapshot)) > 1000
    assert len(segment_plot(snapshot)) > 1000
    torch.npu.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    assert (tmp_path / "snapshot.pickle").stat().st_size > 1000
    del tensor


def test_allocator_backend():
    assert torch.npu.get_allocator_backend() == "native"
