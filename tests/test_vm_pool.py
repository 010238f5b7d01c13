"""torch_npu.VMMemoryPool. A pool serves the whole device, so a test closes its pool or has a process of its own."""

import gc
import threading

import pytest
import torch

import torch_npu

MiB = 1024 * 1024
PAGE = 2 * MiB


def empty(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.int8, device="npu")


@pytest.fixture
def pool():
    pool = torch_npu.VMMemoryPool(size_gb=4)
    yield pool
    gc.collect()
    pool.close()


def test_tensors_are_pieces_of_one_range(pool):
    stats = pool.stats()
    assert (stats.size, stats.mapped, stats.in_use, stats.live, stats.fragmentation) == (4 << 30, 0, 0, 0, 0.0)
    first, second = empty(6 * MiB - 32), empty(10 * MiB - 32)
    small = empty(1000)
    assert [pool.offset(t) for t in (first, second, small)] == [0, 6 * MiB, (4 << 30) - PAGE]
    assert pool.offset(first[100:]) == 0
    stats = pool.stats()
    assert (stats.mapped, stats.in_use, stats.live) == (18 * MiB, 16 * MiB + 1536, 3)
    assert (stats.allocations, stats.hits, stats.hit_rate) == (3, 0, 0.0)
    del first
    again = empty(6 * MiB - 32)
    assert pool.offset(again) == 0
    assert pool.stats().hits == 1
    del again, second
    stats = pool.stats()
    assert (stats.in_use, stats.peak_in_use, stats.mapped) == (1536, 16 * MiB + 1536, 18 * MiB)
    assert stats.free_mapped == 18 * MiB - 1536
    assert stats.fragmentation == pytest.approx(1 - 16 * MiB / stats.free_mapped)
    torch.npu.empty_cache()
    assert pool.stats().mapped == PAGE
    assert {segment["segment_pool_id"] for segment in torch.npu.memory_snapshot(pool.id)} == {pool.id}
    del small


def test_other_memory_is_not_in_the_pool():
    before = empty(1000)
    private = torch.npu.MemPool()
    with torch_npu.VMMemoryPool(size_gb=1) as pool:
        with torch.npu.use_mem_pool(private):
            elsewhere = empty(1000)
        for tensor in (before, elsewhere, torch.empty(10)):
            with pytest.raises(ValueError, match="is not in the VMMemoryPool"):
                pool.offset(tensor)
        assert pool.stats().live == 0
        assert "0 allocations" in repr(pool)
    assert repr(pool) == "VMMemoryPool(npu:0, closed)"


def test_pools_form_a_stack():
    with torch_npu.VMMemoryPool(1) as outer:
        with torch_npu.VMMemoryPool(1) as inner:
            tensor = empty(1000)
            assert (inner.stats().live, outer.stats().live) == (1, 0)
            assert torch_npu.VMMemoryPool.current() is inner
            del tensor
        assert torch_npu.VMMemoryPool.current("npu:0") is outer
        tensor = empty(1000)
        assert outer.stats().live == 1
        del tensor
    assert torch_npu.VMMemoryPool.current() is None
    reserved = torch.npu.memory_stats()[f"reserved_bytes_by_private_pools.{outer.id[0]}_{outer.id[1]}.all.current"]
    assert reserved == 0


def test_a_pool_with_live_tensors_stays_open():
    pool = torch_npu.VMMemoryPool(1)
    torch.npu.memory._record_memory_history("state", context="state", stacks="python")
    try:
        tensor = empty(12 * MiB - 32)
        with pytest.raises(RuntimeError, match=r"1 tensors live in the pool and have 12\.00 MiB") as refusal:
            pool.close()
    finally:
        torch.npu.memory._record_memory_history(None)
    assert "test_vm_pool.py" in str(refusal.value)
    assert " in empty" in str(refusal.value)
    assert not pool.closed
    assert (tensor.fill_(3) == 3).all()
    del tensor
    pool.close()
    pool.close()
    assert pool.closed
    for use in (pool.stats, pool.__enter__, lambda: pool.offset(torch.ones(1))):
        with pytest.raises(RuntimeError, match="is closed"):
            use()


def test_with_does_not_hide_an_error():
    kept = []

    def fail_inside() -> None:
        with pool:
            kept.append(empty(1000))
            raise ZeroDivisionError

    pool = torch_npu.VMMemoryPool(1)
    with pytest.warns(RuntimeWarning, match="1 tensors live"), pytest.raises(ZeroDivisionError):
        fail_inside()
    assert not pool.closed
    outside = empty(1000)  # the pool serves no longer
    assert pool.stats().live == 1
    kept.clear()
    pool.close()
    del outside


def test_arguments():
    for size in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="size_gb must be positive"):
            torch_npu.VMMemoryPool(size_gb=size)


def test_threads(pool):
    failures = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        live: list[torch.Tensor] = []
        try:
            for size in torch.randint(1, 3 * MiB, (150,), generator=generator).tolist():
                live.append(torch.full((size,), seed, dtype=torch.int8, device="npu"))
                if len(live) > 5:
                    assert (live.pop(size % 5) == seed).all()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert pool.stats().live == 0


def test_training_in_a_pool():
    """Backward runs on threads of autograd, whose tensors are in the pool too."""

    def train(device: str) -> list[float]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 15 * 9, 5)
        ).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for batch in (1, 7, 32, 2):
            inputs, labels = torch.randn(batch, 3, 17, 11).to(device), (torch.arange(batch) % 5).to(device)
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if device == "npu":
            assert all(isinstance(pool.offset(p.grad), int) for p in model.parameters())
        return losses

    with torch_npu.VMMemoryPool(size_gb=2) as pool:
        on_npu = train("npu")
        gc.collect()
    torch.testing.assert_close(on_npu, train("cpu"), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_more_addresses_than_memory(run_python):
    """size_gb=32 on a device of 256 MiB; the model runs with batch 1 and 32; the device's limit holds."""
    run_python(
        """
        import pytest, torch, torch_npu
        vmm_pool = torch_npu.VMMemoryPool(size_gb=32)
        model = torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.GELU(), torch.nn.Linear(500, 300)).to("npu")
        for batch in (1, 32):
            x = torch.randn(batch, 300)
            expected = model.to("cpu")(x)
            torch.testing.assert_close(model.to("npu")(x.to("npu")).cpu(), expected, rtol=1e-4, atol=1e-5)
        assert vmm_pool.stats().size == 32 << 30
        assert 0 < vmm_pool.stats().mapped < 64 << 20
        with pytest.raises(torch.OutOfMemoryError, match="total capacity of 256.00 MiB"):
            torch.empty(300 << 20, dtype=torch.int8, device="npu")
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 32.00 GiB"):
            torch_npu.VMMemoryPool(size_gb=32, preallocate=True)
        assert (torch.ones(1000, device="npu") == 1).all()
        """,
        CANN_HOST_MEMORY="256M",
    )


def test_preallocated(run_python):
    run_python(
        """
        import torch, torch_npu
        with torch_npu.VMMemoryPool(size_gb=0.25, preallocate=True) as pool:
            assert pool.stats().mapped == torch.npu.memory_reserved() == 256 << 20
            x = torch.ones(10 << 20, device="npu")
            y = x + x
            assert pool.stats().mapped == 256 << 20 and (y == 2).all()
            del x, y
            torch.npu.empty_cache()
            assert torch.npu.memory_reserved() == 256 << 20
        assert torch.npu.memory_reserved() == 0
        """,
    )


def test_a_full_pool_names_the_lines(run_python):
    run_python(
        """
        import pytest, torch, torch_npu
        torch.npu.memory._record_memory_history("state", context="state", stacks="python")
        pool = torch_npu.VMMemoryPool(size_gb=0.125)
        def activations():
            return [torch.empty(20 << 20, dtype=torch.int8, device="npu") for _ in range(5)]
        def weights():
            return torch.empty(1000, device="npu")
        held = activations(), weights()
        with pytest.raises(torch.OutOfMemoryError) as error:
            torch.empty(50 << 20, dtype=torch.int8, device="npu")
        message = str(error.value)
        assert "The VMMemoryPool in use has 128.00 MiB" in message, message
        first, second = message.split("Largest holders:")[1].split("\\n")[1:3]
        assert " in 5 allocations: " in first and "<string>" in first, message
        assert " in weights" in second and "_record_memory_history" not in message, message
        del held
        torch.empty(100 << 20, dtype=torch.int8, device="npu")
        """,
    )


def test_batches_of_random_sizes(run_python):
    """After each size was seen once, 300 more steps take nothing from the device."""
    run_python(
        """
        import random, torch, torch_npu
        random.seed(0)
        torch.manual_seed(0)
        torch.autograd.set_multithreading_enabled(False)
        pool = torch_npu.VMMemoryPool(size_gb=32)
        model = torch.nn.Sequential(torch.nn.Linear(200, 400), torch.nn.ReLU(), torch.nn.Linear(400, 100)).to("npu")
        def step(batch):
            model(torch.randn(batch, 200).to("npu")).square().mean().backward()
            model.zero_grad()
        for batch in range(32, 0, -1):
            step(batch)
        before = pool.stats()
        for _ in range(300):
            step(random.randint(1, 32))
        after = pool.stats()
        assert after.mapped == before.mapped
        assert after.hits - before.hits == after.allocations - before.allocations > 1000
        """,
    )


def test_record_stream_in_a_pool(run_python):
    run_python(
        """
        import torch, torch_npu
        with torch_npu.VMMemoryPool(size_gb=1):
            side = torch.npu.Stream()
            x = torch.ones(1 << 20, device="npu")
            address = x.data_ptr()
            torch.npu.synchronize()
            with torch.npu.stream(side):
                y = x + 1
            x.record_stream(side)
            del x
            z = torch.empty(1 << 20, device="npu")
            assert z.data_ptr() != address
            z.fill_(5)
            torch.npu.synchronize()
            assert (y.cpu() == 2).all()
            del y, z
        """,
        CANN_HOST_ASYNC="1",
        CANN_HOST_DELAY_US="20000",
    )


def test_other_devices(run_python):
    run_python(
        """
        import torch, torch_npu
        pool = torch_npu.VMMemoryPool(size_gb=1, device="npu:1")
        torch.ones(10, device="npu:0")
        assert pool.stats().allocations == 0
        x = torch.ones(10, device="npu:1")
        assert pool.stats().live == 1 and pool.device == x.device
        """,
        CANN_HOST_DEVICES="2",
    )


def test_a_forked_child_is_refused(run_python):
    run_python("""
        import os, torch, torch_npu
        torch.npu.init()
        child = os.fork()
        if child == 0:
            try:
                torch_npu.VMMemoryPool(1)
            except RuntimeError as error:
                os._exit(0 if "fork" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """)
