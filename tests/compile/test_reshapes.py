"""Views between operators of one kernel that split and join dimensions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_close
from torch import Tensor

import torchtitan_npu.compile
from torchtitan_npu.compile.reshapes import regroup


@pytest.mark.parametrize(
    ("sizes", "wanted", "expected"),
    [
        ([6], [2, 3], ([[2, 3]], [1, 1])),
        ([2, 3], [6], ([[2], [3]], [2])),
        ([5, 12, 7], [5, 3, 4, 7], ([[5], [3, 4], [7]], [1, 1, 1, 1])),
        ([2, 12], [8, 3], ([[2], [4, 3]], [2, 1])),
        ([4, 6], [2, 12], ([[2, 2], [6]], [1, 2])),
        ([6, 4], [8, 3], None),
        ([4], [2, 11], None),
        ([2, 11], [4], None),
        ([5], [], None),
        ([5, 7], [5, 7], ([[5], [7]], [1, 1])),
        ([], [], ([], [])),
    ],
)
def test_regroup(sizes: list[int], wanted: list[int], expected: object) -> None:
    assert regroup(sizes, wanted) == expected


def heads_scaled(x: Tensor, y: Tensor) -> Tensor:
    b, s, _ = x.shape
    return (x.exp() * y).view(b, s, 3, 4).transpose(1, 2) * 2


def norm_of_heads(x: Tensor, y: Tensor) -> Tensor:
    b, s, _ = x.shape
    heads = (x * y).view(b, s, 3, 4)
    return heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + 1)


def back_from_heads(x: Tensor, y: Tensor) -> Tensor:
    b, s, _ = x.shape
    heads = x.view(b, s, 3, 4).transpose(1, 2).sigmoid()
    return heads.transpose(1, 2).reshape(b, s, 12) + y


def two_views(x: Tensor, y: Tensor) -> Tensor:
    """The second cuts what the first has cut."""
    b, s, _ = x.shape
    z = x.tanh()
    return z.view(b, s, 3, 4).sin().view(b, s, 3, 2, 2) + y.cos().view(b, s, 3, 2, 2)


def rows_as_one(x: Tensor, y: Tensor) -> Tensor:
    rows = (x + y).view(-1, 12)
    return torch.softmax(rows, -1).view_as(x) * x


def squeezed(x: Tensor, y: Tensor) -> Tensor:
    return x.exp().unsqueeze(1).reshape(x.shape[0] * x.shape[1], 1, 12) * 2 + y.view(-1, 1, 12)


CASES: list[Callable[[Tensor, Tensor], Tensor]] = [
    heads_scaled, norm_of_heads, back_from_heads, two_views, rows_as_one, squeezed,
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_is_one_kernel(function: Callable[[Tensor, Tensor], Tensor], dynamic: bool) -> None:
    compiled = torch.compile(function, backend="npu", dynamic=dynamic)
    for b, s in ((2, 5), (3, 7)) if dynamic else ((2, 5),):
        x, y = torch.randn(b, s, 12), torch.randn(b, s, 12)
        assert_close(compiled(x.npu(), y.npu()), function(x.double(), y.double()), terms=16)
    (report,) = torchtitan_npu.compile.reports()
    assert (len(report.kernels), report.unfused) == (1, [])


def test_group_norm_and_silu() -> None:
    """Statistics over channels of a group and pixels, weights of channels: both splits and joins."""
    norm = torch.nn.GroupNorm(2, 6)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 6, 5, 7)
    expected = F.silu(norm.double()(x.double()))
    compiled = torch.compile(lambda x: F.silu(norm(x)), backend="npu")
    norm.float().npu()
    with torch.no_grad():
        assert_close(compiled(x.npu()), expected, terms=70)
    (report,) = torchtitan_npu.compile.reports()
    assert (len(report.kernels), report.unfused) == (1, [])


def test_merged_kernels_of_different_sizes() -> None:
    """What takes nothing of a kernel's may run over its axes cut, but only over all of its points."""
    slopes, positions = torch.randn(4), torch.randn(2, 11)
    compiled = torch.compile(lambda s, p: (s.exp()[:, None] * p.sin()[:, None]).view(8, 1, 11), backend="npu")
    expected = (slopes.double().exp()[:, None] * positions.double().sin()[:, None]).view(8, 1, 11)
    assert_close(compiled(slopes.npu(), positions.npu()), expected, terms=4)


def test_gradients() -> None:
    x, y = (torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True) for _ in range(2))
    expected = torch.autograd.grad(norm_of_heads(x, y).sin().sum(), (x, y))
    ours = [t.detach().float().npu().requires_grad_() for t in (x, y)]
    compiled = torch.compile(norm_of_heads, backend="npu")
    actual = torch.autograd.grad(compiled(*ours).sin().sum(), ours)
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, terms=64)


def test_views_that_do_not_fit_begin_kernels() -> None:
    """Rows of 6 and rows of 4 have no loops in common."""
    compiled = torch.compile(lambda x: torch.softmax(x, -1).view(6, 4).softmax(-1), backend="npu")
    x = torch.randn(4, 6)
    assert_close(compiled(x.npu()), torch.softmax(x.double(), -1).view(6, 4).softmax(-1), terms=16)
    (report,) = torchtitan_npu.compile.reports()
    assert len(report.kernels) == 2
