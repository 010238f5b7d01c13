"""Operators without a native kernel in graphs: the CPU's kernel runs at each replay."""

from collections.abc import Callable

import pytest
import torch
from capturing import captured, churn

import torch_npu

OPERATORS: dict[str, Callable[[torch.Tensor], object]] = {
    "two results": lambda x: torch.mode(x, 0),
    "bessel_j0": torch.special.bessel_j0,
    "in place": lambda x: x.clone().digamma_().frac_(),
    "out=": lambda x: torch.special.bessel_j1(x, out=torch.empty_like(x)),
    "number argument": lambda x: torch.special.zeta(x.abs() + 1.5, 1.0),
    "float64": lambda x: torch.special.i1e(x.double()) + 1,
    "not contiguous": lambda x: torch.special.bessel_y0(x.abs().mT + 1),
}


def fell_back() -> set[str]:
    return {entry.op for entry in torch_npu.fallback_report()}


@pytest.mark.parametrize("name", OPERATORS)
def test_replay_equals_the_cpu(name: str) -> None:
    function = OPERATORS[name]
    x = torch.randn(9, 5)
    static = x.npu()
    torch_npu.clear_fallback_report()
    graph, result = captured(lambda: function(static))
    assert fell_back(), "the case needs an operator without a native kernel"
    for _ in range(3):
        x.normal_()
        static.copy_(x)
        churn()
        graph.replay()
        expected = function(x)
        for got, want in zip(*(r if isinstance(r, tuple) else (r,) for r in (result, expected)), strict=True):
            assert torch.equal(got.cpu(), want)


def test_fallback_is_named_in_the_dump(tmp_path) -> None:
    x = torch.rand(4, device="npu")
    graph, _ = captured(lambda: torch.special.bessel_j0(x))
    graph.debug_dump(str(tmp_path / "graph.json"))
    assert '"aten::special_bessel_j0"' in (tmp_path / "graph.json").read_text()


def test_failure_at_replay_is_raised_and_named() -> None:
    index = torch.zeros(3, dtype=torch.int64, device="npu")
    x = torch.randn(4, 4, device="npu")
    graph, out = captured(lambda: torch.special.i0e(x).index_reduce(0, index[:4], x[:3], "amax"))
    graph.replay()
    index.fill_(100)

    def replay() -> None:
        graph.replay()
        torch.npu.synchronize()

    with pytest.raises(RuntimeError, match=r"index_reduce.*index"):
        replay()
    index.fill_(0)
    graph.replay()
    assert torch.isfinite(out).all()


def test_policy_holds_during_capture() -> None:
    x = torch.rand(4, device="npu")
    with torch_npu.fallback_policy("error"), pytest.raises(NotImplementedError, match="bessel_j0"):
        captured(lambda: torch.special.bessel_j0(x))


def test_backward_through_a_fallback() -> None:
    x = torch.randn(6, device="npu", requires_grad=True)
    graph, (grad,) = captured(lambda: torch.autograd.grad(torch.special.i1e(x).sum(), x))
    for _ in range(2):
        x.data.normal_()
        graph.replay()
        want = x.detach().cpu().requires_grad_()
        assert torch.equal(grad.cpu(), torch.autograd.grad(torch.special.i1e(want).sum(), want)[0])
