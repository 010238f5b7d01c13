"""Lifetimes under pressure: storages and views that outlive tensors, garbage cycles, threads, process end."""

import gc
import random
import threading

import pytest
import torch

ROUNDS = 60


def check_pattern(tensor: torch.Tensor, value: float) -> None:
    assert torch.equal(tensor.cpu(), torch.full(tensor.shape, value, dtype=tensor.dtype))


def test_random_lifetimes_never_mix_up_memory():
    """Every live tensor keeps its pattern while others of all sizes come and go by all ways that make tensors."""
    rng = random.Random(0)
    live: list[tuple[torch.Tensor, float]] = []
    makers = [
        lambda n, v: torch.full((n,), v, device="npu"),
        lambda n, v: torch.full((n,), v).npu(),
        lambda n, v: torch.special.bessel_j0(torch.zeros(n, device="npu")) * v,
        lambda n, v: torch.zeros(n * 2, device="npu").add_(v)[n:],
        lambda n, v: torch.zeros(0, device="npu").resize_(n).fill_(v),
        lambda n, v: torch.cat([torch.full((n - n // 2,), v, device="npu"), torch.full((n // 2,), v, device="npu")]),
        lambda n, v: torch.from_dlpack(torch.full((n,), v, device="npu")),
        lambda n, v: torch.empty(0, device="npu").set_(torch.full((n,), v, device="npu").untyped_storage()),
        lambda n, v: torch.full((n,), v, device="npu").flip(0).sort().values,
    ]
    for i in range(ROUNDS * len(makers)):
        value = float(i % 97)
        tensor = rng.choice(makers)(rng.choice([1, 3, 64, 1000, 70_000]), value)
        live.append((tensor, value))
        if len(live) > 30:
            victim = live.pop(rng.randrange(len(live)))
            check_pattern(*victim)
    for tensor, value in live:
        check_pattern(tensor, value)


def test_reference_cycles_are_collected():
    class Node:
        def __init__(self):
            self.tensor = torch.ones(1 << 14, device="npu", requires_grad=True)
            self.loss = (self.tensor * 2).sum()
            self.me = self

    gc.collect()
    before = torch.npu.memory_allocated()
    gc.disable()
    try:
        nodes = [Node() for _ in range(20)]
        for node in nodes:
            node.loss.backward()
        del nodes, node
        assert torch.npu.memory_allocated() > before
    finally:
        gc.enable()
    gc.collect()
    assert torch.npu.memory_allocated() == before


def test_python_attributes_survive_a_storage_round_trip():
    """The Python object of a tensor that only C++ holds must be kept alive (resurrection)."""
    x = torch.ones(2, device="npu", requires_grad=True)
    x.note = "mine"
    y = x * 2
    del x
    gc.collect()
    leaf = y.grad_fn.next_functions[0][0].variable
    assert leaf.note == "mine"


def test_memory_of_a_freed_tensor_is_not_read_by_pending_work():
    stream = torch.npu.Stream()
    for i in range(50):
        x = torch.full((50_000,), float(i), device="npu")
        stream.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(stream):
            y = x * 2
            x.record_stream(stream)
        del x
        torch.full((50_000,), -1.0, device="npu")
        stream.synchronize()
        check_pattern(y, 2.0 * i)


def test_threads_exchange_tensors_that_they_free():
    """A tensor made in one thread is used and freed in another."""
    import queue

    box: queue.Queue = queue.Queue(maxsize=8)
    wrong = []

    def consume():
        while (item := box.get()) is not None:
            tensor, value = item
            if not torch.equal((tensor + 1).cpu(), torch.full(tensor.shape, value + 1)):
                wrong.append(value)
            del tensor, item

    consumers = [threading.Thread(target=consume) for _ in range(4)]
    for thread in consumers:
        thread.start()
    for i in range(200):
        box.put((torch.full((1 + i * 7 % 3000,), float(i), device="npu"), float(i)))
    for _ in consumers:
        box.put(None)
    for thread in consumers:
        thread.join()
    assert wrong == []


@pytest.mark.slow
def test_memory_does_not_grow():
    """A training step allocates nothing that it does not free."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 36, 10),
    ).to("npu")
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        x, y = torch.randn(4, 3, 8, 8).npu(), torch.randint(0, 10, (4,)).npu()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(3):
        step()
    gc.collect()
    allocated, reserved = torch.npu.memory_allocated(), torch.npu.memory_reserved()
    for _ in range(50):
        step()
    gc.collect()
    assert torch.npu.memory_allocated() == allocated
    assert torch.npu.memory_reserved() <= reserved + (2 << 20)


def test_exit_with_everything_alive(run_python):
    """Interpreter shutdown with live tensors, streams, events, graphs of autograd, threads and pinned memory."""
    run_python("""
        import threading, torch
        x = torch.ones(1000, device="npu", requires_grad=True)
        y = (x * 2).sum()
        stream, event = torch.npu.Stream(), torch.npu.Event()
        event.record(stream)
        pinned = torch.ones(1000).pin_memory()
        copy = pinned.to("npu", non_blocking=True)
        sparse = torch.ones(3, 3, device="npu").to_sparse()
        host = x.detach().cpu()
        cycle = [x]
        cycle.append(cycle)
        class Late:
            def __del__(self):
                torch.ones(2, device="npu")
        torch.late = Late()
        threading.Thread(target=lambda: torch.ones(10, device="npu").sum().item()).start()
    """)
