"""Compiled graphs that change what they get: a step of decoding behind a static cache, and steps of optimizers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.timing import Contest, Work

LAYERS, HEADS, WIDTH = 4, 8, 512


class CachedAttention(nn.Module):
    """Projections and attention of one token, whose keys and values go into caches of ``length`` tokens."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.register_buffer("keys", torch.zeros(1, HEADS, length, WIDTH // HEADS))
        self.register_buffer("values", torch.zeros(1, HEADS, length, WIDTH // HEADS))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(1, 1, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        return x + F.scaled_dot_product_attention(q, self.keys, self.values).transpose(1, 2).reshape(x.shape)


class CachedDecoder(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(CachedAttention(length) for _ in range(LAYERS))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, position)
        return x


def decoding(length: int) -> dict[str, Work]:
    model, x, position = CachedDecoder(length), torch.randn(1, 1, WIDTH), torch.tensor([3])
    there, place = x.npu(), position.npu()
    torch._dynamo.reset()
    inductor = torch.compile(copy.deepcopy(model), dynamic=False)

    def on_npu(in_place: bool) -> Work:
        ours = copy.deepcopy(model).npu()
        options = {"passes": {"write_in_place": in_place}}
        compiled = torch.compile(ours, backend="npu", dynamic=False, options=options)
        return lambda: compiled(there, place)

    return {
        "cpu eager": lambda: model(x, position),
        "inductor": lambda: inductor(x, position),
        "npu, copying": on_npu(False),
        "npu": on_npu(True),
    }


def optimizing(
    make: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer], model: Callable[[], nn.Module]
) -> dict[str, Work]:
    def step(device: str, backend: str | None) -> Work:
        module = model().to(device)
        optimizer = make(module.parameters())
        for parameter in module.parameters():
            parameter.grad = torch.randn_like(parameter)
        if backend is None:
            return optimizer.step
        torch._dynamo.reset()
        compiled = torch.compile(lambda: optimizer.step(), backend=backend)
        for _ in range(3):  # the first makes the optimizer's state, for which the second is compiled
            compiled()
        return compiled

    return {"cpu eager": step("cpu", None), "inductor": step("cpu", "inductor"), "npu": step("npu", "npu")}


def cases() -> list[Contest]:
    optimizers: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
        "AdamW": lambda parameters: torch.optim.AdamW(parameters),
        "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    }
    models: dict[str, Callable[[], nn.Module]] = {
        "4 Mi parameters": lambda: nn.Linear(2048, 2048),
        "40 small tensors": lambda: nn.Sequential(*(nn.Linear(64, 64) for _ in range(20))),
    }
    return [
        *(
            Contest(f"in place: {LAYERS} layers behind a cache of {n}", "in place", lambda n=n: decoding(n), {})
            for n in (128, 1024)
        ),
        *(
            Contest(f"in place: {name}, {size}", "in place", lambda o=o, m=m: optimizing(o, m), {})
            for name, o in optimizers.items()
            for size, m in models.items()
        ),
    ]
