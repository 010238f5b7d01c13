"""Random graphs, compiled against eager in float64: values and gradients."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tolerance import assert_close
from torch import Tensor

from torchtitan_npu.compile import fallbacks, memory

UNARY = [torch.tanh, torch.sigmoid, torch.sin, torch.nn.functional.gelu, torch.nn.functional.silu, torch.neg, torch.erf]
BINARY = [torch.add, torch.sub, torch.mul]
ROWS = [
    lambda x: (x.sin() * column(x)).sum(-1, keepdim=True) * 0.1 + x,
    lambda x: (x.exp() - column(x)).amax(-1, keepdim=True) * column(x) - x,
    lambda x: x - x.mean(-1, keepdim=True),
    lambda x: torch.softmax(x, -1),
    lambda x: x / (1 + x.square().sum(-1, keepdim=True)),
    lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1),
    lambda x: x + x.sum(0) / x.shape[0],
    lambda x: x.cumsum(-1) * 0.1,  # runs alone
    lambda x: (x @ x.transpose(-1, -2)).mean(-1, keepdim=True) + x,
    lambda x: x.transpose(-1, -2).exp().transpose(-1, -2) * 0.1,
    lambda x: torch.cat((x[..., 1:], x[..., :1]), -1),
    lambda x: torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1) * x,
    lambda x: torch.cat((x[1:].sin() + x[:1], x[:1]), 0),
    lambda x: x.sin().reshape(-1).exp().view(x.shape) * 0.1,
    lambda x: x.exp().transpose(-1, -2).reshape(x.shape) * 0.1,
    lambda x: torch.softmax(heads(x.sin()), -1).flatten(-2) + x,
    lambda x: F.embedding(order(x), x.reshape(-1, x.shape[-1])) * x,
    lambda x: x.sin() + x.reshape(-1, x.shape[-1])[-order(x) - 1].softmax(-1),
    lambda x: x.index_select(-2, torch.arange(x.shape[-2], device=x.device)).exp() * 0.1,
    lambda x: heads(x.cos()).transpose(-2, -3).exp().transpose(-2, -3).reshape(x.shape) * 0.1,
]


def order(x: Tensor) -> Tensor:
    """Numbers of all rows, shuffled, one a row."""
    count = x.numel() // x.shape[-1]
    return ((torch.arange(count, device=x.device) * 7 + 3) % count).view(x.shape[:-1])


def column(x: Tensor) -> Tensor:
    """A number for each row."""
    count = x.numel() // x.shape[-1]
    return torch.arange(count, dtype=x.dtype, device=x.device).cos().view((*x.shape[:-1], 1))


def heads(x: Tensor) -> Tensor:
    """The last dimension in four parts, if it has so many."""
    return x.unflatten(-1, (4, -1) if x.shape[-1] % 4 == 0 else (1, -1))


@st.composite
def random_steps(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    """(kind, which function, first operand, second operand), counted from the latest value."""
    kinds = st.sampled_from(["unary", "binary", "binary", "rows"])
    index = st.integers(0, len(ROWS) - 1)
    return [
        (draw(kinds), draw(index), draw(st.integers(0, 3)), draw(st.integers(0, 3)))
        for _ in range(draw(st.integers(2, 9)))
    ]


def run(steps: list[tuple[str, int, int, int]], inputs: list[Tensor]) -> Tensor:
    values = list(inputs)
    for kind, which, first, second in steps:
        a, b = values[-1 - first % len(values)], values[-1 - second % len(values)]
        if kind == "unary":
            values.append(UNARY[which % len(UNARY)](a))
        elif kind == "rows":
            values.append(ROWS[which % len(ROWS)](torch.tanh(a)))
        else:
            values.append(torch.tanh(BINARY[which % len(BINARY)](a, b)))
    return END[steps[0][2]](values[-1], inputs[-1])


END = [
    lambda result, x: result,
    lambda result, x: (result * x[..., :1]).sum(-1),
    lambda result, x: (result + x[..., :1]).amax(-1) * x[..., 0],
    lambda result, x: (result * x[..., :1, :]).mean(-2),
]
"""What becomes of the last value, with the last input: a result of its shape, or one for each row or column."""


GRAPHS = int(os.environ.get("RANDOM_GRAPHS", "40"))
"""Of the slow test; more of them find more: RANDOM_GRAPHS=2000 pytest -m slow tests/compile/test_random_graphs.py."""

graphs = {
    "steps": random_steps(), "shape": st.sampled_from([(3, 5), (2, 3, 17), (1, 33), (2, 4, 12)]),
    "seed": st.integers(0, 3), "arena": st.booleans(),
}  # fmt: skip
common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "phases": [Phase.generate]}


@settings(max_examples=4, derandomize=True, **common)
@given(**graphs)
def test_some_graphs(steps: list[tuple[str, int, int, int]], shape: tuple[int, ...], seed: int, arena: bool) -> None:
    check(steps, shape, seed, arena)


@pytest.mark.slow
@settings(max_examples=GRAPHS, derandomize=GRAPHS <= 40, **common)
@given(**graphs)
def test_many_graphs(steps: list[tuple[str, int, int, int]], shape: tuple[int, ...], seed: int, arena: bool) -> None:
    check(steps, shape, seed, arena)


def check(steps: list[tuple[str, int, int, int]], shape: tuple[int, ...], seed: int, arena: bool) -> None:
    """The plan's first run, and replays of it on other numbers; without an arena intermediates are treated as large."""
    with pytest.MonkeyPatch.context() as patch:
        if not arena:
            patch.setattr(memory, "LARGEST_IN_ARENA", 0)
        compare(steps, shape, seed)


def compare(steps: list[tuple[str, int, int, int]], shape: tuple[int, ...], seed: int) -> None:
    torch._dynamo.reset()
    function = torch.compile(lambda x, y: run(steps, [y.expand(x.shape) + x * 0, x]), backend="npu")
    for repeat in range(3):
        torch.manual_seed(seed + 10 * repeat)
        exact = [torch.randn(shape, dtype=torch.float64).requires_grad_(), torch.randn(shape[-1:], dtype=torch.float64)]
        ours = [x.detach().float().npu().requires_grad_(x.requires_grad) for x in exact]
        expected = run(steps, [exact[1].expand(shape) + exact[0] * 0, exact[0]])
        actual = function(*ours)
        assert_close(actual, expected, terms=64)
        weights = torch.randn(expected.shape, dtype=torch.float64)
        (grad,) = torch.autograd.grad(expected, exact[0], weights, allow_unused=True)
        (our_grad,) = torch.autograd.grad(actual, ours[0], weights.float().npu(), allow_unused=True)
        assert (grad is None) == (our_grad is None)
        if grad is not None:
            assert_close(our_grad, grad, terms=256)
    assert not fallbacks()
