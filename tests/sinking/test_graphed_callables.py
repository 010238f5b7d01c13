"""torch.npu.make_graphed_callables."""

import copy

import pytest
import torch
from capturing import churn
from torch import nn


def network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 19), nn.Tanh(), nn.Linear(19, 2)).npu()


def train(model: nn.Module, head: nn.Module, steps: int = 5) -> list[float]:
    torch.manual_seed(2)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=0.01, fused=True)
    losses = []
    for _ in range(steps):
        x, y = torch.randn(11, 6).npu(), torch.randn(11, 1).npu()
        loss = (head(model(x)) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        churn()
    return losses


def test_module_trains_as_eager() -> None:
    model, head = network(), nn.Linear(2, 1).npu()
    graphed, graphed_head = copy.deepcopy(model), copy.deepcopy(head)
    expected = train(model, head)
    sample = torch.randn(11, 6, device="npu")
    same = torch.npu.make_graphed_callables(graphed, (sample,))
    assert same is graphed
    assert train(graphed, graphed_head) == expected
    for p, q in zip(model.parameters(), graphed.parameters(), strict=True):
        assert torch.equal(p, q)
    graphed.eval()  # captured in train mode: the original forward then
    assert graphed(torch.randn(3, 6, device="npu")).shape == (3, 2)


def test_several_callables_in_order() -> None:
    model, head = network(), nn.Linear(2, 1).npu()
    graphed, graphed_head = copy.deepcopy(model), copy.deepcopy(head)
    expected = train(model, head)
    samples = ((torch.randn(11, 6, device="npu"),), (torch.randn(11, 2, device="npu", requires_grad=True),))
    pool = torch.npu.graph_pool_handle()
    torch.npu.make_graphed_callables((graphed, graphed_head), samples, num_warmup_iters=1, pool=pool)
    assert train(graphed, graphed_head) == expected


def test_function_with_nested_outputs_and_input_gradients() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"product": x * y, "index": x.argmax(), "sum": (x + y).sum()}

    x = torch.randn(4, 3, device="npu", requires_grad=True)
    y = torch.randn(4, 3, device="npu")
    graphed = torch.npu.make_graphed_callables(function, (x, y))
    for _ in range(3):
        a, b = torch.randn(4, 3, device="npu", requires_grad=True), torch.randn(4, 3, device="npu")
        got, want = graphed(a, b), function(a, b)
        assert got.keys() == want.keys()
        assert torch.equal(got["index"], want["index"])
        assert not got["index"].requires_grad
        loss, expected = (torch.autograd.grad(o["product"].exp().sum() + o["sum"], a)[0].clone() for o in (got, want))
        assert torch.equal(loss, expected)


def test_unused_inputs() -> None:
    x, unused = (torch.randn(3, device="npu", requires_grad=True) for _ in range(2))
    with pytest.raises(RuntimeError, match=r"not have been used|unused"):
        torch.npu.make_graphed_callables(lambda x, y: x * 2, (x, unused))
    graphed = torch.npu.make_graphed_callables(lambda x, y: x * 2, (x, unused), allow_unused_input=True)
    a, b = (torch.randn(3, device="npu", requires_grad=True) for _ in range(2))
    graphed(a, b).sum().backward()
    assert torch.equal(a.grad.cpu(), torch.full((3,), 2.0))
    assert b.grad is None


def test_no_second_derivative() -> None:
    x = torch.randn(3, device="npu", requires_grad=True)
    graphed = torch.npu.make_graphed_callables(lambda x: x**3, (x,))
    (grad,) = torch.autograd.grad(graphed(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_refusals() -> None:
    x = torch.randn(3, 6, device="npu")
    model = network()
    model.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="has hooks"):
        torch.npu.make_graphed_callables(model, (x,))
    with pytest.raises(RuntimeError, match="must contain tensors and nothing else"):
        torch.npu.make_graphed_callables(network(), (3.0,))
    with torch.autocast("npu"), pytest.raises(RuntimeError, match="cache_enabled=False"):
        torch.npu.make_graphed_callables(network(), (x,))
    with torch.autocast("npu", cache_enabled=False):
        assert torch.npu.make_graphed_callables(network(), (x,))(x).dtype == torch.get_autocast_dtype("npu")
