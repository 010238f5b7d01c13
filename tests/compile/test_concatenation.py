"""Concatenation as part of a kernel, with what is computed for it alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tolerance import assert_close
from torch import Tensor

import torchtitan_npu.compile


def compiled_like_eager(function: Callable[..., Tensor], *inputs: Tensor) -> torchtitan_npu.compile.GraphReport:
    torch._dynamo.reset()
    torchtitan_npu.compile.reset()
    compiled = torch.compile(function, backend="npu", dynamic=False)
    exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    for _ in range(3):  # as it is, captured, replayed
        assert_close(compiled(*(x.npu() for x in inputs)), exact.to(inputs[0].dtype).double(), terms=4)
    (report,) = torchtitan_npu.compile.reports()
    return report


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rotary(x: Tensor, angles: Tensor) -> Tensor:
    """As transformers writes it for Llama."""
    both = torch.cat((angles, angles), dim=-1)
    return x * both.cos().unsqueeze(1) + rotate_half(x) * both.sin().unsqueeze(1)


@pytest.mark.parametrize("shape", [(2, 3, 5, 64), (1, 2, 7, 16), (2, 3, 4, 10), (1, 1, 1, 2)])
def test_rotary(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)
    report = compiled_like_eager(rotary, x, torch.randn(shape[0], shape[2], shape[3] // 2))
    assert [k.operators for k in report.kernels][-1].count("aten.neg") == 1
    assert not report.unfused
    assert len(report.kernels) <= 2  # of the angles, and of the rest


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 16, 2), (17, 5, 1, 40)])
def test_parts_along_each_dimension(dim: int, sizes: tuple[int, ...]) -> None:
    def join(*given: Tensor) -> Tensor:
        return torch.cat([x.sigmoid() if i % 2 else x for i, x in enumerate(given)], dim).tanh()

    shapes = [[3, 4, 18] for _ in sizes]
    for shape, size in zip(shapes, sizes, strict=True):
        shape[dim] = size
    report = compiled_like_eager(join, *(torch.randn(s) for s in shapes))
    assert report.launches == 1


def test_a_row_is_joined_and_summed() -> None:
    def norm(x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(torch.cat((x * y, y.exp()), 1), 1)

    report = compiled_like_eager(norm, torch.randn(9, 20), torch.randn(9, 20))
    assert report.launches == 1


def test_values_of_the_kernel_itself_come_from_memory() -> None:
    """The halves of what a kernel computes lie elsewhere in its loops."""

    def halves(x: Tensor) -> Tensor:
        y = x.exp() * 0.1
        return rotate_half(y) * y

    report = compiled_like_eager(halves, torch.randn(5, 32))
    assert not report.unfused


def test_broadcast_operands_of_a_part() -> None:
    report = compiled_like_eager(
        lambda x, y: torch.cat((x + y, x * 2), 1).relu(), torch.randn(6, 10), torch.randn(6, 1)
    )
    assert report.launches == 1


def test_types_are_promoted() -> None:
    report = compiled_like_eager(
        lambda x, y: torch.cat((x, -y), -1) * 2, torch.randn(4, 8), torch.arange(12).view(4, 3)
    )
    assert report.launches == 1


def test_nan_stays_in_its_part() -> None:
    x, y = torch.full((2, 16), float("nan")), torch.ones(2, 16)
    compiled = torch.compile(lambda x, y: torch.cat((x, -y), -1) + 1, backend="npu")
    result = compiled(x.npu(), y.npu()).cpu()
    assert result[:, :16].isnan().all()
    assert (result[:, 16:] == 0).all()


def test_without_work_beside_it_a_concatenation_runs_alone() -> None:
    report = compiled_like_eager(lambda x, y: torch.cat((x, y), 0), torch.randn(4, 8), torch.randn(5, 8))
    assert [u.operator for u in report.unfused] == ["aten.cat"]


def test_gradients() -> None:
    torch._dynamo.reset()
    x, angles = torch.randn(2, 3, 5, 8, dtype=torch.float64), torch.randn(2, 5, 4, dtype=torch.float64)
    compiled = torch.compile(rotary, backend="npu")
    exact = x.clone().requires_grad_()
    ours = x.float().npu().requires_grad_()
    rotary(exact, angles).square().sum().backward()
    compiled(ours, angles.float().npu()).square().sum().backward()
    assert exact.grad is not None
    assert_close(ours.grad, exact.grad, terms=16)


def test_symbolic_sizes() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(rotary, backend="npu", dynamic=True)
    for rows in (3, 4, 9):
        x, angles = torch.randn(2, 3, rows, 8), torch.randn(2, rows, 4)
        assert_close(compiled(x.npu(), angles.npu()), rotary(x.double(), angles.double()), terms=4)
