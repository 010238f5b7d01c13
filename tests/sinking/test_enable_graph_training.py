"""enable_graph() with gradients: forward and backward as graphs, the loop around them unchanged."""

import copy
import warnings
from collections.abc import Iterator

import pytest
import torch
from capturing import eagerly
from torch import nn
from torch.nn import functional as F

import torch_npu
from torchtitan_npu.sinking import CannotSink, GraphSinkingWarning, clear_graphs


@pytest.fixture(autouse=True)
def _only_expected_warnings() -> Iterator[None]:
    clear_graphs()
    with warnings.catch_warnings():
        warnings.simplefilter("error", GraphSinkingWarning)
        yield


class Transformer(nn.Module):
    """Two layers, tied embeddings, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(37, 24)
        layer = nn.TransformerEncoderLayer(24, 4, 48, 0.1, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(2))
        self.norm = nn.LayerNorm(24)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.embedding.weight)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_transformer_trains_as_eager(optimizer: str) -> None:
    def train(model: nn.Module, **options: bool) -> list[float]:
        """Eagerly without options."""
        call = torch_npu.enable_graph(**options)(lambda tokens: model(tokens)) if options else model
        torch.manual_seed(9)
        update = OPTIMIZERS[optimizer](model.parameters())
        losses = []
        for n in range(6):
            tokens = torch.randint(0, 37, (3, 7 + n % 2)).npu()
            logits = call(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            update.zero_grad()
            loss.backward()
            update.step()
            losses.append(loss.item())
        return losses

    torch.manual_seed(0)
    model = Transformer().npu()
    eager, static = copy.deepcopy(model), copy.deepcopy(model)
    losses = train(model, strict=True)
    assert [(e.mode, e.replays) for e in torch_npu.graph_report()] == [("forward + backward", 2)] * 2
    clear_graphs()
    expected = train(eager)
    assert losses == expected
    assert train(static, strict=True, copy_outputs=False) == expected
    for p, q, r in zip(model.parameters(), eager.parameters(), static.parameters(), strict=True):
        assert torch.equal(p, q)
        assert torch.equal(p, r)


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, 3)).npu()


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters()]


def both(function) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Gradients after the function ran with a model whose graph exists, and with an eager one."""
    model, eager = mlp(), mlp()
    with torch_npu.enable_graph(strict=True):
        model(torch.randn(4, 5, device="npu")).sum().backward()
        model(torch.randn(4, 5, device="npu", requires_grad=True)).sum().backward()
        model.zero_grad()
        torch.manual_seed(3)
        function(model)
    torch.manual_seed(3)
    function(eager)
    return gradients(model), gradients(eager)


def require_equal(function) -> None:
    for got, want in zip(*both(function), strict=True):
        assert torch.equal(got, want)


def batch(grad: bool = False) -> torch.Tensor:
    return torch.randn(4, 5).npu().requires_grad_(grad)


def test_gradients_accumulate() -> None:
    def accumulate(model: nn.Module) -> None:
        for _ in range(3):
            model(batch()).square().sum().backward()

    require_equal(accumulate)


def test_gradients_that_are_zeroed_in_place() -> None:
    def steps(model: nn.Module) -> None:
        for _ in range(3):
            model(batch()).square().sum().backward()
            for p in model.parameters():
                p.grad.zero_()
        model(batch()).exp().sum().backward()

    require_equal(steps)


def test_two_forwards_before_their_backwards() -> None:
    def twice(model: nn.Module) -> None:
        first, second = model(batch()), model(batch())
        (first * second.detach()).sum().backward()
        (second * 3).sum().backward()

    require_equal(twice)


def test_two_forwards_into_one_backward() -> None:
    def pair(model: nn.Module) -> None:
        (model(batch()) * model(batch())).sum().backward()

    require_equal(pair)


def test_loop_that_keeps_outputs_replays() -> None:
    model = mlp()
    outputs = []
    with torch_npu.enable_graph():
        for _ in range(6):
            outputs = [model(batch())]  # the one before dies after the call
    assert sum(e.replays for e in torch_npu.graph_report()) == 4
    assert outputs[0].requires_grad


def test_more_pending_forwards_than_memory_is_kept_for() -> None:
    model, eager = mlp(), mlp()
    inputs = [batch() for _ in range(10)]
    with torch_npu.enable_graph():
        model(inputs[0]).sum().backward()
        model.zero_grad()
        with pytest.warns(GraphSinkingWarning, match="earlier calls wait for their backward"):
            outputs = [model(x) for x in inputs]
    torch.stack(outputs).square().sum().backward()
    torch.stack([eager(x) for x in inputs]).square().sum().backward()
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_gradients_of_inputs() -> None:
    model, eager = mlp(), mlp()
    kept = []
    with torch_npu.enable_graph(strict=True):
        for _ in range(3):
            x = batch(grad=True)
            y = x.detach().clone().requires_grad_()
            model(x * 2).sum().backward()
            eagerly(eager, y * 2).sum().backward()
            assert torch.equal(x.grad, y.grad)
            kept.append((x.grad, y.grad))
    for got, want in kept:
        assert torch.equal(got, want)


def test_second_backward_is_refused() -> None:
    model = mlp()
    with torch_npu.enable_graph(strict=True):
        model(batch())
        y = model(batch()).sum()
    y.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="a second time"):
        y.backward()


def test_change_between_forward_and_backward_is_refused() -> None:
    model = mlp()
    with torch_npu.enable_graph(strict=True):
        model(batch()).sum().backward()
        y = model(batch()).sum()
    with torch.no_grad():
        model[0].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    with torch_npu.enable_graph(strict=True):
        del y
        model(batch()).sum().backward()


def test_frozen_parameters_and_unused_ones() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.frozen, self.unused = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5)
            self.frozen.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.frozen(self.used(x))
            return y, y.argmax(-1)

    model = Partly().npu()
    with torch_npu.enable_graph(strict=True):
        for _ in range(3):
            x = batch()
            y, index = model(x)
            assert not index.requires_grad
            model.zero_grad()
            y.sum().backward()
            want = torch.autograd.grad(eagerly(model, x)[0].sum(), list(model.used.parameters()))
            assert [p.grad is None for p in model.parameters()] == [False, False, True, True, True, True]
            for p, g in zip(model.used.parameters(), want, strict=True):
                assert torch.equal(p.grad, g)
        model.frozen.requires_grad_(True)
        model(batch())[0].sum().backward()
        assert model.frozen.weight.grad is not None


def test_gradient_to_a_foreign_tensor() -> None:
    foreign = torch.ones(5, device="npu", requires_grad=True)

    class Closure(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * foreign

    reason = "neither a parameter of the module nor an argument"
    with pytest.raises(CannotSink, match=reason), torch_npu.enable_graph(strict=True):
        Closure()(batch())
    with pytest.warns(GraphSinkingWarning, match="neither a parameter"), torch_npu.enable_graph():
        Closure()(batch()).sum().backward()
    assert foreign.grad is not None


def test_gradient_hooks_of_parameters() -> None:
    model = mlp()
    handle = model[0].weight.register_hook(lambda g: g * 10)
    with pytest.warns(GraphSinkingWarning, match="gradient hooks"), torch_npu.enable_graph():
        model(batch()).sum().backward()
    handle.remove()
    seen: list[int] = []
    model[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(1))
    with torch_npu.enable_graph(strict=True):
        for _ in range(3):
            model(batch()).sum().backward()
    assert len(seen) == 3


def test_gradient_clipping_scaling_and_autocast() -> None:
    def train(model: nn.Module) -> None:
        scaler = torch.amp.GradScaler("npu", init_scale=64.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            with torch.autocast("npu", dtype=torch.float16):
                y = model(batch())
            loss = y.float().square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    require_equal(train)


def test_two_modules_in_one_step() -> None:
    def step(generator: nn.Module, critic: nn.Module) -> None:
        for _ in range(3):
            x = batch()
            critic(generator(x)).sum().backward()

    generator, critic = mlp(), nn.Linear(3, 1).npu()
    plain_generator, plain_critic = copy.deepcopy(generator), copy.deepcopy(critic)
    torch.manual_seed(4)
    with torch_npu.enable_graph(strict=True):
        step(generator, critic)
    torch.manual_seed(4)
    step(plain_generator, plain_critic)
    for p, q in zip(
        [*generator.parameters(), *critic.parameters()],
        [*plain_generator.parameters(), *plain_critic.parameters()],
        strict=True,
    ):
        assert torch.equal(p.grad, q.grad)


def test_second_derivatives_are_refused() -> None:
    model = nn.Linear(3, 3).npu()
    x = torch.randn(2, 3, device="npu", requires_grad=True)
    for _ in range(2):
        with torch_npu.enable_graph(strict=True):
            y = model(x)
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.sum().backward()


def test_a_backward_may_hold_the_graphs_last() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).npu()
    x, weight = torch.randn(5, 3, device="npu"), model[0].weight
    for _ in range(2):
        with torch_npu.enable_graph(strict=True):
            y = model(x)
    want = torch.autograd.grad(model(x).sum(), weight)[0]
    clear_graphs()
    del model
    loss = y.sum()
    del y
    # In autograd's thread, which does not hold the interpreter's lock.
    loss.backward()
    del loss
    assert torch.equal(weight.grad, want)
