"""torch.compile of an optimizer's step: each parameter is one kernel, which writes where the parameter lies."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from tolerance import assert_close
from torch import nn
from torch.optim import Optimizer

import torchtitan_npu.compile
from torchtitan_npu.compile import fallbacks, reports

Make = Callable[[Iterator[nn.Parameter]], Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-2),
    "NAdam": lambda p: torch.optim.NAdam(p, 1e-2),
    "RAdam": lambda p: torch.optim.RAdam(p, 1e-2),
    "Adamax": lambda p: torch.optim.Adamax(p, 1e-2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 1e-2, momentum=0.9, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "ASGD": lambda p: torch.optim.ASGD(p, 1e-2),
}


def train(make: Make, *, steps: int = 4, warm: int = 0) -> None:
    """The same gradients for a compiled step on npu and an eager one on the CPU, in float64."""
    torch._dynamo.reset()
    torchtitan_npu.compile.reset()
    torch.manual_seed(0)
    exact = nn.Sequential(nn.Linear(7, 33), nn.LayerNorm(33)).double()
    ours = copy.deepcopy(exact).float().npu()
    reference, optimizer = make(exact.parameters()), make(ours.parameters())
    step = torch.compile(lambda: optimizer.step(), backend="npu")
    for number in range(steps):
        for p, q in zip(exact.parameters(), ours.parameters(), strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.float().npu()
        reference.step()
        optimizer.step() if number < warm else step()
        for p, q in zip(exact.parameters(), ours.parameters(), strict=True):
            assert_close(q, p, terms=256)
    assert not fallbacks()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_steps(name: str) -> None:
    train(OPTIMIZERS[name])


def test_a_step_of_adamw_is_two_kernels_a_parameter_and_one_launch() -> None:
    """The parameter with its moments, and its count of steps, which lies on the npu as on CUDA; nothing is copied."""
    train(OPTIMIZERS["AdamW"], steps=6)
    report = reports()[-1]
    assert len(report.kernels) == 2 * 4
    assert not report.unfused
    assert report.sinking is not None
    assert not report.sinking.reason


def test_steps_after_eager_ones() -> None:
    train(OPTIMIZERS["AdamW"], warm=2)
