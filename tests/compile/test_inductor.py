"""Plain torch.compile (Inductor) on npu tensors: inference, training, mutation, shapes, refusals."""

from __future__ import annotations

import copy

import pytest
import torch
from compile_models import Block, Convolutions, Mlp
from tolerance import assert_close
from torch import Tensor, nn

import torch_npu


@pytest.mark.slow
@pytest.mark.parametrize("model", [Mlp, Block, Convolutions])
def test_training(model: type[nn.Module]) -> None:
    made = model()
    shape = {Mlp: (3, 5, 24), Block: (2, 7, 32), Convolutions: (4, 3, 8, 8)}[model]
    ours, x = copy.deepcopy(made).npu(), torch.randn(shape)
    loss = made(x).square().mean()
    loss.backward()
    our_loss = torch.compile(ours)(x.npu()).square().mean()
    assert our_loss.device.type == "npu"
    our_loss.backward()
    assert_close(our_loss, loss, terms=256)
    for p, q in zip(made.parameters(), ours.parameters(), strict=True):
        assert q.grad is not None
        assert q.grad.device.type == "npu"
        assert_close(q.grad, p.grad, terms=256)


@pytest.mark.slow
def test_inference_is_noted_in_the_ledger() -> None:
    x = torch.randn(9, 33)
    torch_npu.clear_fallback_report()
    with torch.no_grad():
        actual = torch.compile(lambda x: torch.softmax(x * 2, -1).sum(0))(x.npu())
    assert actual.device.type == "npu"
    assert_close(actual, torch.softmax(x * 2, -1).sum(0), terms=33)
    assert [e.op for e in torch_npu.fallback_report()] == ["torch_npu_inductor::code"]
    assert torch_npu.fallback_report()[0].copied_bytes == 0


@pytest.mark.slow
def test_mutation_and_dynamic_shapes() -> None:
    def function(x: Tensor) -> Tensor:
        x.mul_(2)
        return x.sum(-1) * x.shape[0]

    compiled = torch.compile(function, dynamic=True)
    for shape in [(3, 4), (5, 6)]:
        x = torch.randn(shape)
        ours = x.npu()
        assert_close(compiled(ours), function(x), terms=6)
        assert_close(ours, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_around_the_call(dtype: torch.dtype) -> None:
    x, weight = torch.randn(4, 8), torch.randn(8, 8)
    compiled = torch.compile(lambda x, w: x @ w)
    assert_close(compiled(x.npu(), weight.npu()), x @ weight, terms=8)
    with torch.autocast("npu", dtype):
        assert_close(compiled(x.npu(), weight.npu()), x.to(dtype) @ weight.to(dtype), terms=8)
    assert compiled(x.npu(), weight.npu()).dtype == torch.float32


def test_tensors_that_the_graph_makes() -> None:
    actual = torch.compile(lambda x: torch.arange(5, device=x.device) + x + torch.zeros(5, device="npu"))(
        torch.ones(5).npu()
    )
    assert actual.device.type == "npu"
    assert actual.cpu().tolist() == [1, 2, 3, 4, 5]


def test_cpu_tensors_among_npu_tensors_are_refused() -> None:
    with pytest.raises(Exception, match="the graph has a tensor on cpu"):
        torch.compile(lambda x: x.cpu() + 1)(torch.ones(5).npu())


@pytest.mark.slow
def test_cpu_graphs_are_inductors() -> None:
    x = torch.randn(7)
    assert_close(torch.compile(lambda x: x.exp() + 1)(x), x.exp() + 1)
