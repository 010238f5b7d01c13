"""Many threads at once, each with a stream of its own, compute what one thread computes."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tolerance import assert_close
from torch import nn

THREADS = 8


def in_threads(work, count: int = THREADS) -> list:
    """Results of work(0), work(1) …, each in its thread, all started at once."""
    gate = threading.Barrier(count)

    def run(i):
        gate.wait()
        return work(i)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def train(seed: int, device: str, steps: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    layers = [nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4)]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.2)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        x = torch.randn(8, 16, generator=generator).to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(8, device=device) % 4).backward()
        optimizer.step()
    return [p.detach().cpu() for p in model.parameters()]


def test_training_with_a_stream_each_equals_serial():
    def work(i):
        with torch.npu.stream(torch.npu.Stream()):
            result = train(i, "npu")
            torch.npu.current_stream().synchronize()
            return result

    serial = [train(i, "npu") for i in range(THREADS)]
    for threaded, alone in zip(in_threads(work), serial, strict=True):
        for a, e in zip(threaded, alone, strict=True):
            assert torch.equal(a, e)


def test_training_in_threads_agrees_with_the_cpu():
    for threaded, i in zip(in_threads(lambda i: train(i, "npu"), 4), range(4), strict=True):
        for a, e in zip(threaded, train(i, "cpu"), strict=True):
            assert_close(a, e, atol=1e-4)


def test_one_model_used_by_all_threads():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)).to("npu").eval()
    inputs = [torch.randn(4, 16) for _ in range(THREADS)]

    def work(i):
        with torch.no_grad():
            return torch.stack([model(inputs[i].npu()).cpu() for _ in range(20)])

    for i, result in enumerate(in_threads(work)):
        expected = model(inputs[i].npu()).cpu()
        assert all(torch.equal(r, expected) for r in result)


def test_backward_of_one_graph_from_several_threads():
    weight = torch.ones(64, device="npu", requires_grad=True)

    def work(i):
        (weight * (i + 1)).sum().backward()

    in_threads(work)
    assert weight.grad.tolist() == [float(sum(range(1, THREADS + 1)))] * 64


def test_the_current_stream_belongs_to_the_thread():
    def work(i):
        stream = torch.npu.Stream()
        with torch.npu.stream(stream):
            return torch.npu.current_stream() == stream

    assert all(in_threads(work))
    assert torch.npu.current_stream() == torch.npu.default_stream()


def test_first_use_of_the_device_from_many_threads(run_python):
    run_python("""
        import threading, torch
        gate, results = threading.Barrier(8), []
        def work(i):
            gate.wait()
            results.append((torch.full((4,), float(i), device="npu") * 2).sum().item())
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert sorted(results) == [8.0 * i for i in range(8)], results
    """)


def test_fallbacks_native_operators_and_copies_at_once():
    def work(i):
        x = torch.full((257,), float(i), device="npu")
        total = 0.0
        for k in range(30):
            y = torch.special.bessel_j0(x) if k % 2 else x * 2
            total += (y.cpu() + torch.cumprod(x, 0)[:1].cpu()).sum().item()
        return total

    assert in_threads(work) == [work(i) for i in range(THREADS)]


def test_random_numbers_from_many_threads_do_not_repeat():
    draws = in_threads(lambda i: torch.rand(1000, device="npu").cpu())
    assert torch.stack(draws).unique(dim=0).shape[0] == THREADS


@pytest.mark.slow
def test_threads_in_the_asynchronous_mode(run_python):
    """Worker threads and random delays: any missing synchronisation shows as wrong numbers."""
    run_python(
        """
        import threading, torch
        from torch import nn
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to("npu")
        inputs = [torch.randn(8, 16) for _ in range(4)]
        expected = [model(x.npu()).detach().cpu() for x in inputs]
        failed = []
        def work(i):
            with torch.npu.stream(torch.npu.Stream()):
                for _ in range(5):
                    if not torch.equal(model(inputs[i].npu()).detach().cpu(), expected[i]):
                        failed.append(i)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not failed, failed
        """,
        CANN_HOST_ASYNC="1",
        CANN_HOST_DELAY_US="200",
    )


@pytest.mark.slow
def test_a_process_may_end_right_after_backward(run_python):
    """Autograd's threads hold a Python object for a moment after backward(), and PyTorch would abort the process."""
    for _ in range(3):
        run_python("""
            import torch, torch_npu
            torch.nn.Linear(30, 50).to("npu")(torch.randn(7, 30, device="npu")).sum().backward()
        """)


def test_threads_may_end_while_the_process_looks_for_those_of_autograd(run_python):
    run_python("""
        import threading, torch_npu
        from torch_npu.npu._exit import _has_autograd_threads
        def start_others():
            for _ in range(3000):
                threading.Thread(target=int).start()
        thread = threading.Thread(target=start_others)
        thread.start()
        while thread.is_alive():
            assert not _has_autograd_threads()
    """)
