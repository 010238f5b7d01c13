"""enable_graph() around compiled modules: the call of a plan without Dynamo before it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from compile_models import Block, Convolutions, Mlp
from tolerance import assert_close
from torch import nn
from torch._dynamo.utils import counters

import torch_npu
from torchtitan_npu.sinking import GraphSinkingWarning, clear_graphs

SHAPES: dict[type[nn.Module], tuple[int, ...]] = {Mlp: (3, 24), Block: (2, 7, 32), Convolutions: (4, 3, 8, 8)}


@pytest.fixture(autouse=True)
def _only_expected_warnings() -> Iterator[None]:
    clear_graphs()
    with warnings.catch_warnings():
        warnings.simplefilter("error", GraphSinkingWarning)
        yield


@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize("compiles_itself", [False, True])
def test_inference(model: type[nn.Module], compiles_itself: bool) -> None:
    reference = model().eval()
    ours = copy.deepcopy(reference).npu()
    if compiles_itself:
        ours.compile(backend="npu", dynamic=False)
        compiled = ours
    else:
        compiled = torch.compile(ours, backend="npu", dynamic=False)
    given = torch.empty(SHAPES[model], device="npu")
    with torch.no_grad():
        for step in range(8):
            x = torch.randn(SHAPES[model])
            given.copy_(x)
            with torch_npu.enable_graph(strict=True):
                y = compiled(given)
            assert_close(y, reference(x), terms=64)
            for p, q in zip(ours.parameters(), reference.parameters(), strict=True):
                p.mul_(1 + step / 50)
                q.mul_(1 + step / 50)
        compiled_graphs = counters["stats"]["unique_graphs"]
        assert_close(compiled(x.npu()), reference(x), terms=64)
    (entry,) = torch_npu.graph_report()
    assert entry.launches == 1
    assert counters["stats"]["unique_graphs"] == compiled_graphs, "the block makes no difference to Dynamo"


@pytest.mark.parametrize("model", SHAPES)
def test_training(model: type[nn.Module]) -> None:
    reference = model()
    ours = copy.deepcopy(reference).npu()
    compiled = torch.compile(ours, backend="npu", dynamic=False)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (ours, reference)]
    for _ in range(6):
        x = torch.randn(SHAPES[model])
        with torch_npu.enable_graph(strict=True):
            y = compiled(x.npu())
        losses = [y.square().mean(), reference(x).square().mean()]
        assert_close(losses[0], losses[1], terms=1024)
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for a, b in zip(
        [*ours.parameters(), *ours.buffers()], [*reference.parameters(), *reference.buffers()], strict=True
    ):
        assert_close(a, b, terms=4096)
    (entry,) = torch_npu.graph_report()
    assert (entry.mode, entry.replays) == ("forward + backward", 5)


def test_graph_breaks_and_other_shapes() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.gelu(self.linear(x))
            torch._dynamo.graph_break()
            return self.linear(x) + 1

    reference = Broken()
    compiled = torch.compile(copy.deepcopy(reference).npu(), backend="npu")
    with torch.no_grad(), torch_npu.enable_graph(strict=True):
        for rows in (2, 3, 2, 5, 3, 2):
            x = torch.randn(rows, 6)
            assert_close(compiled(x.npu()), reference(x), terms=64)
    assert [e.module for e in torch_npu.graph_report()] == ["OptimizedModule"] * 3


def test_what_cannot_be_captured_is_told() -> None:
    compiled = torch.compile(nn.Sequential(Waits()), backend="npu")
    x = torch.ones(3, device="npu")
    with pytest.warns(GraphSinkingWarning, match="cannot be recorded into a graph"), torch_npu.enable_graph():
        assert compiled(x).tolist() == [2, 2, 2]


class Waits(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x.sum().item() / 3
