"""Activation checkpointing of random operators: the backward computes the forward's numbers again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tolerance import assert_close
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torch_npu
from torchtitan_npu.compile import fallbacks, reports, reset

Function = Callable[[Tensor], Tensor]

# Linear in their argument, whatever is drawn: along it, the gradient is the result.
FUNCTIONS: dict[str, Function] = {
    "dropout": lambda x: F.dropout(x * 2, 0.4) * 3,
    "two draws": lambda x: F.dropout(F.dropout(x, 0.2) * 3, 0.5),
    "rand_like": lambda x: x * torch.rand_like(x),
    "randn": lambda x: x * torch.randn(x.shape, device=x.device),
    "bernoulli_": lambda x: x * torch.empty_like(x).bernoulli_(0.3),
    "exponential_": lambda x: x * torch.empty_like(x).exponential_(),
    "multinomial": lambda x: x[:, torch.multinomial(torch.ones(x.shape[1], device=x.device), 7)],
    "attention": lambda x: F.scaled_dot_product_attention(
        torch.ones_like(x)[None], torch.ones_like(x)[None], x[None], dropout_p=0.4
    )[0],
    "fused attention": lambda x: torch_npu.npu_fusion_attention(
        torch.ones_like(x)[None], torch.ones_like(x)[None], x[None], 2, "BSH", keep_prob=0.5
    )[0][0],
}


class Checkpointed(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.function, x, use_reentrant=False) + F.dropout(x, 0.5)


@pytest.mark.parametrize("way", ["eager", "compiled", "aot_eager", "graph", "compiled graph"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_backward_draws_the_same(name: str, way: str) -> None:
    torch._dynamo.reset()
    reset()
    module: Callable[[Tensor], Tensor] = Checkpointed(
        FUNCTIONS[name] if name != "multinomial" else lambda x: FUNCTIONS[name](x).sum(1, keepdim=True)
    )
    if "compiled" in way or way == "aot_eager":
        module = torch.compile(module, backend="aot_eager" if way == "aot_eager" else "npu")
    x = torch.randn(24, 32, device="npu", requires_grad=True)
    seen = set()
    for _ in range(5):
        if "graph" in way:
            with torch_npu.enable_graph():
                result = module(x)
        else:
            result = module(x)
        direction = torch.randn_like(result)
        (gradient,) = torch.autograd.grad(result, x, direction)
        assert_close((gradient * x).sum(), (result * direction).sum(), terms=4096)
        seen.add(result.detach().square().sum().item())
    assert len(seen) == 5
    assert not fallbacks()


def test_why_such_plans_are_not_one_launch() -> None:
    torch._dynamo.reset()
    reset()
    x = torch.randn(24, 32, device="npu", requires_grad=True)
    call = torch.compile(Checkpointed(FUNCTIONS["dropout"]), backend="npu")
    for _ in range(3):
        call(x).sum().backward()
    forward, backward = map(str, reports())
    assert "not sunk: a result is a torch.strided tensor on cpu" in forward
    assert "not sunk: input" in backward
