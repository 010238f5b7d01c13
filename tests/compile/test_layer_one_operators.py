"""Patterns that become operators of layer 1: rotary embedding, products with an activation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_close, assert_no_worse
from torch import Tensor

from torchtitan_npu.compile import reports


def rotate_half(x: Tensor) -> Tensor:
    """As transformers writes it."""
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


def tensors(dtype: torch.dtype, width: int = 6) -> list[Tensor]:
    """Query and key as attention has them, heads before positions but not in memory, and tables."""
    q, k = torch.randn(2, 5, 3, width).transpose(1, 2), torch.randn(2, 5, 1, width).transpose(1, 2)
    angles = torch.randn(1, 5, width)
    return [t.to(dtype) for t in (q, k, angles.cos(), angles.sin())]


def times(name: str) -> int:
    return sum(r.passes.get(name, 0) for r in reports() if r.kind != "backward")


@pytest.mark.parametrize("layout", ["heads first", "positions first", "any length"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rotary(dtype: torch.dtype, layout: str) -> None:
    given = tensors(dtype)
    if layout == "heads first":
        given[:2] = [t.contiguous() for t in given[:2]]
    ours = [t.npu().requires_grad_(n < 2) for n, t in enumerate(given)]
    exact = [t.double().requires_grad_(n < 2) for n, t in enumerate(given)]
    if layout == "any length":
        for t, dim in zip(ours, (2, 2, 1, 1), strict=True):
            torch._dynamo.mark_dynamic(t, dim)
    got, expected = torch.compile(rotary, backend="npu")(*ours), rotary(*exact)
    assert times("fuse_rotary") == 2
    for a, b in zip(got, expected, strict=True):
        assert a.stride() == b.stride()
        assert_close(a, b, terms=2)
    grads = [torch.randn(t.shape).to(dtype) for t in expected]
    torch.autograd.backward(got, [g.npu() for g in grads])
    torch.autograd.backward(expected, [g.double() for g in grads])
    for x, y in zip(ours[:2], exact[:2], strict=True):
        assert x.grad is not None
        assert y.grad is not None
        assert_close(x.grad, y.grad, terms=2)


@pytest.mark.parametrize(
    ("heads", "gradient", "found"), [(65, False, 1), (64, False, 1), (63, False, 0), (9, True, 1), (3, True, 0)]
)
def test_rotary_of_large_float32(heads: int, gradient: bool, found: int) -> None:
    x, angles = torch.randn(2, 64, heads, 128).transpose(1, 2), torch.randn(64, 128)
    given = [x, angles.cos(), angles.sin()]
    ours = [t.npu().requires_grad_(gradient and n == 0) for n, t in enumerate(given)]
    exact = [t.double().requires_grad_(gradient and n == 0) for n, t in enumerate(given)]

    def one(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return q * cos[None, None] + rotate_half(q) * sin[None, None]

    got, expected = torch.compile(one, backend="npu")(*ours), one(*exact)
    assert times("fuse_rotary") == found
    assert got.stride() == expected.stride()
    assert_close(got, expected, terms=2)
    if not gradient:
        return
    grad = torch.randn(expected.shape)
    got.backward(grad.npu())
    expected.backward(grad.double())
    assert_close(ours[0].grad, exact[0].grad, terms=2)


def other_half(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = q.shape[-1] // 2
    return q * cos + torch.cat((q[..., half:], -q[..., :half]), -1) * sin


def shows_rotated(q: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    rotated = rotate_half(q)
    return q * cos + rotated * sin, rotated


def of_two(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return (q + 1) * cos + rotate_half(q) * sin


def of_one_column(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return q * cos[..., :1] + rotate_half(q) * sin[..., :1]


@pytest.mark.parametrize("function", [other_half, shows_rotated, of_two, of_one_column])
def test_no_rotary(function: Callable[..., Tensor]) -> None:
    q, _, cos, sin = tensors(torch.bfloat16)
    got = torch.compile(function, backend="npu")(q.npu(), cos.npu(), sin.npu())
    expected = function(q.double(), cos.double(), sin.double())
    assert times("fuse_rotary") == 0
    pairs = [(got, expected)] if isinstance(got, Tensor) else zip(got, expected, strict=True)
    for a, b in pairs:
        assert_close(a, b, terms=2)


def test_rotary_of_float32_and_with_gradients_of_tables_is_left_alone() -> None:
    compiled = torch.compile(rotary, backend="npu", dynamic=False)
    compiled(*(t.npu() for t in tensors(torch.float32)))
    q, k, cos, sin = (t.npu() for t in tensors(torch.bfloat16))
    compiled(q, k, cos.requires_grad_(), sin)
    assert times("fuse_rotary") == 0


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(9, 33), (2, 5, 33)])
def test_linear_and_activation(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    def mlp(x: Tensor, up: Tensor, bias: Tensor, down: Tensor) -> Tensor:
        return F.linear(ACTIVATIONS[name](F.linear(x, up, bias)), down)

    given = [
        t.to(dtype) for t in (torch.randn(shape), torch.randn(21, 33) / 6, torch.randn(21), torch.randn(7, 21) / 5)
    ]
    with torch.no_grad():
        got = torch.compile(mlp, backend="npu")(*(t.npu() for t in given))
    assert times("fuse_linear_activation") == 1
    (report,) = reports()
    assert {u.operator for u in report.unfused} == {"npu.npu_linear_activation", "aten.mm"}
    assert not report.kernels
    exact = mlp(*(t.double() for t in given))
    if dtype == torch.float32:
        assert_close(got, exact, terms=33)
    else:  # rounded twice on the CPU as well
        assert_no_worse(got.cpu(), mlp(*given), exact)


def test_linear_and_activation_in_training() -> None:
    """GELU's gradient needs what it took, relu's does not."""
    for activation, count in ((F.gelu, 0), (F.relu, 1)):
        torch._dynamo.reset()
        given = [torch.randn(9, 33), torch.randn(21, 33) / 6, torch.randn(7, 21) / 5]
        ours = [t.npu().requires_grad_() for t in given]
        exact = [t.double().requires_grad_() for t in given]

        def mlp(x: Tensor, up: Tensor, down: Tensor, activation: Callable[[Tensor], Tensor] = activation) -> Tensor:
            return activation(x @ up.t()) @ down.t()

        torch.compile(mlp, backend="npu", dynamic=False)(*ours).square().sum().backward()
        mlp(*exact).square().sum().backward()
        assert times("fuse_linear_activation") == count
        for a, b in zip(ours, exact, strict=True):
            assert a.grad is not None
            assert b.grad is not None
            assert_close(a.grad, b.grad, terms=256)


@pytest.mark.parametrize(
    ("function", "fused"),
    [
        (lambda x, w, b: torch.relu(x @ w.permute(0, 1)), 0),
        (lambda x, w, b: torch.relu(x @ w.permute(-1, -2)), 1),
        (lambda x, w, b: torch.relu(torch.addmm(b, x, w.t())), 0),
        (lambda x, w, b: torch.relu(torch.addmm(b.expand(8), x, w.t())), 1),
    ],
)
def test_what_is_no_linear_layer(function: Callable[..., Tensor], fused: int) -> None:
    given = torch.randn(4, 8), torch.randn(8, 8), torch.randn(1)
    with torch.no_grad():
        got = torch.compile(function, backend="npu")(*(t.npu() for t in given))
    assert_close(got, function(*(t.double() for t in given)), terms=16)
    assert times("fuse_linear_activation") == fused


def test_activation_stays_in_the_kernel_behind_it() -> None:
    def block(x: Tensor, weight: Tensor) -> Tensor:
        return F.gelu(F.linear(x, weight)) + 1

    x, weight = torch.randn(9, 33), torch.randn(21, 33)
    got = torch.compile(block, backend="npu")(x.npu(), weight.npu())
    assert times("fuse_linear_activation") == 0
    assert_close(got, block(x.double(), weight.double()), terms=33)


def test_passes_can_be_switched_off() -> None:
    options = {"passes": {"fuse_rotary": False, "fuse_linear_activation": False}}
    torch.compile(rotary, backend="npu", options=options)(*(t.npu() for t in tensors(torch.bfloat16)))
    torch.compile(lambda x, w: F.relu(F.linear(x, w)), backend="npu", options=options)(
        torch.randn(9, 33).npu(), torch.randn(21, 33).npu()
    )
    assert times("fuse_rotary") == times("fuse_linear_activation") == 0
