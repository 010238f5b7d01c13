"""torch_npu.enable_graph(): module calls are recorded once and replayed, and mean what they mean in eager mode."""

import copy
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from capturing import churn, eagerly
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves as leaves

import torch_npu
from torchtitan_npu.sinking import CannotSink, GraphEntry, GraphSinkingWarning, clear_graphs


@pytest.fixture(autouse=True)
def _only_expected_warnings() -> Iterator[None]:
    clear_graphs()
    with warnings.catch_warnings():
        warnings.simplefilter("error", GraphSinkingWarning)
        yield
    nn.Identity()(None)
    assert nn.Module._compiled_call_impl is None, "calls outside of blocks must take back what the blocks changed"


class Counted(nn.Module):
    """Counts how often its Python runs."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.runs: list[int] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.runs.append(1)
        return self.body(*args, **kwargs)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 33), nn.ReLU(), nn.Linear(33, 3)).npu()


def entry() -> GraphEntry:
    (only,) = torch_npu.graph_report()
    return only


@torch.no_grad()
def test_first_call_records_and_later_ones_replay() -> None:
    model = Counted(mlp()).eval()
    for n in range(4):
        x = torch.randn(2, 5, device="npu")
        with torch_npu.enable_graph():
            y = model(x)
        assert torch.equal(y, model.body(x))
        assert len(model.runs) == 1 + entry().captures == 4, "runs, is recorded, and never runs again"
        assert entry().replays == n


@torch.no_grad()
def test_signatures_have_graphs_of_their_own() -> None:
    class Flexible(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 5)

        def forward(self, x: torch.Tensor, *, scale: float = 1.0, mode: str = "plain", extra: Any = None) -> Any:
            y = self.linear(x.float()) * scale
            if extra is not None:
                y = y + extra["bias"] + extra["list"][0]
            return (y, mode) if mode == "pair" else {"y": y}

    model = Counted(Flexible().npu()).eval()
    b = torch.randn(5, device="npu")
    calls: list[tuple[torch.Tensor, dict[str, Any]]] = [
        (torch.randn(2, 5), {}),
        (torch.randn(3, 5), {}),
        (torch.randn(5, 2).t(), {}),  # another stride
        (torch.randn(2, 5).half(), {}),
        (torch.randn(2, 5), {"scale": 2.0}),
        (torch.randn(2, 5), {"scale": 0.0}),
        (torch.randn(2, 5), {"scale": -0.0}),
        (torch.randn(2, 5), {"mode": "pair"}),
        (torch.randn(2, 5), {"extra": {"bias": b, "list": [b * 2]}}),
        (torch.randn(1, 1).expand(4, 5), {}),
        (torch.randn(0, 5), {}),
    ]
    with torch_npu.enable_graph(strict=True, cache_limit=len(calls)):
        for round_ in range(3):
            for x, kwargs in calls:
                got, want = model(x.npu(), **kwargs), eagerly(model.body, x.npu(), **kwargs)
                for a, b in zip(leaves(got), leaves(want), strict=True):
                    assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
            assert len(model.runs) == sum(1 + e.captures for e in torch_npu.graph_report()), round_
    assert [e.replays for e in torch_npu.graph_report()] == [2] * len(calls)


@torch.no_grad()
def test_least_recently_used_graph_goes_first() -> None:
    model = Counted(mlp()).eval()
    with torch_npu.enable_graph(cache_limit=2):
        inputs = []  # each call has memory that none had before it
        for rows, runs in ((1, 4), (2, 8), (1, 8), (3, 12), (1, 12), (2, 16), (1, 16), (3, 20)):
            inputs.append(torch.randn(rows, 5, device="npu"))
            model(inputs[-1])
            assert len(model.runs) == runs, rows
    assert len(torch_npu.graph_report()) == 2
    with pytest.raises(ValueError, match="cache_limit must be 1 or more"):
        torch_npu.enable_graph(cache_limit=0)


@torch.no_grad()
def test_outputs_are_the_callers_to_keep() -> None:
    model = mlp()
    inputs = [torch.randn(2, 5, device="npu") for _ in range(4)]
    with torch_npu.enable_graph():
        kept = [model(x) for x in inputs]
    for x, y in zip(inputs, kept, strict=True):
        assert torch.equal(y, model(x))
    with torch_npu.enable_graph(copy_outputs=False):
        static = [model(x) for x in inputs]
    assert len({y.data_ptr() for y in static}) == 1
    assert torch.equal(static[0], model(inputs[-1]))


@torch.no_grad()
def test_parameters_updated_in_place_are_seen() -> None:
    model = mlp()
    x = torch.randn(2, 5, device="npu")
    with torch_npu.enable_graph(strict=True):
        model(x)
        for p in model.parameters():
            p.mul_(1.5)
        assert torch.equal(model(x), eagerly(model, x))
    assert entry().replays == 1


@torch.no_grad()
def test_replaced_parameters_and_submodules_are_seen() -> None:
    model = Counted(mlp())
    x = torch.randn(2, 5, device="npu")

    def replace_parameter() -> None:
        model.body[0].weight = nn.Parameter(torch.randn(33, 5, device="npu"))

    def replace_data() -> None:
        model.body[0].weight.data = torch.randn(33, 5, device="npu")

    def replace_module() -> None:
        model.body[2] = nn.Linear(33, 3).npu()

    def add_module() -> None:
        model.body.append(nn.Tanh())

    def add_buffer() -> None:
        model.body[0].register_buffer("scale", torch.ones(1, device="npu"))

    with torch_npu.enable_graph(strict=True):
        model(x)
        for change in (replace_parameter, replace_data, replace_module, add_module, add_buffer):
            model(x)
            change()
            runs = len(model.runs)
            assert torch.equal(model(x), eagerly(model.body, x)), change.__name__
            assert len(model.runs) == runs + 4, change.__name__
    model.double()
    with torch_npu.enable_graph(strict=True):
        assert model(x.double()).dtype == torch.float64


@torch.no_grad()
def test_train_and_eval_modes_of_all_submodules() -> None:
    model = nn.Sequential(nn.Linear(5, 64), nn.Dropout(0.5)).npu()
    x = torch.randn(2, 5, device="npu")
    with torch_npu.enable_graph(strict=True):
        model.train()
        for _ in range(3):
            assert (model(x) == 0).any()
        model[1].eval()
        for _ in range(3):
            assert torch.equal(model(x), eagerly(model[0], x))
    assert len(torch_npu.graph_report()) == 2


@torch.no_grad()
def test_running_statistics_advance_as_in_eager() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).npu().train()
    eager = copy.deepcopy(model)
    with torch_npu.enable_graph(strict=True):
        for _ in range(4):
            x = torch.randn(2, 3, 7, 7, device="npu")
            assert torch.equal(model(x), eagerly(eager, x))
    for a, b in zip(model.buffers(), eager.buffers(), strict=True):
        assert torch.equal(a, b)
    assert model[1].num_batches_tracked.item() == 4


@torch.no_grad()
def test_random_numbers_equal_eager() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.2)).npu().train()
    x = torch.randn(3, 5, device="npu")
    torch.manual_seed(5)
    expected = [model(x) for _ in range(5)]
    torch.manual_seed(5)
    with torch_npu.enable_graph(strict=True):
        for want in expected:
            assert torch.equal(model(x), want)


@torch.no_grad()
def test_modes_of_pytorch_are_part_of_the_key() -> None:
    model = mlp()
    x = torch.randn(2, 5, device="npu")
    with torch_npu.enable_graph(strict=True):
        for _ in range(2):
            assert model(x).dtype == torch.float32
            with torch.autocast("npu", dtype=torch.bfloat16):
                assert model(x).dtype == torch.bfloat16
            with torch.inference_mode():
                assert model(x).is_inference()
            with torch.enable_grad():
                assert model(x).requires_grad
    assert [e.replays for e in torch_npu.graph_report()] == [1] * 4


@torch.no_grad()
def test_autocast_sees_new_parameters() -> None:
    model = mlp()
    x = torch.randn(2, 5, device="npu")
    with torch_npu.enable_graph(strict=True):
        for _ in range(3):
            with torch.autocast("npu"):
                got = model(x)
            with torch.autocast("npu"):
                assert torch.equal(got, eagerly(model, x))
            model[0].weight.add_(0.5)


@torch.no_grad()
def test_decorator_and_nesting() -> None:
    model = Counted(mlp())

    @torch_npu.enable_graph(strict=True)
    def double(x: torch.Tensor) -> torch.Tensor:
        """Twice."""
        return model(x) * 2

    x = torch.randn(2, 5, device="npu")
    for _ in range(3):
        assert torch.equal(double(x), eagerly(model.body, x) * 2)
    assert len(model.runs) == 1 + entry().captures
    assert double.__doc__ == "Twice."
    with torch_npu.enable_graph(), torch_npu.enable_graph(strict=True):
        model(x)
    runs = len(model.runs)
    model(x)  # no block: Python runs
    assert len(model.runs) == runs + 1


@torch.no_grad()
def test_only_the_outermost_module_is_a_graph() -> None:
    model = Counted(Counted(mlp()))
    x = torch.randn(2, 5, device="npu")
    with torch_npu.enable_graph(strict=True):
        model(x)
        model(x)
        model.body(x)
    assert [e.module for e in torch_npu.graph_report()] == ["Counted", "Counted"]


# ---- what no graph can stand for


class DataDependent(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x - 1


class Selecting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0]


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


class InPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2) + 1


class ReturnsView(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:1]


class ReturnsObject(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return {"y": x * 2, "object": object}


class FromTheCPU(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(5).to(x.device)


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 5)).npu()
    model[0].register_forward_hook(lambda module, args, output: output * 2)
    return model


EAGER = {
    "control flow": (DataDependent, r"tensor.item\(\) cannot be recorded"),
    "shape": (Selecting, "aten::nonzero cannot be recorded"),
    "attributes": (Counting, "changes attributes, which a replay would not do: Counting.calls"),
    "arguments in place": (InPlace, "changes its arguments in place"),
    "view": (ReturnsView, "is a view of an argument"),
    "object": (ReturnsObject, "an output is a"),
    "copy from the CPU": (FromTheCPU, "a copy from the CPU cannot be recorded"),
    "hooks": (hooked, "Linear has forward hooks"),
}


@pytest.mark.parametrize("name", EAGER)
@torch.no_grad()
def test_runs_eagerly_with_one_warning(name: str) -> None:
    make, reason = EAGER[name]
    model, reference = make(), make()
    if isinstance(model, nn.Sequential):
        reference.load_state_dict(model.state_dict())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n in range(4):
            x = torch.randn(3, 5, device="npu") + (n % 2) * 10 - 5
            y = x.clone()
            with torch_npu.enable_graph():
                got = model(x)
            for a, b in zip(leaves(got), leaves(eagerly(reference, y)), strict=True):
                assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
            assert torch.equal(x, y)
    assert [warning.category for warning in told] == [GraphSinkingWarning]
    assert told[0].filename == __file__
    strict = make()
    with pytest.raises(CannotSink, match=reason), torch_npu.enable_graph(strict=True):
        strict(torch.randn(3, 5, device="npu"))


@torch.no_grad()
def test_argument_that_is_an_output() -> None:
    class Passing(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x, x + 1, None, 3

    model = Passing()
    with torch_npu.enable_graph(strict=True):
        for _ in range(3):
            x = torch.randn(3, device="npu")
            same, more, none, three = model(x)
            assert same is x
            assert torch.equal(more, x + 1)
            assert (none, three) == (None, 3)


@torch.no_grad()
def test_hooks_that_come_later_are_run() -> None:
    model = Counted(mlp())
    x = torch.randn(2, 5, device="npu")
    seen: list[int] = []
    with torch_npu.enable_graph():
        model(x)
        model(x)
        handle = model.body[1].register_forward_hook(lambda *_: seen.append(1))
        with pytest.warns(GraphSinkingWarning, match="ReLU has forward hooks"):
            model(x)
        assert seen == [1]
        handle.remove()
        model(x)
        runs = len(model.runs)
        model(x)
        assert len(model.runs) == runs
    handle = nn.modules.module.register_module_forward_hook(lambda *_: seen.append(2))
    try:
        with torch_npu.enable_graph(), pytest.warns(GraphSinkingWarning, match="hooks for all modules"):
            model(x)
    finally:
        handle.remove()
    assert 2 in seen


@torch.no_grad()
def test_arguments_that_no_key_stands_for() -> None:
    class Loose(nn.Module):
        def forward(self, x: torch.Tensor, other: Any) -> torch.Tensor:
            return x + 1

    x = torch.randn(3, device="npu")
    for other, reason in ((object(), "an argument is a object"), (torch.ones(3), "tensor on cpu")):
        with pytest.raises(CannotSink, match=reason), torch_npu.enable_graph(strict=True):
            Loose()(x, other)


@torch.no_grad()
def test_modules_of_the_cpu_are_left_alone() -> None:
    model = nn.Linear(3, 3)
    with torch_npu.enable_graph(strict=True):
        assert model(torch.ones(3)).shape == (3,)
    assert torch_npu.graph_report() == []


def test_errors_of_the_model_are_the_models() -> None:
    model = mlp()
    with torch_npu.enable_graph(), pytest.raises(RuntimeError, match=r"shapes cannot be multiplied|must match|size"):
        model(torch.randn(2, 6, device="npu"))
    with torch_npu.enable_graph():
        assert model(torch.randn(2, 5, device="npu")).shape == (2, 3)


# ---- lives


@torch.no_grad()
def test_storms_of_garbage_collection_do_not_hurt() -> None:
    model = mlp()
    with torch_npu.enable_graph(strict=True):
        for rows in (1, 2, 7, 1, 2, 7):
            x = torch.randn(rows, 5, device="npu")
            y = model(x)
            del x
            gc.collect()
            churn()
            assert torch.isfinite(y).all()
            x = torch.randn(rows, 5, device="npu")
            assert torch.equal(model(x), eagerly(model, x))


def test_module_takes_its_graphs_along() -> None:
    gc.collect()
    torch.npu.empty_cache()
    before = torch.npu.memory_allocated()
    model = mlp()
    with torch_npu.enable_graph(strict=True):
        model(torch.randn(2, 5, device="npu")).sum().backward()
        model(torch.randn(2, 5, device="npu"))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert torch_npu.graph_report() == []
    assert torch.npu.memory_allocated() == before


@torch.no_grad()
def test_copies_of_a_module_record_their_own() -> None:
    model = mlp()
    x = torch.randn(2, 5, device="npu")
    with torch_npu.enable_graph(strict=True):
        model(x)
        other = copy.deepcopy(model)
        other[0].weight.zero_()
        assert torch.equal(other(x), eagerly(other, x))
        assert torch.equal(other(x), eagerly(other, x))
        assert torch.equal(model(x), eagerly(model, x))
    assert len(torch_npu.graph_report()) == 2


def test_threads() -> None:
    shared = mlp().eval()
    errors: list[BaseException] = []

    def work(n: int) -> None:
        try:
            own = mlp().eval()
            torch.manual_seed(n)
            with torch.no_grad(), torch_npu.enable_graph(strict=True):
                for _ in range(15):
                    for model in (own, shared):
                        x = torch.full((n, 5), 0.25 * n, device="npu")
                        assert torch.equal(model(x), eagerly(model, x))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for t in threads:
        t.start()
    # A thread outside of any block is not affected by theirs.
    counted = Counted(mlp())
    for _ in range(10):
        counted(torch.randn(2, 5, device="npu"))
    for t in threads:
        t.join()
    assert errors == []
    assert len(counted.runs) == 10


@torch.no_grad()
def test_streams() -> None:
    model = mlp()
    x = torch.randn(2, 5, device="npu")
    with torch_npu.enable_graph(strict=True):
        model(x)
        side = torch.npu.Stream()
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            y = model(x)
        z = model(x * 2)
        torch.npu.current_stream().wait_stream(side)
    assert torch.equal(y, model(x))
    assert torch.equal(z, model(x * 2))


@torch.no_grad()
def test_inside_a_capture_of_the_user() -> None:
    model = mlp()
    x = torch.randn(2, 5, device="npu")
    graph = torch.npu.NPUGraph()
    with torch_npu.enable_graph(strict=True), torch.npu.graph(graph):
        y = model(x)
    graph.replay()
    assert torch.equal(y, model(x))
    assert torch_npu.graph_report() == []


@torch.no_grad()
def test_report() -> None:
    assert "no module ran" in str(torch_npu.graph_report())
    model = (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(200, 2)).npu().eval()
    )
    x = torch.randn(1, 3, 7, 7, device="npu")
    with torch_npu.enable_graph(strict=True):
        model(x)
        model(x.clone())
    e = entry()
    assert (e.module, e.signature, e.mode, e.replays) == ("Sequential", "float32[1, 3, 7, 7]", "forward", 1)
    torch_npu.clear_native_calls()
    model(x)
    assert e.nodes == e.launches_eager == sum(torch_npu.native_calls().values())
    assert e.launches == 3  # the graph, the copies of the input and of the output
    with torch_npu.enable_graph(strict=True):
        model(x)
    assert entry().launches == 1
    assert e.bytes >= e.peak_bytes > 0
    assert e.total_bytes > e.peak_bytes
    assert "float32[1, 3, 7, 7]" in str(torch_npu.graph_report())


def test_functional_embedding_and_integers() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(11, 6)

        def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            logits = F.linear(self.embedding(tokens), self.embedding.weight)
            return logits, logits.argmax(-1)

    model = Tokens().npu()
    with torch.no_grad(), torch_npu.enable_graph(strict=True):
        for _ in range(3):
            tokens = torch.randint(0, 11, (2, 3), device="npu")
            for got, want in zip(model(tokens), eagerly(model, tokens), strict=True):
                assert torch.equal(got, want)


def test_a_module_that_compiles_itself_is_recorded_as_it_is_compiled() -> None:
    class Double(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    graphs: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(module)
        return lambda *args: [y * 2 for y in module(*args)]

    model, x = Double(), torch.randn(2, 4, device="npu")
    model.compile(backend=backend)
    with torch.no_grad(), torch_npu.enable_graph(strict=True):
        for _ in range(4):
            assert torch.equal(model(x), x * 4)
    assert len(graphs) == 1
    assert entry().replays == 3
