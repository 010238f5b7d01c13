"""Tables that kernels read by indices: embedding, index, index_select, gather; indices beyond the table raise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_close
from torch import Tensor

import torchtitan_npu.compile
from torchtitan_npu.compile.report import GraphReport


def the_report() -> GraphReport:
    (report,) = torchtitan_npu.compile.reports()
    return report


def bert_embeddings(index: Tensor, table: Tensor, x: Tensor) -> Tensor:
    """Words, positions by a count, and the norm."""
    positions = torch.arange(index.shape[1], device=index.device)
    return F.layer_norm(F.embedding(index, table) + F.embedding(positions, x[0]), x.shape[2:])


def scaled(index: Tensor, table: Tensor, x: Tensor) -> Tensor:
    return F.embedding(index, table) * 3 + 1


def selected(index: Tensor, table: Tensor, x: Tensor) -> Tensor:
    return table.index_select(0, index[0]).exp() * 2


def selected_columns(index: Tensor, table: Tensor, x: Tensor) -> Tensor:
    return table.index_select(1, index[0] % 5).exp() * 2


def indexed(index: Tensor, table: Tensor, x: Tensor) -> Tensor:
    return table[index - 3].sin() * 2


def indexed_in_the_middle(index: Tensor, table: Tensor, x: Tensor) -> Tensor:
    return table.view(11, 3, 4)[:, index % 3].exp() + 1


def indexed_twice(index: Tensor, table: Tensor, x: Tensor) -> Tensor:
    return table.view(11, 3, 4)[index, index[:1] % 3] * 2 + 1


def indexed_apart(index: Tensor, table: Tensor, x: Tensor) -> Tensor:
    """The dimensions of indices that are no neighbours come first."""
    return table.view(11, 3, 4)[index, :, index % 4].exp() - 1


def gathered_by_expanded_indices(index: Tensor, table: Tensor, x: Tensor) -> Tensor:
    return table.gather(0, index[0][:, None].expand(-1, 12)).exp() + 1


def rotary(index: Tensor, table: Tensor, x: Tensor) -> Tensor:
    """Tables of cosines and sines by positions."""
    cos, sin = table.cos()[index], table.sin()[index]
    rows = x[:, : index.shape[1]]
    return rows * cos + torch.cat((-rows[..., 6:], rows[..., :6]), -1) * sin


def columns(index: Tensor, table: Tensor, x: Tensor) -> Tensor:
    """Rows of a table are summed across: the lanes lie along a parallel axis."""
    return (F.embedding(index, table) * 2).sum(0)


CASES: list[tuple[Callable[[Tensor, Tensor, Tensor], Tensor], int]] = [
    (bert_embeddings, 1), (scaled, 1), (selected, 1), (selected_columns, 2), (indexed, 2), (indexed_in_the_middle, 2),
    (indexed_twice, 2), (indexed_apart, 2), (gathered_by_expanded_indices, 1), (rotary, 3), (columns, 1),
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize(("function", "kernels"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_is_part_of_a_kernel(
    function: Callable[[Tensor, Tensor, Tensor], Tensor], kernels: int, dtype: torch.dtype, dynamic: bool
) -> None:
    if dynamic and function is bert_embeddings:
        pytest.skip("a count of symbolic length may end beyond the table: test_counts_that_may_end_beyond")
    if dtype == torch.int32 and function is gathered_by_expanded_indices:
        pytest.skip("torch.gather takes int64 only")
    compiled = torch.compile(function, backend="npu", dynamic=dynamic)
    for s in (5, 7) if dynamic else (5,):
        index, table, x = torch.randint(0, 11, (2, s), dtype=dtype), torch.randn(11, 12), torch.randn(2, 9, 12)
        given = [index.npu(), table.npu(), x.npu()]
        torch._dynamo.maybe_mark_dynamic(given[0], 1) if dynamic else None
        expected = function(index, table.double(), x.double())
        for _ in range(3):
            assert_close(compiled(*given), expected, terms=16)
    report = the_report()
    if not (dynamic and function is rotary):  # the halves of a row are of symbolic length
        assert (len(report.kernels), report.unfused) == (kernels, [])
    if function in (bert_embeddings, scaled, rotary):
        assert sum(len(k.checks) for k in report.kernels) == 1


@pytest.mark.parametrize("bad", [11, -1, 1 << 40, -(1 << 40)])
@pytest.mark.parametrize(
    "function", [scaled, lambda index, table: table.index_select(0, index[0]).exp()], ids=["embedding", "select"]
)
def test_indices_beyond_the_table_raise(function: Callable[..., Tensor], bad: int) -> None:
    """At the first run and in replays, as eager does; calls after it are as before."""
    arguments = (torch.randn(11, 12).npu(), torch.randn(1)) if function is scaled else (torch.randn(11, 12).npu(),)
    compiled = torch.compile(function, backend="npu")
    good, wrong = torch.tensor([[1, 10, 0]]).npu(), torch.tensor([[1, bad, 0]]).npu()
    expected = function(good, *arguments)
    for _ in range(4):
        with pytest.raises(RuntimeError):
            function(wrong, *arguments)
        with pytest.raises(RuntimeError):
            compiled(wrong, *arguments)
        assert_close(compiled(good, *arguments), expected, terms=4)


def test_negative_indices_count_from_the_end() -> None:
    compiled = torch.compile(lambda index, table: table[index].exp() * 2, backend="npu")
    index, table = torch.tensor([-11, -1, 0, 10]), torch.randn(11, 12)
    assert_close(compiled(index.npu(), table.npu()), table.double()[index].exp() * 2, terms=4)
    for bad in (-12, 11):
        with pytest.raises(RuntimeError):
            compiled(torch.tensor([0, bad, 0, 0]).npu(), table.npu())


def test_indices_are_checked_once() -> None:
    """Two tables of one size by the same indices, in two kernels."""

    def function(index: Tensor, a: Tensor, b: Tensor) -> Tensor:
        first = F.embedding(index, a).exp() @ torch.ones(12, 12, device=index.device)
        return first + F.embedding(index, b).sin()

    given = torch.tensor([3, 1, 4]), torch.randn(11, 12), torch.randn(11, 12)
    compiled = torch.compile(function, backend="npu")
    expected = given[1].double()[given[0]].exp().sum(1, keepdim=True) + given[2].double()[given[0]].sin()
    assert_close(compiled(*(t.npu() for t in given)), expected, terms=64)
    assert [k.checks for k in the_report().kernels] == [("arg0_1",), ()]
    assert str(the_report()).count("check of arg0_1, before kernel_") == 1


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda index, table: F.embedding(index, table), "reads a table, and no kernel takes what it reads"),
        (lambda index, table: table.view(-1)[index] * 2, "by as many indices as results"),
        (lambda index, table: table.gather(0, index[:, :1].expand(-1, 12).contiguous()) * 2, "by as many indices"),
    ],
)
def test_reads_by_themselves(function: Callable[..., Tensor], reason: str) -> None:
    index, table = torch.randint(0, 11, (2, 3)), torch.randn(11, 12)
    compiled = torch.compile(function, backend="npu")
    assert_close(compiled(index.npu(), table.npu()), function(index, table.double()), terms=80)
    assert any(reason in u.reason for r in torchtitan_npu.compile.reports() for u in r.unfused)


def test_tables_that_the_kernel_computes_are_in_memory() -> None:
    """What is gathered from must be there whole."""
    compiled = torch.compile(lambda index, table: F.embedding(index, table.exp()) * table[:3].exp(), backend="npu")
    index, table = torch.tensor([5, 2, 0]), torch.randn(11, 12)
    assert_close(compiled(index.npu(), table.npu()), table.double().exp()[index] * table[:3].double().exp(), terms=8)


def test_views_of_computed_indices() -> None:
    """The check reads what the indices are views of, which lives as long."""

    def function(index: Tensor, table: Tensor) -> Tensor:
        known = (index + 1).cumsum(1)[:, :3]
        rows = F.embedding(known.unsqueeze(0).expand(4, 2, 3), table).exp()
        return rows @ torch.ones(12, 12, device=index.device, dtype=table.dtype) + rows

    compiled = torch.compile(function, backend="npu")
    index, table = torch.randint(0, 3, (2, 5)), torch.randn(11, 12)
    for _ in range(3):
        assert_close(compiled(index.npu(), table.npu()), function(index, table.double()), terms=64)


def test_counts_that_may_end_beyond() -> None:
    """A count of symbolic length is an operator's, which raises."""

    def function(x: Tensor, table: Tensor) -> Tensor:
        return x + F.embedding(torch.arange(x.shape[0], device=x.device), table)

    compiled = torch.compile(function, backend="npu", dynamic=True)
    table = torch.randn(11, 12)
    for s in (5, 7, 11):
        x = torch.randn(s, 12)
        assert_close(compiled(x.npu(), table.npu()), x.double() + table[:s], terms=2)
    with pytest.raises(RuntimeError):
        compiled(torch.randn(12, 12).npu(), table.npu())


def test_gradients() -> None:
    index = torch.randint(0, 11, (2, 5))
    table, x = (torch.randn(n, dtype=torch.float64, requires_grad=True) for n in ((11, 12), (2, 9, 12)))
    expected = torch.autograd.grad(bert_embeddings(index, table, x).sin().sum(), (table, x))
    ours = [t.detach().float().npu().requires_grad_() for t in (table, x)]
    actual = torch.autograd.grad(torch.compile(bert_embeddings, backend="npu")(index.npu(), *ours).sin().sum(), ours)
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, terms=64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64])
def test_types(dtype: torch.dtype) -> None:
    index, table = torch.randint(0, 11, (2, 5)), (torch.randn(11, 12) * 4).to(dtype)
    compiled = torch.compile(lambda index, table: F.embedding(index, table) * 2, backend="npu")
    assert_close(compiled(index.npu(), table.npu()), F.embedding(index, table) * 2, terms=1)
