"""What cannot be captured says so at once, by name and line, and leaves everything usable."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from capturing import captured, churn

X = torch.arange(-4.0, 5.0)
REFUSED: dict[str, tuple[Callable[[torch.Tensor], object], str]] = {
    "item": (lambda x: x.sum().item(), r"tensor.item\(\)"),
    "bool": (lambda x: bool(x.sum() > 0), r"tensor.item\(\)"),
    "int": (lambda x: int(x[0]), r"tensor.item\(\)"),
    "tolist": (lambda x: x.tolist(), "a copy to the CPU"),
    "cpu": (lambda x: x.cpu(), "a copy to the CPU"),
    "from the CPU": (lambda x: torch.tensor([1.0, 2.0], device="npu"), "a copy from the CPU"),
    "nonzero": (lambda x: x.nonzero(), "aten::nonzero.*depends on the data"),
    "mask index": (lambda x: x[x > 0], "aten::nonzero.*depends on the data"),
    "masked_select": (lambda x: x.masked_select(x > 0), "aten::masked_select.*depends on the data"),
    "unique": (lambda x: x.unique(), "aten::_unique2.*depends on the data"),
    "unique_consecutive": (lambda x: x.unique_consecutive(), "aten::unique_consecutive.*depends on the data"),
    "equal": (lambda x: torch.equal(x, x + 1), "item"),
    "synchronize": (lambda x: torch.npu.synchronize(), "torch.npu.synchronize"),
    "stream.synchronize": (lambda x: torch.npu.current_stream().synchronize(), "stream.synchronize"),
    "stream.query": (lambda x: torch.npu.current_stream().query(), "stream.query"),
    "fallback with random numbers": (lambda x: x.cauchy_(), "aten::cauchy_.*random numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_names_operator_and_line(name: str) -> None:
    function, message = REFUSED[name]
    x = X.npu()
    gc.collect()
    reserved = torch.npu.memory_allocated()
    graph = torch.npu.NPUGraph()
    doubled = []
    with pytest.raises(RuntimeError, match=message) as caught, torch.npu.graph(graph):
        function(doubled.append(x * 2) or doubled[0])
    text = str(caught.value)
    assert "cannot be recorded into a graph" in text

    assert Path(__file__).name in text, text

    # Everything works as before, the graph object too.
    assert torch.equal(x.cpu(), X)
    with torch.npu.graph(graph):
        z = x + 1
    graph.replay()
    assert torch.equal(z.cpu(), X + 1)
    del doubled, z, graph, caught
    gc.collect()
    assert torch.npu.memory_allocated() == reserved
    churn()


def test_refusal_in_a_backward_names_where_the_capture_began() -> None:
    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            return grad * grad.sum().item()

    x = torch.ones(3, device="npu", requires_grad=True)
    with pytest.raises(RuntimeError, match=r"tensor.item\(\) cannot be recorded.*test_graph_refusals.py"):
        captured(lambda: Looks.apply(x).sum().backward())
    assert x.grad is None


def test_caught_refusal_does_not_spoil_the_capture() -> None:
    x = X.npu()

    def work() -> torch.Tensor:
        with pytest.raises(RuntimeError, match="cannot be recorded"):
            x.sum().item()
        return x * 3

    graph, y = captured(work)
    graph.replay()
    assert torch.equal(y.cpu(), X * 3)


def test_error_of_the_block_is_the_one_that_arrives() -> None:
    graph = torch.npu.NPUGraph()
    x = X.npu()

    def fail(_: torch.Tensor) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), torch.npu.graph(graph):
        fail(x.mul_(2))
    assert not torch.npu.is_current_stream_capturing()
    assert torch.equal(x.cpu(), X)


def test_replay_inside_a_capture() -> None:
    x = X.npu()
    inner, _ = captured(lambda: x.mul_(2))
    with pytest.raises(RuntimeError, match=r"NPUGraph.replay cannot be recorded.*part of another"):
        captured(inner.replay)


def test_pinned_memory_can_be_captured() -> None:
    source, target = torch.ones(5).pin_memory(), torch.empty(5).pin_memory()

    def work() -> None:
        x = source.to("npu", non_blocking=True)
        target.copy_(x * 2, non_blocking=True)

    graph, _ = captured(work)
    for value in (1.0, 7.0):
        source.fill_(value)
        graph.replay()
        torch.npu.synchronize()
        assert target.tolist() == [2 * value] * 5
