"""Graphs that read a call's arguments and write its results where they lie."""

import copy
import random
from collections.abc import Callable, Iterator

import pytest
import torch
from capturing import churn, eagerly
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import torch_npu
from torchtitan_npu.sinking import GraphEntry, clear_graphs
from torchtitan_npu.sinking.in_place import MOST_CAPTURES, MOST_WITH_SAME_ADDRESSES, OFTEN

ENOUGH = 4 * OFTEN  # calls after which a loop has all graphs that it gets


@pytest.fixture(autouse=True)
def _no_graphs() -> Iterator[None]:
    clear_graphs()
    with torch.no_grad():
        yield


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 33), nn.GELU(), nn.Linear(33, 3)).npu().eval()


def entry() -> GraphEntry:
    (only,) = torch_npu.graph_report()
    return only


def test_calls_like_the_first_are_one_launch() -> None:
    runs: list[int] = []

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            runs.append(1)
            return self.body(x)

    model, x = Counted(), torch.randn(2, 5, device="npu")
    for n in range(20):
        x.fill_(n / 10)
        with torch_npu.enable_graph(strict=True):
            y = model(x)
        assert torch.equal(y, model.body(x))
        assert len(runs) == 2 + MOST_WITH_SAME_ADDRESSES, "runs, is recorded, and never runs again"
        assert n == 0 or entry().launches == 1


@pytest.mark.parametrize("follow", [False, True])
def test_arguments_that_alternate_between_other_memory(follow: bool) -> None:
    runs: list[int] = []

    class Counted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            runs.append(1)
            return x.sin()

    model, places = Counted(), [torch.randn(2, 5, device="npu") for _ in range(3)]
    for n in range(4 * ENOUGH):
        x = places[0 if n == 0 else 1 + n % 2]
        with torch_npu.enable_graph(strict=True, follow_memory=follow):
            y = model(x)
        assert torch.equal(y, x.sin())
    first = 2 + MOST_WITH_SAME_ADDRESSES
    if follow:
        assert len(runs) > first
        assert entry().launches == 1
    else:
        assert len(runs) == first, "later calls execute no Python of the model"
        assert entry().launches == 3  # the copies of argument and result around the graph


def test_blocks_that_keep_results_and_blocks_that_do_not() -> None:
    model, x = net(), torch.randn(2, 5, device="npu")
    want = model(x)
    for n in range(4 * ENOUGH):
        with torch_npu.enable_graph(strict=True, copy_outputs=n % 3 != 0, follow_memory=True):
            y = model(x)
        assert torch.equal(y, want)
    assert entry().launches == 1


@pytest.mark.parametrize("follow", [False, True])
def test_no_result_is_ever_overwritten(follow: bool) -> None:
    choices = random.Random(3)
    model, kept = net(), []
    reference = copy.deepcopy(model).cpu()
    for _ in range(300):
        x = torch.randn(2, 5)
        with torch_npu.enable_graph(strict=True, follow_memory=follow):
            y = model(x.npu())
        kept.append((y, reference(x)))
        choices.shuffle(kept)
        del kept[choices.randrange(1, 6) :]
        if choices.random() < 0.1:
            churn()
        for got, want in kept:
            torch.testing.assert_close(got.cpu(), want)
    assert entry().captures <= 1 + MOST_CAPTURES


def test_graphs_do_not_hold_arguments() -> None:
    model = net()
    x = torch.randn(2, 5, device="npu")
    for _ in range(ENOUGH):
        with torch_npu.enable_graph(strict=True):
            model(x)
    assert entry().launches == 1
    before = torch.npu.memory_allocated()
    del x
    assert torch.npu.memory_allocated() == before - 512


def test_an_argument_that_never_stays_is_copied_and_the_others_are_not() -> None:
    class Cached(nn.Module):
        def forward(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
            return x @ cache

    model, cache, kept = Cached(), torch.randn(5, 7, device="npu"), []
    for n in range(4 * ENOUGH):
        kept.append(torch.full((3, 5), float(n), device="npu"))
        with torch_npu.enable_graph(strict=True, follow_memory=True):
            y = model(kept[-1], cache)
        assert torch.equal(y, model(kept[-1], cache))
    assert entry().launches == 2


def test_random_numbers_go_on_as_in_eager_mode() -> None:
    model = nn.Sequential(nn.Linear(5, 64), nn.Dropout(0.5)).npu().train()
    x = torch.randn(4, 5, device="npu")
    torch.npu.manual_seed(7)
    want = [eagerly(model, x) for _ in range(ENOUGH)]
    torch.npu.manual_seed(7)
    with torch_npu.enable_graph(strict=True):
        for expected in want:
            assert torch.equal(model(x), expected)
    assert entry().launches == 1


def test_views_of_one_argument_and_a_result_given_twice() -> None:
    class Twice(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
            sum_ = a + b
            return sum_, sum_, sum_[1:], sum_.t(), a

    model, memory = Twice(), torch.arange(12.0, device="npu")
    a, b = memory[:6].view(2, 3), memory[3:9].view(3, 2).t()
    for n in range(ENOUGH):
        memory.add_(n)
        with torch_npu.enable_graph(strict=True):
            results = model(a, b)
        for got, want in zip(results, model(a, b), strict=True):
            assert torch.equal(got, want)
            assert got.stride() == want.clone().stride()
    assert entry().launches == 1


def test_static_outputs_need_one_launch_from_the_second_replay_on() -> None:
    model = net()
    x = torch.randn(2, 5, device="npu")
    with torch_npu.enable_graph(strict=True, copy_outputs=False):
        results = [model(x) for _ in range(6)]
    assert entry().launches == 1
    assert len({y.data_ptr() for y in results[1:]}) == 1
    assert torch.equal(results[-1], eagerly(model, x))


def test_inference_tensors() -> None:
    model = net()
    with torch.inference_mode():
        x = torch.randn(2, 5, device="npu")
        for _ in range(ENOUGH):
            with torch_npu.enable_graph(strict=True):
                y = model(x)
            assert y.is_inference()
            assert torch.equal(y, model(x))
    assert entry().launches == 1


def test_updated_and_replaced_parameters_are_seen() -> None:
    model = net()
    x = torch.randn(2, 5, device="npu")
    for n in range(3 * ENOUGH):
        if n % 9 == 5:
            model[0].weight.mul_(-0.5)
        if n == 2 * ENOUGH:
            model[2].bias = nn.Parameter(torch.ones(3, device="npu"))
        with torch_npu.enable_graph(strict=True):
            y = model(x)
        assert torch.equal(y, model(x))


def test_results_used_on_another_stream_are_not_overwritten() -> None:
    model = net()
    x = torch.randn(2, 5, device="npu")
    side = torch.npu.Stream()
    for n in range(2 * ENOUGH):
        x.fill_(n / 7)
        with torch_npu.enable_graph(strict=True):
            y = model(x)
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            later = y * 2
        y.record_stream(side)
        del y
        torch.npu.current_stream().wait_stream(side)
        assert torch.equal(later, model(x) * 2)


def test_another_outcome_of_forward_leaves_the_copies_and_says_why() -> None:
    calls: list[int] = []

    class Fickle(nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            calls.append(1)
            return x + 1 if len(calls) < 3 else [x + 1]

    model, x = Fickle(), torch.ones(3, device="npu")
    for _ in range(ENOUGH):
        with torch_npu.enable_graph(strict=True):
            y = model(x)
        assert torch.equal(y, x + 1)
    assert entry().launches == 3
    assert "its outputs were" in entry().reason_for_copies


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = net()

    def forward(self, x: torch.Tensor, *, by: float = 1.0, more: object = None) -> torch.Tensor:
        return self.body(x) * by + (sum(more) if isinstance(more, list) else 0)


def other_calls(model: Scaled, x: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """Calls that a recording of ``model(x, by=2.0)`` does not stand for."""
    elsewhere, wider, other = x.clone(), torch.randn(9, 5, device="npu"), torch.randn(2, 5, device="npu").half()

    def with_training() -> torch.Tensor:
        model.body.train()
        try:
            return model(x, by=2.0)
        finally:
            model.body.eval()

    def under_autocast() -> torch.Tensor:
        with torch.autocast("npu", torch.bfloat16):
            return model(x, by=2.0)

    def with_gradients() -> torch.Tensor:
        with torch.enable_grad():
            return model(x, by=2.0)

    return {
        "another place": lambda: model(elsewhere, by=2.0),
        "another shape": lambda: model(wider, by=2.0),
        "other strides": lambda: model(wider.t()[:, :5], by=2.0),
        "another constant": lambda: model(x, by=3.0),
        "without the keyword": lambda: model(x),
        "one more keyword": lambda: model(x, by=2.0, more=None),
        "training": with_training,
        "autocast": under_autocast,
        "gradients": with_gradients,
        "another dtype": lambda: model(other.float(), by=2.0),
    }


def test_calls_that_differ_in_one_thing() -> None:
    for name in other_calls(Scaled(), torch.zeros(2, 5)):
        clear_graphs()
        model, x = Scaled(), torch.randn(2, 5, device="npu")
        require_both(model, x, other_calls(model, x)[name])


def require_both(model: Scaled, x: torch.Tensor, call: Callable[[], torch.Tensor]) -> None:
    two = 2.0
    for _ in range(3):
        with torch_npu.enable_graph():
            y = model(x, by=two)
            z = call()
        assert torch.equal(y, model(x, by=two))
        want = call()
        assert z.dtype == want.dtype
        assert z.requires_grad == want.requires_grad
        assert torch.equal(z, want)


def test_a_list_of_other_numbers_is_another_call() -> None:
    model, x, more = Scaled(), torch.randn(2, 5, device="npu"), [1.0]
    for n in range(6):
        more[0] = float(n // 2)
        with torch_npu.enable_graph(strict=True):
            y = model(x, more=more)
        assert torch.equal(y, model(x, more=more))


def test_hooks_for_all_modules_are_run() -> None:
    model, x, seen = net(), torch.randn(2, 5, device="npu"), []
    with torch_npu.enable_graph():
        for _ in range(3):
            model(x)
        handle = nn.modules.module.register_module_forward_hook(lambda *_: seen.append(1))
        with pytest.warns(UserWarning, match="hooks for all modules"):
            model(x)
        handle.remove()
        count = len(seen)
        model(x)
    assert count > 0
    assert len(seen) == count


def test_dispatch_modes_see_the_operators() -> None:
    model, x, seen = net(), torch.randn(2, 5, device="npu"), []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with torch_npu.enable_graph():
        for _ in range(3):
            model(x)
        with pytest.warns(UserWarning, match="dispatch mode"), Seeing():
            model(x)
    assert seen
