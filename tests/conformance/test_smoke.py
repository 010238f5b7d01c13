"""What any torch_npu must do on cann_host: only names that the vendor's plug-in has too.

Runs against this project's adapter in the ordinary suite, and against the vendor's wheel by `make conformance`.
"""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from tolerance import assert_close, assert_no_worse
from torch import nn

import torch_npu


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x + 2 * y,
        lambda x, y: x * y / (y.abs() + 1),
        lambda x, y: x @ y.T,
        lambda x, y: torch.where(x > y, x.exp(), y.tanh()),
        lambda x, y: F.softmax(x, -1),
        lambda x, y: F.layer_norm(x, x.shape[-1:]),
        lambda x, y: F.gelu(x),
        lambda x, y: x.sum(0, keepdim=True) - y.mean(),
        lambda x, y: torch.cat([x, y]).sort(descending=True)[0],
        lambda x, y: x[:, 1::2].contiguous() * y[:, ::2][:, : x[:, 1::2].shape[1]],
        lambda x, y: torch.topk(x, 3).values,
        lambda x, y: x.cumsum(1),
        lambda x, y: x[y > 0],
        lambda x, y: (x > 0).nonzero(),
        lambda x, y: x.clone().masked_fill_(y > 0, -1).argmax(1),
        lambda x, y: x.to(torch.float16).float(),
        lambda x, y: F.pad(x, (1, 2)).view(-1).flip(0),
    ],
)
def test_operators(function: Callable[..., torch.Tensor]) -> None:
    x, y = torch.randn(5, 9), torch.randn(5, 9)
    assert_close(function(x.npu(), y.npu()), function(x, y), terms=9)


def test_new_tensors_copies_and_views() -> None:
    x = torch.arange(12, device="npu").view(3, 4)
    assert x.is_npu
    assert x.t()[1].tolist() == [1, 5, 9]
    x[1] = 7
    assert x.cpu()[1].tolist() == [7] * 4
    assert torch.equal(x.half().to("cpu", torch.int64), x.cpu())
    assert torch.empty(0, device="npu").cpu().numel() == 0
    pinned = torch.arange(5.0).pin_memory()
    assert pinned.is_pinned()
    assert pinned.to("npu", non_blocking=True).tolist() == [0, 1, 2, 3, 4]


def test_autograd() -> None:
    def gradients(device: str) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        x = torch.randn(4, 6).to(device).requires_grad_()
        w = torch.randn(6, 3).to(device).requires_grad_()
        loss = (F.silu(x @ w).pow(2).mean(1) * x[:, 0].sigmoid()).sum()
        return torch.autograd.grad(loss, (x, w))

    for actual, expected in zip(gradients("npu"), gradients("cpu"), strict=True):
        assert_close(actual, expected, terms=16)


class Convolutions(nn.Sequential):
    def __init__(self) -> None:
        block = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        super().__init__(*block, nn.Conv2d(8, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(16, 10))

    @staticmethod
    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(6, 3, 8, 8), torch.randint(10, (6,))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.qkv, self.out, self.head = nn.Linear(32, 96), nn.Linear(32, 32), nn.Linear(32, 50)
        self.feed_forward = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return self.head(x + self.feed_forward(self.norms[1](x))).flatten(0, 1)

    @staticmethod
    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(50, (2, 16)), torch.randint(50, (32,))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", [Convolutions, Transformer])
def test_training_is_that_of_the_cpu(kind: Any, optimizer: str) -> None:
    def losses(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        model, (x, y) = kind().to(device), (t.to(device) for t in kind.batch())
        stepper = OPTIMIZERS[optimizer](model.parameters())
        values = []
        for _ in range(5):
            stepper.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            stepper.step()
            values.append(loss.detach())
        return torch.stack(values).cpu()

    actual, expected = losses("npu"), losses("cpu")
    # Errors of the steps add up: five steps of sums over about a thousand terms.
    assert_close(actual, expected, terms=5000)
    assert actual[-1] < actual[0]


def test_streams_and_events() -> None:
    x = torch.arange(1000.0, device="npu")
    side, event = torch.npu.Stream(), torch.npu.Event(enable_timing=True)
    start = torch.npu.Event(enable_timing=True)
    start.record()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        assert torch.npu.current_stream() == side
        y = x * 2
        y.record_stream(torch.npu.current_stream())
        event.record()
    torch.npu.current_stream().wait_event(event)
    assert (y + 1).sum().item() == 2 * 499_500 + 1000
    event.synchronize()
    assert event.query()
    assert start.elapsed_time(event) >= 0
    side.synchronize()
    assert side.query()


def test_graph_replay_reads_new_values() -> None:
    x = torch.ones(4, 4, device="npu")
    (x @ x).relu()  # operators are prepared outside of a capture
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = (x @ x).relu() + 1
    for value in (1.0, -2.0, 0.5):
        x.fill_(value)
        graph.replay()
        assert torch.equal(y.cpu(), torch.full((4, 4), 4 * value * value + 1))


def test_training_in_a_graph() -> None:
    def final_weight(captured: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).npu()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.randn(16, 6).npu(), torch.randn(16, 1).npu()

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            F.mse_loss(model(x), y).backward()
            optimizer.step()

        side = torch.npu.Stream()
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            for _ in range(3):
                step()
        torch.npu.current_stream().wait_stream(side)
        run = step
        if captured:
            graph = torch.npu.NPUGraph()
            with torch.npu.graph(graph):
                step()
            run = graph.replay
        for _ in range(4):
            run()
        return model[0].weight.detach().cpu()

    assert_close(final_weight(True), final_weight(False), terms=64)


def test_make_graphed_callables() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2)).npu()
    x = torch.randn(4, 6, device="npu", requires_grad=True)
    out = model(x)
    (expected_gradient,), expected = torch.autograd.grad(out.sum(), x), out.detach()
    del out  # what it holds was made on a stream that no capture may touch
    graphed = torch.npu.make_graphed_callables(model, (torch.randn(4, 6, device="npu", requires_grad=True),))
    actual = graphed(x)
    assert_close(actual.detach(), expected, terms=8)
    (actual_gradient,) = torch.autograd.grad(actual.sum(), x)
    assert_close(actual_gradient, expected_gradient, terms=16)


def test_random_numbers() -> None:
    torch.npu.manual_seed(7)
    first, second = (torch.randn(1000, device="npu") for _ in range(2))
    assert not torch.equal(first, second)
    assert abs(first.mean().item()) < 0.2
    state = torch.npu.get_rng_state()
    third = F.dropout(torch.ones(100, device="npu"), 0.5)
    torch.npu.set_rng_state(state)
    assert torch.equal(F.dropout(torch.ones(100, device="npu"), 0.5), third)
    torch.npu.manual_seed(7)
    assert torch.equal(torch.randn(1000, device="npu"), first)


def test_random_numbers_advance_with_each_replay() -> None:
    def drawn() -> list[torch.Tensor]:
        torch.npu.manual_seed(3)
        values = []
        for _ in range(3):
            graph.replay()
            values.append(y.cpu())
        return values

    x = torch.ones(1000, device="npu")
    F.dropout(x, 0.5)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = F.dropout(x, 0.5)
    first = drawn()
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[1], first[2])
    assert all(torch.equal(a, b) for a, b in zip(first, drawn(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)), torch.randn(8, 32)
    reference = model.double()(x.double()).detach()
    model.float()
    with torch.autocast("cpu", dtype=dtype):
        expected = model(x)
    model.npu()
    with torch.autocast("npu", dtype=dtype):
        actual = model(x.npu())
        assert actual.dtype == dtype
        assert F.softmax(actual, -1).dtype == torch.float32
    assert_no_worse(actual.detach().cpu(), expected.detach(), reference)
    scaler = torch.npu.amp.GradScaler(init_scale=8.0)
    scaler.scale(actual.float().sum()).backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.unscale_(optimizer)
    assert torch.equal(model[2].bias.grad.cpu(), torch.full((4,), 8.0))
    scaler.step(optimizer)
    scaler.update()


def test_memory() -> None:
    gc.collect()  # or what other tests left in cycles may go in between
    torch.npu.synchronize()  # the vendor's plug-in may still hold what its queue of operators has used
    before = torch.npu.memory_allocated()
    x = torch.empty(1 << 20, device="npu")
    assert torch.npu.memory_allocated() >= before + (4 << 20)
    del x
    torch.npu.synchronize()
    assert torch.npu.memory_allocated() == before
    torch.npu.empty_cache()
    with pytest.raises(RuntimeError, match="out of memory"):
        torch.empty(1 << 50, dtype=torch.int8, device="npu")


def test_serialization(tmp_path: Any) -> None:
    x = torch.arange(6.0, device="npu").view(2, 3)
    torch.save({"x": x}, tmp_path / "x.pt")
    assert torch.load(tmp_path / "x.pt")["x"].is_npu
    assert torch.equal(torch.load(tmp_path / "x.pt", map_location="cpu")["x"], x.cpu())


def train_a_rank(rank: int, ranks: int, port: int) -> None:
    torch.npu.set_device(rank)
    dist.init_process_group("hccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    total = torch.full((3,), rank + 1.0, device="npu")
    dist.all_reduce(total)
    assert total.tolist() == [3.0] * 3
    torch.manual_seed(0)
    model, alone = nn.Linear(4, 2).npu(), nn.Linear(4, 2)
    alone.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
    parallel = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    whole = torch.randn(8, 4)
    mine = whole.chunk(ranks)[rank].npu()
    steppers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, alone)]
    for _ in range(3):
        for m, x, stepper in zip((parallel, alone), (mine, whole), steppers, strict=True):
            stepper.zero_grad()
            m(x).pow(2).mean().backward()
            stepper.step()
    assert_close(model.weight.detach(), alone.weight.detach(), terms=64)
    dist.destroy_process_group()


@pytest.mark.slow
def test_data_parallel_training_on_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANN_HOST_DEVICES", "2")  # of the processes that are started
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(train_a_rank, args=(2, port), nprocs=2)


def test_version_and_device() -> None:
    assert torch_npu.__version__.startswith("2.13.0")
    assert torch.npu.is_available()
    assert torch.npu.get_device_name(0).startswith("Ascend")
