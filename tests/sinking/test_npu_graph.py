"""torch.npu.NPUGraph: what is recorded runs again, on the same memory, and nothing else."""

import gc
import json
import threading
import weakref
from pathlib import Path

import pytest
import torch
from capturing import captured, churn
from tolerance import assert_close
from torch import nn

from torch_npu.npu._npugraph_utils import align_trace_json


def test_capture_runs_nothing_and_replay_all() -> None:
    x, y = torch.arange(7.0, device="npu"), torch.zeros(7, device="npu")

    def work() -> torch.Tensor:
        assert torch.npu.is_current_stream_capturing()
        y.add_(x)
        return (y * 2).view(7, 1)

    assert not torch.npu.is_current_stream_capturing()
    graph, doubled = captured(work)
    assert not torch.npu.is_current_stream_capturing()
    assert y.tolist() == [0.0] * 7
    assert graph.node_count() == 2
    for times in (1, 2, 3):
        graph.replay()
        assert torch.equal(doubled.cpu().flatten(), torch.arange(7.0) * 2 * times)
    x.fill_(1)
    graph.replay()
    assert torch.equal(y.cpu(), torch.arange(7.0) * 3 + 1)


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (5, 7), (3, 1, 129)], ids=str)
def test_odd_shapes_and_layouts(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    static = x.npu()
    transposed = static.mT if static.dim() > 1 else static
    graph, out = captured(lambda: (transposed.exp() + 1, transposed.sum(), transposed.contiguous()))
    for scale in (1.0, -2.5):
        static.copy_(x * scale)
        graph.replay()
        want = (x * scale).mT if x.dim() > 1 else x * scale
        assert_close(out[0], want.exp() + 1)
        assert_close(out[1], want.sum(), terms=x.numel())
        assert_close(out[2], want)


def test_whole_training_step_equals_eager() -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(9, 17), nn.GELU(), nn.LayerNorm(17), nn.Linear(17, 3)).npu()
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    batches = [(torch.randn(5, 9), torch.randn(5, 3)) for _ in range(6)]
    eager, optimizer = make()
    expected = [step(eager, optimizer, x.npu(), y.npu()).item() for x, y in batches]

    model, optimizer = make()
    x, y = (t.npu() for t in batches[0])
    losses = [step(model, optimizer, x, y).item()]  # makes gradients and momentum
    graph, loss = captured(lambda: step(model, optimizer, x, y))
    for new_x, new_y in batches[1:]:
        x.copy_(new_x)
        y.copy_(new_y)
        graph.replay()
        losses.append(loss.item())
    assert losses == expected
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.equal(p.cpu(), q.cpu())


@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD"])
def test_fused_optimizer_in_a_graph(name: str) -> None:
    options = {"fused": True, "lr": 0.01} | ({"momentum": 0.5} if name == "SGD" else {"weight_decay": 0.1})

    def make() -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
        torch.manual_seed(0)
        parameters = [torch.randn(n, device="npu") for n in (3, 130)]
        for p in parameters:
            p.grad = torch.randn_like(p)
        return parameters, getattr(torch.optim, name)(parameters, **options)

    eager, optimizer = make()
    for _ in range(4):
        optimizer.step()
    parameters, optimizer = make()
    optimizer.step()
    graph, _ = captured(optimizer.step)
    for _ in range(3):
        graph.replay()
    for p, q in zip(parameters, eager, strict=True):
        assert torch.equal(p.cpu(), q.cpu())


def test_memory_of_freed_tensors_stays() -> None:
    weight = torch.randn(257, 33)

    def make() -> tuple[torch.npu.NPUGraph, torch.Tensor]:
        # Outside of the graph's pool, and gone when this returns.
        w, x = weight.npu(), torch.ones(5, 257, device="npu")
        return captured(lambda: (x @ w).relu() + 1)

    graph, out = make()
    pointer = out.data_ptr()
    for _ in range(3):
        gc.collect()
        churn()
        graph.replay()
        assert_close(out, (torch.ones(5, 257) @ weight).relu() + 1, terms=257)
    assert out.data_ptr() == pointer


def test_outputs_outlive_the_graph_and_memory_returns() -> None:
    torch.npu.synchronize()
    gc.collect()
    torch.npu.empty_cache()
    reserved = torch.npu.memory_reserved()
    allocated = torch.npu.memory_allocated()
    graph, out = captured(lambda: (torch.ones(1 << 20, device="npu") * 3).neg_().abs())
    graph.replay()
    del graph
    gc.collect()
    churn()
    assert torch.equal(out.cpu(), torch.full((1 << 20,), 3.0))
    del out
    gc.collect()
    torch.npu.empty_cache()
    assert torch.npu.memory_allocated() == allocated
    assert torch.npu.memory_reserved() <= reserved


def test_temporaries_of_one_graph_share_memory() -> None:
    x = torch.randn(1 << 20, device="npu")

    def chain() -> torch.Tensor:
        y = x
        for _ in range(40):
            y = y * 1.01
        return y

    graph, y = captured(chain)
    segments = torch.npu.memory_snapshot(graph.pool())
    assert 0 < sum(s["total_size"] for s in segments) <= 64 << 20  # 40 results of 4 MiB would be 160 MiB
    usage = graph.memory_usage()
    assert usage["kept"] >= y.nbytes
    assert usage["peak"] <= 3 * usage["kept"]
    assert usage["total"] >= 40 * y.nbytes
    graph.replay()
    expected = x.cpu()
    for _ in range(40):
        expected = expected * 1.01
    assert_close(y, expected)


def test_graphs_share_a_pool() -> None:
    pool = torch.npu.graph_pool_handle()
    x = torch.randn(1000, device="npu")
    first, a = captured(lambda: (x * 2) + 1, pool)
    second, b = captured(lambda: (a * 3) + 1, pool)
    assert first.pool() == second.pool() == pool
    first.replay()
    second.replay()
    assert_close(b, (x.cpu() * 2 + 1) * 3 + 1)
    first.reset()
    x.fill_(0)
    churn()
    second.replay()  # the pool stays as long as a graph uses it
    assert torch.isfinite(b).all()
    assert torch.npu.graph_pool_handle() != pool


def test_fork_and_join_over_streams() -> None:
    x = torch.randn(400, device="npu")
    side = torch.npu.Stream()

    def work() -> torch.Tensor:
        here = torch.npu.current_stream()
        doubled = x * 2
        side.wait_stream(here)
        with torch.npu.stream(side):
            assert torch.npu.is_current_stream_capturing()
            squared = doubled * doubled
        halved = x / 2
        here.wait_stream(side)
        return squared + halved

    graph, out = captured(work)
    assert graph.node_count() == 4
    for _ in range(3):
        x.normal_()
        graph.replay()
        assert_close(out, (x.cpu() * 2) ** 2 + x.cpu() / 2)


def test_stream_that_is_not_joined_is_refused() -> None:
    x = torch.randn(4, device="npu")
    side = torch.npu.Stream(priority=-1)  # of a pool from which no capture stream comes
    graph = torch.npu.NPUGraph()

    def fork() -> None:
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            x.mul_(2)

    with pytest.raises(torch.AcceleratorError, match="does not wait for the last work"), torch.npu.graph(graph):
        fork()
    before = x.cpu()
    graph, _ = captured(lambda: x.mul_(2))  # both the graph's stream and the other one work again
    with torch.npu.stream(side):
        x.mul_(1)
    graph.replay()
    assert torch.equal(x.cpu(), before * 2)


def test_replay_on_any_stream() -> None:
    x = torch.zeros(3, device="npu")
    graph, _ = captured(lambda: x.add_(1))
    stream = torch.npu.Stream()
    stream.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(stream):
        graph.replay()
    torch.npu.current_stream().wait_stream(stream)
    graph.replay()
    assert x.tolist() == [2, 2, 2]


def test_autograd_inside_a_graph() -> None:
    w = torch.randn(6, 6, device="npu", requires_grad=True)
    x = torch.randn(3, 6, device="npu")

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        loss = torch.tanh(x @ w).pow(2).sum()
        return loss, torch.autograd.grad(loss, w)[0]

    graph, (loss, grad) = captured(work)
    for _ in range(2):
        x.normal_()
        graph.replay()
        want_w = w.detach().cpu().requires_grad_()
        want = torch.tanh(x.cpu() @ want_w).pow(2).sum()
        assert_close(loss, want, terms=18)
        assert_close(grad, torch.autograd.grad(want, want_w)[0], terms=18)


def test_life_of_a_graph_object() -> None:
    graph = torch.npu.NPUGraph(keep_graph=True)
    for call in ("replay", "instantiate", "pool", "capture_end"):
        with pytest.raises(RuntimeError):
            getattr(graph, call)()
    x = torch.zeros(2, device="npu")
    with torch.npu.graph(graph):
        x.add_(1)
    graph.instantiate()
    graph.replay()
    with pytest.raises(RuntimeError, match="already owns a captured graph"), torch.npu.graph(graph):
        pass
    graph.reset()
    graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with torch.npu.graph(graph):
        x.add_(10)
    graph.replay()
    assert x.tolist() == [11, 11]
    alive = weakref.ref(graph)
    del graph
    assert alive() is None


def test_graph_that_dies_during_a_capture() -> None:
    x = torch.zeros(3, device="npu")
    graphs = [captured(lambda: x.add_(1))[0]]
    graphs[0].replay()
    pool = graphs[0].pool()

    def work() -> None:
        graphs.clear()
        x.add_(10)

    graph, _ = captured(work)
    assert torch.npu.memory_snapshot(pool) == []
    graph.replay()
    assert x.tolist() == [11, 11, 11]


def test_default_stream_cannot_be_captured() -> None:
    graph = torch.npu.NPUGraph()
    with pytest.raises(RuntimeError, match="non-default stream"):
        graph.capture_begin()
    with pytest.raises(ValueError, match="Unknown capture error mode"), torch.npu.graph(graph, capture_error_mode="x"):
        pass
    assert torch.npu.current_stream() == torch.npu.default_stream()


def test_empty_graph_warns() -> None:
    with pytest.warns(UserWarning, match="The NPU Graph is empty"):
        graph, _ = captured(lambda: None)
    graph.replay()


def test_debug_dump_names_the_operators(tmp_path: Path) -> None:
    x = torch.zeros(2, 3, device="npu")
    graph, _ = captured(lambda: torch.exp(x) @ x.T)
    graph.enable_debug_mode()
    graph.debug_dump(str(tmp_path / "graph.json"))
    tasks = [event["name"] for event in json.loads((tmp_path / "graph.json").read_text())]
    assert tasks[0].startswith("aclnnExp(")
    assert len(tasks) == graph.node_count()
    aligned = json.loads((tmp_path / "graph.aligned.json").read_text())
    assert [event["name"] for event in aligned] == tasks


def test_debug_dump_of_nothing_warns(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="nothing was captured"):
        torch.npu.NPUGraph().debug_dump(str(tmp_path / "graph.json"))
    assert list(tmp_path.iterdir()) == []


def test_the_time_line_of_a_dump_waits_for_events(tmp_path: Path) -> None:
    def task(name: str, stream: str, ts: float) -> dict:
        return {"name": name, "ph": "X", "ts": ts, "dur": 1, "tid": stream}

    names = [("a", "s1"), ("b", "s1"), ("EVENT_RECORD_7", "s1"), ("EVENT_WAIT_7", "s2"), ("c", "s2"), ("d", "s1")]
    dump = {"traceEvents": [task(name, stream, ts) for ts, (name, stream) in enumerate(names)]}
    (tmp_path / "graph.json").write_text(json.dumps(dump))
    aligned = json.loads(Path(align_trace_json(str(tmp_path / "graph.json"))).read_text())
    begins = {event["name"]: event["ts"] for event in aligned}
    assert begins == {"a": 0, "b": 1, "EVENT_RECORD_7": 2, "EVENT_WAIT_7": 3, "c": 4, "d": 3}


def test_accelerator_graph() -> None:
    x = torch.ones(5, device="npu")
    graph = torch.accelerator.Graph(pool=torch.npu.graph_pool_handle(), capture_error_mode="thread_local")
    with torch.Stream("npu"), graph:
        x.mul_(3)
    assert x.tolist() == [1.0] * 5
    graph.replay()
    graph.replay()
    assert x.tolist() == [9.0] * 5
    assert isinstance(graph.pool(), tuple)
    graph.reset()


def test_threads_capture_and_replay_graphs_of_their_own() -> None:
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            x = torch.full((257,), float(seed), device="npu")
            for _ in range(3):
                graph = torch.npu.NPUGraph()
                stream = torch.npu.Stream()
                with torch.npu.stream(stream):
                    graph.capture_begin(capture_error_mode="thread_local")
                    y = x * seed + x.sum()
                    graph.capture_end()
                torch.npu.current_stream().wait_stream(stream)
                for _ in range(20):
                    graph.replay()
                    assert torch.equal(y.cpu(), torch.full((257,), seed * seed + 257.0 * seed))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


ASYNCHRONOUS = """
import torch

x = torch.randn(1000, device="npu")
side = torch.npu.Stream()
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    here = torch.npu.current_stream()
    y = x * 2
    side.wait_stream(here)
    with torch.npu.stream(side):
        z = torch.rand_like(y) + y
    here.wait_stream(side)
    z = z - 1
for seed in range(3):
    x.normal_()
    torch.manual_seed(seed)
    graph.replay()
    result = z.clone()
    torch.manual_seed(seed)
    assert torch.equal(result, torch.rand_like(y) + x * 2 - 1)
graph.replay()
del graph
torch.npu.empty_cache()
torch.npu.synchronize()
"""


def test_asynchronous_device(run_python) -> None:
    run_python(ASYNCHRONOUS, CANN_HOST_ASYNC="1", CANN_HOST_DELAY_US="500", TORCH_NPU_CANN="host")
