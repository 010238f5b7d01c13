"""torch.npu.MemPool and torch.npu.use_mem_pool. Every test allocates in a pool of its own, so none sees another's."""

import threading

import pytest
import torch

import torch_npu  # noqa: F401

KiB = 1024
MiB = 1024 * KiB


@pytest.fixture(autouse=True, scope="module")
def _initialised():
    torch.npu.init()


def empty(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.int8, device="npu")


def reserved(pool: torch.npu.MemPool) -> int:
    return sum(segment["total_size"] for segment in pool.snapshot())


def is_in(tensor: torch.Tensor, pool: torch.npu.MemPool) -> bool:
    address = tensor.data_ptr()
    return any(s["address"] <= address < s["address"] + s["total_size"] for s in pool.snapshot())


def test_names():
    assert torch.npu.MemPool is torch.npu.memory.MemPool
    assert torch.npu.use_mem_pool is torch.npu.memory.use_mem_pool


def test_tensors_made_inside_are_in_the_pool():
    pool, other = torch.npu.MemPool(), torch.npu.MemPool()
    assert pool.id != other.id
    assert pool.id[0] == 0
    before = empty(1000)
    with torch.npu.use_mem_pool(pool):
        inside = empty(1000)
        large = torch.randn(700, 700, device="npu")
        product = large @ large
    after = empty(1000)
    assert [is_in(t, pool) for t in (before, inside, large, product, after)] == [False, True, True, True, False]
    assert {segment["segment_pool_id"] for segment in pool.snapshot()} == {pool.id}
    assert other.snapshot() == []
    of_all = torch.npu.memory_snapshot()
    assert (
        [s for s in of_all if s["segment_pool_id"] == pool.id] == pool.snapshot() == torch.npu.memory_snapshot(pool.id)
    )


def test_use_count():
    pool = torch.npu.MemPool()
    assert pool.use_count() == 1
    with torch.npu.use_mem_pool(pool):
        assert pool.use_count() == 2
        with torch.npu.use_mem_pool(pool):
            assert pool.use_count() == 3
    assert pool.use_count() == 1


def test_a_pool_keeps_its_memory_until_it_goes():
    pool = torch.npu.MemPool()
    with torch.npu.use_mem_pool(pool):
        tensor = empty(64 * MiB)
    address = tensor.data_ptr()
    key = f"reserved_bytes_by_private_pools.{pool.id[0]}_{pool.id[1]}.all.current"
    held = reserved(pool)
    assert held >= 64 * MiB
    del tensor
    torch.npu.empty_cache()
    assert torch.npu.memory_stats()[key] == reserved(pool) == held
    with torch.npu.use_mem_pool(pool):
        tensor = empty(64 * MiB)
    assert tensor.data_ptr() == address
    del tensor
    total = torch.npu.memory_reserved()
    del pool
    assert torch.npu.memory_reserved() == total - held
    assert torch.npu.memory_stats()[key] == 0


def test_tensors_outlive_their_pool():
    pool = torch.npu.MemPool()
    with torch.npu.use_mem_pool(pool):
        kept = torch.arange(5 * MiB, device="npu", dtype=torch.int32)
        empty(64 * MiB)
    pool_id = pool.id
    before = torch.npu.memory_reserved()
    del pool
    assert torch.npu.memory_reserved() <= before - 64 * MiB
    assert len(torch.npu.memory_snapshot(pool_id)) == 1
    assert kept.sum().item() == sum(range(5 * MiB))
    del kept
    torch.npu.empty_cache()
    assert torch.npu.memory_snapshot(pool_id) == []


def test_blocks_nest():
    outer, inner = torch.npu.MemPool(), torch.npu.MemPool()
    with torch.npu.use_mem_pool(outer):
        first = empty(100)
        with torch.npu.use_mem_pool(inner):
            second = empty(100)
        third = empty(100)
    assert [is_in(t, outer) for t in (first, second, third)] == [True, False, True]
    assert is_in(second, inner)


def test_an_error_inside_ends_the_block():
    pool = torch.npu.MemPool()
    with pytest.raises(ZeroDivisionError), torch.npu.use_mem_pool(pool):
        empty(1 // 0)
    assert pool.use_count() == 1
    assert not is_in(empty(100), pool)


def test_other_threads_are_not_concerned():
    pool = torch.npu.MemPool()
    found = {}

    def work() -> None:
        found["thread"] = is_in(empty(100), pool)

    with torch.npu.use_mem_pool(pool):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        found["here"] = is_in(empty(100), pool)
    assert found == {"thread": False, "here": True}


def test_many_threads_in_one_pool():
    pool = torch.npu.MemPool()
    failures = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        try:
            for size in torch.randint(1, 2 * MiB, (100,), generator=generator).tolist():
                with torch.npu.use_mem_pool(pool):
                    tensor = torch.full((size,), seed, dtype=torch.int8, device="npu")
                assert (tensor == seed).all()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert pool.use_count() == 1


def test_streams_in_a_pool():
    pool, side = torch.npu.MemPool(), torch.npu.Stream()
    with torch.npu.use_mem_pool(pool):
        a = empty(1000)
        with torch.npu.stream(side):
            b = empty(1000)
    streams = {segment["stream"] for segment in pool.snapshot()}
    assert streams == {torch.npu.current_stream().npu_stream, side.npu_stream}
    del a, b


@pytest.mark.parametrize("own_thread", [True, False])
def test_training_in_a_pool(own_thread):
    def losses(device: str) -> list[float]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(33, 65), torch.nn.GELU(), torch.nn.Linear(65, 7)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        inputs, targets = torch.randn(13, 33).to(device), torch.randn(13, 7).to(device)
        history = []
        for _ in range(5):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.item())
        gradients.append(model[0].weight.grad)
        return history

    gradients: list[torch.Tensor] = []
    pool = torch.npu.MemPool()
    with torch.npu.use_mem_pool(pool), torch.autograd.set_multithreading_enabled(not own_thread):
        history = losses("npu")
    torch.testing.assert_close(history, losses("cpu"), rtol=1e-5, atol=1e-6)
    if own_thread:
        assert is_in(gradients[0], pool)


def test_a_pool_helps_out_when_the_device_is_full(run_python):
    run_python(
        """
        import pytest, torch, torch_npu
        def empty(mib):
            return torch.empty(mib << 20, dtype=torch.int8, device="npu")
        pool, other = torch.npu.MemPool(use_on_oom=True), torch.npu.MemPool()
        for each in (pool, other):
            with torch.npu.use_mem_pool(each):
                empty(100)
        tensor = empty(90)
        assert torch.npu.memory_reserved() < 256 << 20
        assert any(s["address"] == tensor.data_ptr() for s in pool.snapshot())
        with pytest.raises(torch.OutOfMemoryError):
            empty(90)
        """,
        CANN_HOST_MEMORY="256M",
    )


def test_segments_are_not_split_if_asked():
    pool = torch.npu.MemPool(no_split=True)
    with torch.npu.use_mem_pool(pool):
        tensors = [empty(size) for size in (100, 200, 3 * MiB, 5 * MiB)]
    assert [len(segment["blocks"]) for segment in pool.snapshot()] == [1, 1, 1, 1]
    del tensors


def test_history_names_the_pool():
    pool = torch.npu.MemPool()
    torch.npu.memory._record_memory_history(context=None, clear_history=True)
    try:
        with torch.npu.use_mem_pool(pool):
            empty(12345)
        empty(54321)
        events = torch.npu.memory._snapshot()["device_traces"][0]
    finally:
        torch.npu.memory._record_memory_history(None)
    pools = {e["size"]: e["pool_id"] for e in events if e["action"] == "alloc"}
    assert pools == {12345: pool.id, 54321: (0, 0)}


def test_other_devices(run_python):
    run_python(
        """
        import torch, torch_npu
        pool = torch.npu.MemPool()
        with torch.npu.use_mem_pool(pool, device=1):
            first, second = torch.empty(100, device="npu:0"), torch.empty(100, device="npu:1")
        assert [s["device"] for s in pool.snapshot()] == [1]
        assert pool.use_count() == 1
        """,
        CANN_HOST_DEVICES="2",
    )


def test_a_forked_child_is_refused(run_python):
    run_python("""
        import os, torch, torch_npu
        torch.npu.MemPool()
        child = os.fork()
        if child == 0:
            try:
                torch.npu.MemPool()
            except RuntimeError as error:
                os._exit(0 if "fork" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """)
