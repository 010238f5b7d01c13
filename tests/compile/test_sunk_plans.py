"""Plans as one launch (option ``sink``): replays give what eager gives, whatever moves and whoever holds results."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from compile_models import Block, Convolutions, Mlp
from tolerance import assert_close
from torch import Tensor, nn

from torchtitan_npu.compile import fallbacks, reports

SUNK = {"backend": "npu", "options": {"sink": True}, "dynamic": False}


def sinking(kind: str = "inference") -> tuple[str, int, int]:
    (noted,) = [r.sinking for r in reports() if r.kind == kind]
    assert noted is not None
    return noted.reason, noted.captures, noted.replays


def test_inference_reads_new_inputs_and_new_weights() -> None:
    model = Mlp().eval()
    ours = copy.deepcopy(model).npu()
    compiled = torch.compile(ours, **SUNK)
    with torch.no_grad():
        for step in range(6):
            x = torch.randn(3, 24)
            assert_close(compiled(x.npu()), model(x), terms=64)
            for a, b in zip(model.parameters(), ours.parameters(), strict=True):
                a.mul_(1 + 0.1 * step)
                b.mul_(1 + 0.1 * step)
    reason, captures, replays = sinking()
    assert not reason
    assert 1 <= captures <= 3
    assert replays >= 4


def test_reduce_overhead_is_the_same() -> None:
    compiled = torch.compile(lambda x: x.exp() + 1, backend="npu", mode="reduce-overhead", dynamic=False)
    x = torch.randn(5)
    for _ in range(3):
        assert_close(compiled(x.npu()), x.exp() + 1)
    assert sinking()[2] >= 1


def test_results_that_are_held_stay() -> None:
    compiled = torch.compile(lambda x: (x * 2, (x + 1).t()), **SUNK)
    inputs = [torch.randn(4, 6) for _ in range(12)]
    held = [compiled(x.npu()) for x in inputs]
    for x, (a, b) in zip(inputs, held, strict=True):
        assert_close(a, x * 2)
        assert_close(b, (x + 1).t())
    reason, captures, replays = sinking()
    assert not reason
    assert captures <= 6
    assert 1 <= replays < len(inputs)


def test_results_that_another_stream_uses_are_not_written_again() -> None:
    compiled = torch.compile(lambda x: x * 2, **SUNK)
    side = torch.npu.Stream()
    x = torch.ones(5, device="npu")
    for _ in range(4):
        y = compiled(x)
        assert_close(y, torch.full((5,), 2.0))
        y.record_stream(side)
        del y
    assert sinking() == ("", 3, 3), "each of them in a recording of its own"


def test_a_loop_that_rebinds_its_result_replays() -> None:
    compiled = torch.compile(lambda x: x.tanh() + 0.5, **SUNK)
    x = torch.randn(7)
    y, expected = x.npu(), x
    for _ in range(20):
        y, expected = compiled(y), expected.tanh() + 0.5
    assert_close(y, expected, terms=8)
    assert sinking()[2] >= 10


@pytest.mark.parametrize("model", [Mlp, Block, Convolutions])
def test_training(model: type[nn.Module]) -> None:
    reference = model()
    ours = copy.deepcopy(reference).npu()
    compiled = torch.compile(ours, **SUNK)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (reference, ours)]
    shape = {Mlp: (3, 24), Block: (2, 7, 32), Convolutions: (4, 3, 8, 8)}[model]
    for _ in range(6):
        x = torch.randn(shape)
        losses = [reference(x).square().mean(), compiled(x.npu()).square().mean()]
        assert_close(losses[1], losses[0], terms=1024)
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for a, b in zip(
        [*reference.parameters(), *reference.buffers()], [*ours.parameters(), *ours.buffers()], strict=True
    ):
        assert_close(b, a, terms=4096)
    for kind in ("forward", "backward"):
        reason, _, replays = sinking(kind)
        assert not reason
        assert replays >= 2, kind
    assert not fallbacks()


def test_two_forwards_before_their_backwards() -> None:
    reference = Mlp()
    ours = copy.deepcopy(reference).npu()
    compiled = torch.compile(ours, **SUNK)
    for _ in range(4):
        xs = torch.randn(3, 2, 24)
        sum(reference(x).square().mean() for x in xs).backward()
        ours_loss = sum(compiled(x.npu()).square().mean() for x in xs)
        ours_loss.backward()
    for a, b in zip(reference.parameters(), ours.parameters(), strict=True):
        assert_close(b.grad, a.grad, terms=1024)


def test_changed_inputs_and_their_versions() -> None:
    def function(x: Tensor, cache: Tensor) -> Tensor:
        cache.mul_(0.5).add_(x)
        return cache.sum(0)

    compiled = torch.compile(function, **SUNK)
    cache, ours = torch.randn(3, 5), None
    ours = cache.npu()
    for _ in range(5):
        x = torch.randn(5)
        before = ours._version
        assert_close(compiled(x.npu(), ours), function(x, cache), terms=8)
        assert_close(ours, cache, terms=8)
        assert ours._version > before
    for _ in range(3):  # another tensor each time
        ours, x = cache.clone().npu(), torch.randn(5)
        assert_close(compiled(x.npu(), ours), function(x, cache), terms=8)
        assert_close(ours, cache, terms=8)


def test_results_that_are_views_of_inputs() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.exp(), x.view(-1), x

    compiled = torch.compile(function, **SUNK)
    for _ in range(4):
        x = torch.randn(4, 6).npu()
        y, view, same = compiled(x)
        assert view.data_ptr() == x.data_ptr()
        assert same is x
        assert_close(y, x.cpu().exp())
    assert sinking()[2] >= 1


def test_random_numbers_go_on() -> None:
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), **SUNK)
    x = torch.ones(500).npu()
    drawn = {tuple(compiled(x).cpu().tolist()) for _ in range(5)}
    assert len(drawn) == 5
    torch.npu.manual_seed(5)
    first = compiled(x).cpu()
    torch.npu.manual_seed(5)
    assert torch.equal(compiled(x).cpu(), first)


def test_reasons() -> None:
    compiled = torch.compile(lambda x: x + x.shape[0], backend="npu", options={"sink": True}, dynamic=True)
    for n in (3, 4, 5):
        assert_close(compiled(torch.ones(n).npu()), torch.ones(n) + n)
    assert sinking()[0] == "its sizes are symbols, and a captured model has numbers"
    assert "not sunk: its sizes are symbols" in str(reports()[0])


def test_an_input_on_the_cpu_is_a_reason() -> None:
    compiled = torch.compile(lambda x, y: x * 2 + y, **SUNK)
    for step in range(4):
        assert_close(compiled(torch.ones(3).npu(), torch.tensor(float(step))), torch.ones(3) * 2 + step)
    assert "is on cpu" in sinking()[0]


def test_a_wait_for_the_device_is_a_reason() -> None:
    def function(x: Tensor) -> Tensor:
        return x.exp().cpu() + 1

    compiled = torch.compile(function, **SUNK)
    for _ in range(4):
        x = torch.randn(3)
        assert_close(compiled(x.npu()), function(x))
    assert sinking()[0]


def test_inputs_that_never_stay_are_a_reason() -> None:
    compiled = torch.compile(lambda x: x.sum(), **SUNK)
    keep = [torch.full((200, 200), float(i)).npu() for i in range(20)]
    for i, x in enumerate(keep):
        assert_close(compiled(x), torch.tensor(i * 40000.0))
    reason, captures, replays = sinking()
    assert captures <= 12
    assert reason or replays


def test_memory_goes_with_the_model() -> None:
    def run() -> None:
        model = torch.compile(nn.Linear(256, 256).npu(), **SUNK)
        with torch.no_grad():
            for _ in range(4):
                model(torch.randn(64, 256).npu())

    run()
    torch._dynamo.reset()
    gc.collect()
    before = torch.npu.memory_allocated()
    run()
    torch._dynamo.reset()
    gc.collect()
    assert torch.npu.memory_allocated() <= before


def test_a_graph_around_a_plan_counts_its_kernels() -> None:
    x = torch.randn(64, device="npu")
    compiled = torch.compile(lambda t: (t * 2).tanh() + 1, backend="npu")
    compiled(x)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):  # which warns of an empty graph
        y = compiled(x)
    assert graph.node_count() == 1
    graph.replay()
    assert_close(y, (x.cpu() * 2).tanh() + 1)


def test_a_graph_around_a_plan_holds_its_memory() -> None:
    """The arena of a plan is known to kernels by address only."""
    model = nn.Sequential(nn.Linear(24, 24), nn.Softmax(-1), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 24)).eval()
    ours = copy.deepcopy(model).npu()
    x = torch.randn(5, 24)
    static = x.npu()
    graph = torch.npu.NPUGraph()
    with torch.no_grad():
        compiled = torch.compile(ours, backend="npu", dynamic=False)
        compiled(static)
        with torch.npu.graph(graph):
            y = compiled(static)
        del ours, compiled
        torch._dynamo.reset()
        gc.collect()
        torch.npu.empty_cache()
        held = [torch.full((n,), float("nan")).npu() for n in (64, 120, 512, 4096) for _ in range(20)]
        graph.replay()
        assert_close(y, model(x), terms=64)
    del held


def test_results_of_several_recordings_are_apart_from_intermediates() -> None:
    """Intermediates of this size have memory only in their time, which another recording must not take for results."""

    def chain(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for w in weights:
            x = torch.nn.functional.gelu(x @ w) + torch.softmax(x, -1)
        return x, x * 2

    torch._dynamo.reset()
    weights = [torch.randn(300, 300) * 0.05 for _ in range(4)]
    compiled = torch.compile(chain, backend="npu", dynamic=False)
    on_npu = [w.npu() for w in weights]
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    with torch.no_grad():
        for call in range(12):
            x = torch.randn(300, 300)
            first, second = compiled(x.npu(), *on_npu)
            held = [*held, (first, chain(x, *weights)[0]), (second, chain(x, *weights)[1])][-2 * (call % 5) :]
            for actual, expected in held:
                assert_close(actual, expected, terms=4000)
