"""The arena: nothing that lives at one time overlaps, and memory is used again."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import assert_close
from torch import nn

import torchtitan_npu.compile
from torchtitan_npu.compile.memory import ALIGNMENT, LARGEST_IN_ARENA, Lifetime, plan_arena, plan_memory

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


def test_large_tensors_are_not_in_the_arena() -> None:
    large = LARGEST_IN_ARENA + 1
    plan = plan_memory([Lifetime(large, 0, 1), Lifetime(100, 0, 2), Lifetime(large, 1, 2), Lifetime(large, 2, 3)])
    assert plan.arena_bytes == 128
    assert plan.bytes - 128 == 2 * (plan.naive_bytes - 128) // 3
    assert plan.offsets[1] == 0
    assert min(plan.offsets[0], *plan.offsets[2:]) == 128


def gelu_between_products(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ w) @ v


def test_a_large_result_takes_the_place_of_its_operand() -> None:
    torchtitan_npu.compile.reset()
    x, w, v = torch.randn(300, 16), torch.randn(16, 400), torch.randn(400, 8)
    compiled = torch.compile(gelu_between_products, backend="npu", options={"sink": False}, dynamic=False)
    for _ in range(2):
        torch.npu.reset_peak_memory_stats()
        before = torch.npu.memory_allocated()
        assert_close(compiled(x.npu(), w.npu(), v.npu()), gelu_between_products(x, w, v), terms=400)
        assert torch.npu.max_memory_allocated() - before < 1.5 * 300 * 400 * 4
    (report,) = torchtitan_npu.compile.reports()
    assert (report.in_place, report.naive_bytes) == (1, 300 * 400 * 4)


def test_an_operand_that_lives_on_keeps_its_place() -> None:
    def twice(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        product = x @ w
        return (torch.sigmoid(product) @ v).sum() + (product @ v).sum()

    torchtitan_npu.compile.reset()
    x, w, v = torch.randn(300, 16), torch.randn(16, 400), torch.randn(400, 8)
    compiled = torch.compile(twice, backend="npu", options={"sink": False})
    assert_close(compiled(x.npu(), w.npu(), v.npu()), twice(x.double(), w.double(), v.double()), terms=1000)
    assert torchtitan_npu.compile.reports()[-1].in_place == 0


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
