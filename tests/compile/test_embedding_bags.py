"""nn.EmbeddingBag in compiled plans and in graphs: values and gradients of every call."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from tolerance import assert_close
from torch import Tensor, nn

import torch_npu
from torchtitan_npu.sinking import GraphSinkingWarning

Call = Callable[..., Tensor]


def sunk(module: nn.Module) -> Call:
    def call(*arguments: Tensor) -> Tensor:
        with torch_npu.enable_graph():
            result: Tensor = module(*arguments)
        return result

    return call


WAYS: dict[str, Callable[[nn.Module], Call]] = {"compile": lambda m: torch.compile(m, backend="npu"), "graph": sunk}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_training(way: str, dtype: torch.dtype, mode: str) -> None:
    model = nn.EmbeddingBag(50, 8, mode=mode, padding_idx=3, dtype=dtype)
    ours = copy.deepcopy(model).npu()
    run = WAYS[way](ours)
    with warnings.catch_warnings():
        warnings.simplefilter("error" if dtype != torch.float64 else "ignore", GraphSinkingWarning)
        for _ in range(4):
            indices, offsets = torch.randint(0, 50, (20,)), torch.tensor([0, 4, 4, 13])
            model.zero_grad()
            ours.zero_grad()
            expected, result = model(indices, offsets), run(indices.npu(), offsets.npu())
            expected.square().sum().backward()
            result.square().sum().backward()
            assert_close(result, expected, terms=8)
            assert model.weight.grad is not None
            assert ours.weight.grad is not None
            assert_close(ours.weight.grad, model.weight.grad, terms=64)


@pytest.mark.parametrize("way", WAYS)
def test_inference_with_weights_of_samples(way: str) -> None:
    model = nn.EmbeddingBag(50, 8, mode="sum")
    run = WAYS[way](copy.deepcopy(model).npu())
    with torch.no_grad():
        for _ in range(4):
            given = torch.randint(0, 50, (12,)), torch.tensor([0, 5]), torch.rand(12)
            assert_close(run(*[t.npu() for t in given]), model(*given), terms=8)
