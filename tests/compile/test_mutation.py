"""Inputs and intermediate tensors that compiled graphs change in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tolerance import assert_close
from torch import Tensor

import torchtitan_npu.compile
from torchtitan_npu.compile import fallbacks, reports

Change = Callable[..., object]
POSITION = torch.tensor([2])


def compare(change: Change, *inputs: Tensor, options: dict[str, object] | None = None) -> list[str]:
    """Runs on the CPU and compiled, three times one after the other; results and inputs must agree. The last report."""
    torchtitan_npu.compile.reset()
    torch._dynamo.reset()
    here, there = [t.clone() for t in inputs], [t.npu() for t in inputs]
    compiled = torch.compile(change, backend="npu", options=options)
    for _ in range(3):
        expected, actual = change(*here), compiled(*there)
        for e, a in zip(_tensors((expected, here)), _tensors((actual, there)), strict=True):
            assert_close(a, e, terms=64)
    assert not fallbacks()
    return str(reports()[-1]).splitlines()


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if leaf is not None]


def alone(lines: list[str]) -> list[str]:
    return [line.split()[1] for line in lines if line.startswith("  alone")]


def index_copy(cache: Tensor, new: Tensor) -> Tensor:
    cache.index_copy_(1, POSITION.to(cache.device), new)
    return cache.sum(-1)


def index_put(cache: Tensor, new: Tensor) -> Tensor:
    cache[:, POSITION.to(cache.device)] = new
    return cache * 2


def slice_copy(cache: Tensor, new: Tensor) -> Tensor:
    cache[:, 3:4] = new
    return cache * 2


def slice_of_a_selection(cache: Tensor, new: Tensor) -> Tensor:
    cache[1, 3:4] = new[1]
    return cache[0] + cache[1]


def index_copy_into_a_selection(cache: Tensor, new: Tensor) -> Tensor:
    cache[1].index_copy_(0, POSITION.to(cache.device), new[1])
    return cache.exp()


def two_layers(cache: Tensor, new: Tensor) -> Tensor:
    cache[0, 1:2] = new[0]
    first = cache[0].exp().sum()
    cache[1, 1:2] = new[1] * first
    return first + cache[1].sum(0)


def add_and_scatter(cache: Tensor, new: Tensor) -> Tensor:
    cache.index_add_(1, POSITION.to(cache.device), new)
    cache.scatter_(1, torch.zeros(2, 1, 4, dtype=torch.int64, device=cache.device), new * 2)
    return cache.cos()


@pytest.mark.parametrize(
    ("change", "writes"),
    [
        (index_copy, 1), (index_put, 1), (slice_copy, 1), (slice_of_a_selection, 1), (index_copy_into_a_selection, 1),
        (two_layers, 2), (add_and_scatter, 2),
    ],
)  # fmt: skip
def test_parts_of_inputs_are_written_where_they_lie(change: Change, writes: int) -> None:
    lines = compare(change, torch.randn(2, 5, 4), torch.randn(2, 1, 4))
    assert f"  pass write_in_place: {writes}" in lines
    assert not [name for name in alone(lines) if name in ("aten.copy_", "torchtitan_npu.after_")]


def test_who_needs_the_old_value_reads_it_before() -> None:
    def change(cache: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        old = cache.sum(-1)
        kept = cache[:, 1] * 3
        cache[:, 1:2] = new
        return old + cache.sum(-1), kept

    assert "  pass write_in_place: 1" in compare(change, torch.randn(2, 5, 4), torch.randn(2, 1, 4))


@pytest.mark.parametrize(
    "change",
    [
        lambda cache, new: cache.copy_(torch.cat((cache[:, 1:], new), 1)),  # shifted
        lambda cache, new: cache[:, 1:].copy_(cache[:, :-1].clone()),
        lambda cache, new: cache.index_copy_(1, POSITION.to(cache.device), cache[:, :1]),
        lambda cache, new: (cache.index_copy_(1, POSITION.to(cache.device), new), cache[:, :3]),
        lambda cache, new: cache.copy_(cache.index_copy(1, POSITION.to(cache.device), new) * cache),
    ],
)
def test_what_reads_the_input_in_other_ways(change: Change) -> None:
    compare(change, torch.randn(2, 5, 4), torch.randn(2, 1, 4))


def test_an_old_value_that_is_a_result() -> None:
    def change(cache: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        filled = cache.index_copy(1, POSITION.to(cache.device), new)
        cache.copy_(filled)
        return filled, cache.clone()

    compare(change, torch.randn(2, 5, 4), torch.randn(2, 1, 4))


def test_intermediate_tensors() -> None:
    def change(x: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        first = x.exp()
        second = first.index_copy(1, POSITION.to(x.device), new)  # nobody needs the first as it was
        third = second.cos()
        fourth = third.index_add(1, POSITION.to(x.device), new)  # the third is a result
        return fourth, third

    assert "  pass write_in_place: 1" in compare(change, torch.randn(2, 5, 4), torch.randn(2, 1, 4))


def test_memory_of_what_was_written_in_place_is_not_given_away() -> None:
    def change(x: Tensor, new: Tensor) -> Tensor:
        filled = x.exp().index_copy(1, POSITION.to(x.device), new)
        others = [(x * n).sin().cumsum(1) for n in range(1, 4)]  # kernels and operators that want memory
        return filled * 2 + torch.stack(others).sum(0)

    compare(change, torch.randn(2, 5, 4), torch.randn(2, 1, 4))


def test_memory_of_a_view_as_complex_numbers_is_not_given_away() -> None:
    def change(x: Tensor, y: Tensor) -> Tensor:
        numbers = torch.view_as_complex(x.exp())
        others = [(y * n).sin().cumsum(1) for n in range(1, 4)]
        return torch.view_as_real(numbers * 2) + torch.stack(others).sum(0)

    compare(change, torch.randn(3, 5, 2), torch.randn(3, 5, 2))


@pytest.mark.parametrize("sink", [True, False])
def test_kernels_write_new_values_of_inputs(sink: bool) -> None:
    def change(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        old = x.sum()
        x.mul_(0.5).add_(y)
        first = y + z
        y.copy_(first)
        z.mul_(first)
        return old

    lines = compare(change, *(torch.randn(33, 70) for _ in range(3)), options={"sink": sink})
    assert not alone(lines)


def sum_and_difference(x: Tensor, y: Tensor) -> None:
    first, second = x + y, x - y
    x.copy_(first)
    y.copy_(second)


@pytest.mark.parametrize(
    "change",
    [
        lambda x, y: x.copy_(x + x.t()),  # reads each element twice
        lambda x, y: (x.copy_(x - x.mean(-1, keepdim=True)), y * x),
        lambda x, y: (x.copy_(x.softmax(0)), x.sum()),
        lambda x, y: (y.copy_(x.exp()), x.copy_(y.cos())),
        sum_and_difference,  # two kernels: the first may not write over what the second reads
        lambda x, y: (x.mul_(2), y.copy_(x)),
        lambda x, y: (x[:, :1].mul_(2), y.add_(x[:, :1])),
        lambda x, y: x.t().mul_(y),
    ],
)
def test_new_values_that_depend_on_other_elements(change: Change) -> None:
    compare(lambda x, y: (change(x, y), None)[1], torch.randn(70, 70), torch.randn(70, 70))


def test_a_number_for_each_row_is_written_once() -> None:
    def change(column: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        new = column * 2 + 1
        column.copy_(new)
        return x + new, (x * new).sum(1)

    compare(change, torch.randn(50, 1), torch.randn(50, 70))


@pytest.mark.parametrize("sink", [True, False])
def test_autograd_knows_that_an_input_was_changed(sink: bool) -> None:
    x, y = torch.ones(4, device="npu"), torch.ones(4, device="npu", requires_grad=True)
    compiled = torch.compile(lambda x: (x.mul_(2), None)[1], backend="npu", options={"sink": sink})
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
    product = (x * y).sum()
    with torch.no_grad():
        compiled(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_the_pass_can_be_switched_off() -> None:
    options = {"passes": {"write_in_place": False}}
    lines = compare(index_copy, torch.randn(2, 5, 4), torch.randn(2, 1, 4), options=options)
    assert "aten.copy_" in alone(lines)


def test_sizes_that_are_symbols() -> None:
    torch._dynamo.reset()
    torchtitan_npu.compile.reset()
    compiled = torch.compile(slice_copy, backend="npu", dynamic=True)
    for length in (5, 7, 9):
        cache, new = torch.randn(2, length, 4), torch.randn(2, 1, 4)
        there = cache.npu()
        assert_close(compiled(there, new.npu()), slice_copy(cache, new))
        assert_close(there, cache)
    assert "  pass write_in_place: 1" in str(reports()[-1]).splitlines()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.empty_like(x, memory_format=torch.channels_last).copy_(y),
        lambda x, y: torch.empty_like(x).copy_(y.to(memory_format=torch.channels_last)),
        lambda x, y: torch.empty_like(x).copy_(y.transpose(2, 3)),
        lambda x, y: torch.empty_like(x).copy_(y[:, :, :1]),
        lambda x, y: torch.full_like(x, 2.0, memory_format=torch.channels_last) + y * 0,
        lambda x, y: torch.full_like(x, 2.0, memory_format=torch.channels_last),
        lambda x, y: torch.zeros_like(x.to(memory_format=torch.channels_last)),
        lambda x, y: torch.ones_like(x.transpose(1, 2), dtype=torch.float64),
    ],
)
def test_copies_and_filled_tensors_have_the_layout_of_eager_mode(function: Change) -> None:
    x, y = torch.randn(2, 3, 5, 5), torch.randn(2, 3, 5, 5)
    expected = function(x, y)
    torch._dynamo.reset()
    actual = torch.compile(function, backend="npu")(x.npu(), y.npu())
    assert (actual.dtype, actual.stride()) == (expected.dtype, expected.stride())
    assert_close(actual, expected)
