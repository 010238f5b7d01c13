"""Random numbers in graphs: each replay draws what an eager run would draw from there."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capturing import captured
from tolerance import assert_close
from torch import nn
from torch.nn import functional as F

import torch_npu


def on(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="npu")


P = torch.linspace(0.1, 0.9, 257)
DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "rand": lambda: torch.rand(257, device="npu"),
    "randn": lambda: torch.randn(5, 7, device="npu"),
    "uniform_": lambda: on(257).uniform_(-2, 3),
    "uniform_ of float16": lambda: on(33, dtype=torch.float16).uniform_(),
    "normal_": lambda: on(257).normal_(1, 2),
    "normal_ of float64": lambda: on(257, dtype=torch.float64).normal_(1, 2),
    "random_": lambda: on(257).random_(),
    "random_(0, 100)": lambda: on(257, dtype=torch.int64).random_(0, 100),
    "randint": lambda: torch.randint(-5, 5, (257,), device="npu"),
    "bernoulli_": lambda: on(257).bernoulli_(0.3),
    "exponential_": lambda: on(257).exponential_(1.5),
    "randperm": lambda: torch.randperm(257, device="npu"),
    "dropout": lambda: F.dropout(torch.ones(257, device="npu"), 0.4),
    "dropout of 2 in a row": lambda: F.dropout(F.dropout(torch.ones(257, device="npu"), 0.4), 0.1),
}
# Those that read other tensors.
DRAWS_FROM: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bernoulli of a tensor": torch.bernoulli,
    "multinomial": lambda p: torch.multinomial(p, 50),
    "multinomial with replacement": lambda p: torch.multinomial(p, 500, replacement=True),
    "normal(mean, number)": lambda p: torch.normal(p, 0.5),
    "normal(number, std)": lambda p: torch.normal(2.0, p),
    "normal(mean, std)": lambda p: torch.normal(p, p[:1]),
}


def require_equal_to_eager(draw: Callable[[], torch.Tensor]) -> None:
    torch.npu.manual_seed(11)
    torch.rand(3, device="npu")
    expected = [draw().cpu() for _ in range(4)]
    after = torch.rand(3, device="npu").cpu()

    torch.npu.manual_seed(11)
    torch.rand(3, device="npu")
    before_capture = torch.npu.get_rng_state()
    graph, result = captured(draw)
    assert torch.equal(torch.npu.get_rng_state(), before_capture)
    for want in expected:
        graph.replay()
        assert torch.equal(result.cpu(), want)
    assert torch.equal(torch.rand(3, device="npu").cpu(), after)


@pytest.mark.parametrize("name", DRAWS)
def test_replays_equal_eager(name: str) -> None:
    require_equal_to_eager(DRAWS[name])


@pytest.mark.parametrize("name", DRAWS_FROM)
def test_replays_equal_eager_with_inputs(name: str) -> None:
    p = P.npu()
    require_equal_to_eager(lambda: DRAWS_FROM[name](p))


def test_seeding_between_replays() -> None:
    graph, x = captured(lambda: torch.rand(9, device="npu"))
    results = []
    for _ in range(2):
        torch.manual_seed(5)
        for _ in range(2):
            graph.replay()
            results.append(x.cpu())
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])
    assert not torch.equal(results[0], results[1])


def test_generator_of_the_user() -> None:
    def make() -> torch.Generator:
        return torch.Generator("npu").manual_seed(99)

    eager = make()
    expected = [torch.rand(9, device="npu", generator=eager).cpu() for _ in range(3)]
    generator = make()
    graph = torch.npu.NPUGraph()
    graph.register_generator_state(generator)
    default = torch.npu.get_rng_state()
    with torch.npu.graph(graph):
        x = torch.rand(9, device="npu", generator=generator)
    state = generator.get_state()
    del generator
    for want in expected:
        graph.replay()
        assert torch.equal(x.cpu(), want)
    assert torch.equal(torch.npu.get_rng_state(), default)
    assert torch.equal(make().get_state(), state)


def test_state_can_be_read_and_set_inside() -> None:
    def work() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first = torch.rand(8, device="npu")
        state = torch.npu.get_rng_state()
        second = torch.rand(8, device="npu")
        torch.npu.set_rng_state(state)
        return first, second, torch.rand(8, device="npu")

    torch.npu.manual_seed(3)
    expected, after = [t.cpu() for t in work()], torch.rand(8, device="npu").cpu()
    torch.npu.manual_seed(3)
    graph, result = captured(work)
    torch.npu.manual_seed(3)
    graph.replay()
    for got, want in zip(result, expected, strict=True):
        assert torch.equal(got.cpu(), want)
    assert torch.equal(torch.rand(8, device="npu").cpu(), after)


@pytest.mark.parametrize("seed", [lambda: torch.npu.manual_seed(1), lambda: torch.manual_seed(1)])
def test_seed_cannot_change_inside(seed: Callable[[], None]) -> None:
    torch.npu.manual_seed(0)
    graph = torch.npu.NPUGraph()
    with pytest.raises(RuntimeError, match="only if new seed is the same"), torch.npu.graph(graph):
        seed()
    torch.npu.manual_seed(0)
    captured(lambda: (torch.npu.manual_seed(0), torch.rand(1, device="npu")))


def test_activation_checkpointing_repeats_its_numbers() -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        y = torch.utils.checkpoint.checkpoint(lambda t: F.dropout(t.sin(), 0.5).exp(), x, use_reentrant=False)
        return torch.autograd.grad(y.sum(), x)[0]

    x = torch.randn(100, device="npu", requires_grad=True)
    torch.npu.manual_seed(8)
    expected = [work(x).cpu() for _ in range(3)]
    torch.npu.manual_seed(8)
    graph, grad = captured(lambda: work(x))
    for want in expected:
        graph.replay()
        assert torch.equal(grad.cpu(), want)


def test_training_with_dropout_equals_eager() -> None:
    def make() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 40), nn.Dropout(0.3), nn.ReLU(), nn.Dropout(0.1), nn.Linear(40, 1)).npu()

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
            p.data.sub_(g, alpha=0.1)
        return loss

    x = torch.randn(6, 8, device="npu")
    eager, model = make(), make()
    torch.npu.manual_seed(4)
    expected = [step(eager, x).item() for _ in range(5)]
    torch.npu.manual_seed(4)
    graph, loss = captured(lambda: step(model, x))
    losses = []
    for _ in range(5):
        graph.replay()
        losses.append(loss.item())
    assert losses == expected


def test_the_first_draw_of_a_process_may_be_in_a_capture(run_python) -> None:
    run_python(
        """
        import torch, torch_npu
        torch.manual_seed(5)
        torch.empty(1, device="npu")
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            drawn = torch.rand(7, device="npu")
        graph.replay()
        first = drawn.cpu()
        torch.manual_seed(5)
        assert torch.equal(torch.rand(7, device="npu").cpu(), first)
        """
    )


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 40), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(40, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.utils.checkpoint.checkpoint(self.inner, F.dropout(x, 0.1), use_reentrant=False)
        return F.dropout(y, 0.1)


def graphed_callable(model: nn.Module, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    graphed = torch.npu.make_graphed_callables(model, (x,))
    return lambda: graphed(x)


def under_enable_graph(model: nn.Module, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    def call() -> torch.Tensor:
        with torch_npu.enable_graph():
            return model(x)

    for _ in range(2):
        call().sum().backward()
    return call


@pytest.mark.parametrize("prepare", [graphed_callable, under_enable_graph])
def test_checkpointing_of_a_forward_and_a_backward_that_are_graphs(prepare: Callable[..., Any]) -> None:
    """The backward's graph draws the numbers of its forward's again, whatever is drawn between the two."""
    torch.manual_seed(1)
    eager, x = Checkpointed().npu(), torch.randn(6, 8, device="npu", requires_grad=True)
    model = copy.deepcopy(eager)
    call = prepare(model, x)
    parameters = [list(m.parameters()) for m in (eager, model)]
    for way, own in ((lambda: eager(x), parameters[0]), (call, parameters[1])):
        torch.npu.manual_seed(6)
        found = []
        for _ in range(3):
            result = way()
            torch.rand(100, device="npu")
            found.append([result.detach().cpu(), *(g.cpu() for g in torch.autograd.grad(result.sum(), [x, *own]))])
        if way is not call:
            expected = found
    for got, want in zip(found, expected, strict=True):
        for a, b in zip(got, want, strict=True):
            assert_close(a, b)


def test_draws_of_a_backward_are_the_generator_s_next() -> None:
    class Noise(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * torch.rand(1, device="npu")

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * torch.rand(1, device="npu")

    x = torch.ones(1, device="npu", requires_grad=True)
    graphed = torch.npu.make_graphed_callables(Noise.apply, (x,))
    numbers = []
    for _ in range(3):
        y = graphed(x)
        numbers += [y.item(), torch.autograd.grad(y, x)[0].item(), torch.rand(1, device="npu").item()]
    assert len(set(numbers)) == 9


def test_a_state_from_elsewhere_is_refused() -> None:
    state = torch.npu.get_rng_state()
    torch.rand(9, device="npu")
    later = torch.npu.get_rng_state()
    graph = torch.npu.NPUGraph()
    with pytest.raises(RuntimeError, match="cannot be set in this capture"), torch.npu.graph(graph):
        torch.npu.set_rng_state(later)
    torch.npu.set_rng_state(state)
