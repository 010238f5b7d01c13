"""The arena: nothing that lives at one time overlaps, and memory is used again."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import assert_close
from torch import nn

from torchtitan_npu.compile.memory import ALIGNMENT, Lifetime, plan_arena

lifetimes = st.builds(
    lambda size, first, length: Lifetime(size, first, first + length),
    st.integers(1, 5000),
    st.integers(0, 30),
    st.integers(0, 10),
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(lifetimes, max_size=30))
def test_tensors_of_one_time_do_not_overlap(tensors: list[Lifetime]) -> None:
    plan = plan_arena(tensors)
    assert plan.bytes <= plan.naive_bytes
    for i, (a, low) in enumerate(zip(tensors, plan.offsets, strict=True)):
        assert low % ALIGNMENT == 0
        assert low + a.bytes <= plan.bytes
        for b, other in zip(tensors[:i], plan.offsets, strict=False):
            if a.first <= b.last and b.first <= a.last:
                assert low + a.bytes <= other or other + b.bytes <= low


def test_memory_is_used_again() -> None:
    plan = plan_arena([Lifetime(1000, i, i + 1) for i in range(10)])
    assert plan.bytes == 2 * 1024
    assert plan.naive_bytes == 10 * 1024


class Chain(nn.Module):
    """Matrix products between small kernels, so that intermediates live in the arena."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(torch.softmax(x, -1))) + x
        return x


def test_results_of_two_runs_are_apart() -> None:
    for rows in (1, 5):
        torch._dynamo.reset()
        model = Chain()
        x, y = torch.randn(2, rows, 24)
        with torch.no_grad():
            expected = model(x), model(y)
            compiled = torch.compile(model.npu(), backend="npu")
            first, second = compiled(x.npu()), compiled(y.npu())
        assert_close(first, expected[0], terms=24)
        assert_close(second, expected[1], terms=24)


def test_weights_may_move_between_runs() -> None:
    model = nn.Linear(24, 17).npu()
    x = torch.randn(1, 24).npu()
    with torch.no_grad():
        compiled = torch.compile(model, backend="npu")
        compiled(x)
        model.weight.data = model.weight.data * 2
        assert_close(compiled(x), nn.functional.linear(x.cpu(), model.weight.cpu(), model.bias.cpu()), terms=24)
