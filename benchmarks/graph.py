"""Graphs on device npu against eager mode, CPU PyTorch and Inductor: small work, where Python and launches cost most.

Each way does the same work on the same values. "npu graph" is the replay of a torch.npu.NPUGraph, "enable_graph" the
module call inside torch_npu.enable_graph(), "inductor" torch.compile on the CPU, with freezing for inference.
"""

import copy
import os
from collections.abc import Callable

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch._inductor.config
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import ResNetConfig, ResNetForImageClassification

import torch_npu
import torchtitan_npu
from benchmarks.timing import Contest, Work

GRAPH = "npu graph"


class DecoderLayer(nn.Module):
    """One token against a cache of ``tokens`` keys and values."""

    def __init__(self, hidden: int, heads: int = 4, tokens: int = 64) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.register_buffer("keys", torch.randn(heads, tokens, hidden // heads))
        self.register_buffer("values", torch.randn(heads, tokens, hidden // heads))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        hidden = x.shape[-1]
        q, k, v = self.qkv(self.norm_attention(x)).view(3, self.heads, 1, hidden // self.heads).unbind(0)
        self.keys.index_copy_(1, position, k)
        self.values.index_copy_(1, position, v)
        weights = torch.softmax(torch.bmm(q, self.keys.transpose(1, 2)) * q.shape[-1] ** -0.5, -1)
        x = x + self.out(torch.bmm(weights, self.values).view(1, hidden))
        return x + self.down(F.gelu(self.up(self.norm_mlp(x)), approximate="tanh"))


class Decoder(nn.Module):
    def __init__(self, hidden: int, layers: int = 12) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(hidden) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, position)
        return self.norm(x)


def capture(work: Work) -> Work:
    """The replay of what the work does on npu."""
    work()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        work()
    return graph.replay


def inference(
    make: Callable[[], nn.Module], inputs: Callable[[], tuple[Tensor, ...]], optimized: bool = False
) -> Callable[[], dict[str, Work]]:
    """``optimized``: the model on npu has gone through ``torchtitan_npu.optimize``."""

    def prepare() -> dict[str, Work]:
        model, args = make().eval(), inputs()
        npu_args = tuple(a.npu() for a in args)

        def on_npu() -> nn.Module:
            module = copy.deepcopy(model).npu()
            if optimized:
                torchtitan_npu.optimize(module)
            return module

        npu, sunk = on_npu(), on_npu()
        torch._dynamo.reset()
        with torch._inductor.config.patch(freezing=True):
            compiled = torch.compile(copy.deepcopy(model))
            compiled(*args)

        def enabled() -> object:
            with torch_npu.enable_graph(strict=True):
                return sunk(*npu_args)

        return {
            "cpu": lambda: model(*args),
            "inductor": lambda: compiled(*args),
            "npu eager": lambda: npu(*npu_args),
            "enable_graph": enabled,
            GRAPH: capture(lambda: npu(*npu_args)),
        }

    return prepare


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def mlp_training() -> dict[str, Work]:
    """Forward, backward and SGD in one graph; in `enable_graph` the optimizer runs eagerly."""

    def step(call: Callable[..., Tensor], optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
        F.cross_entropy(call(x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    model, x, y = mlp(), torch.randn(8, 64), torch.arange(8)
    npu, sunk = copy.deepcopy(model).npu(), copy.deepcopy(model).npu()
    compiled_model = copy.deepcopy(model)
    torch._dynamo.reset()
    compiled = torch.compile(compiled_model)

    def work(module: nn.Module, call: Callable[..., Tensor], x: Tensor, y: Tensor) -> Work:
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
        return lambda: step(call, optimizer, x, y)

    eager = work(npu, npu, x.npu(), y.npu())
    return {
        "cpu": work(model, model, x, y),
        "inductor": work(compiled_model, compiled, x, y),
        "npu eager": eager,
        "enable_graph": work(sunk, torch_npu.enable_graph(strict=True)(lambda x: sunk(x)), x.npu(), y.npu()),
        GRAPH: capture(eager),
    }


def chain() -> dict[str, Work]:
    """A thousand small operators: the cost of one node."""
    x, y = torch.randn(16), torch.randn(16)

    def work(a: Tensor, b: Tensor) -> Work:
        def run() -> None:
            for _ in range(250):
                a.add_(b).mul_(0.5).sub_(b).relu_()

        return run

    npu = work(x.npu(), y.npu())
    return {"cpu": work(x, y), "npu eager": npu, GRAPH: capture(npu)}


SMALL: dict[str, Callable[..., Tensor]] = {  # of 8 x 8 numbers and rows of 8
    "add": lambda x, row, indices: x + x,
    "mm": lambda x, row, indices: x @ x,
    "linear": lambda x, row, indices: F.linear(x, x, row),
    "softmax": lambda x, row, indices: torch.softmax(x, -1),
    "layer_norm": lambda x, row, indices: F.layer_norm(x, (8,), row, row),
    "gelu": lambda x, row, indices: F.gelu(x),
    "sum": lambda x, row, indices: x.sum(-1),
    "cat": lambda x, row, indices: torch.cat([x, x]),
    "embedding": lambda x, row, indices: F.embedding(indices, x),
}
NODES = 1000


def nodes(call: Callable[..., Tensor]) -> Callable[[], dict[str, Work]]:
    """A small operator many times over: a microsecond is a nanosecond of one."""

    def prepare() -> dict[str, Work]:
        def work(device: str) -> Work:
            arguments = [t.to(device) for t in (torch.randn(8, 8), torch.randn(8), torch.tensor([1, 2]))]

            def run() -> None:
                for _ in range(NODES):
                    call(*arguments)

            return run

        npu = work("npu")
        return {"cpu": work("cpu"), "npu eager": npu, GRAPH: capture(npu)}

    return prepare


def cases() -> list[Contest]:
    def decode(hidden: int, aims: dict[str, float]) -> Contest:
        inputs = lambda: (torch.randn(1, hidden), torch.tensor([3]))  # noqa: E731
        return Contest(
            f"decode step, 12 layers of {hidden}", "models", inference(lambda: Decoder(hidden), inputs), aims
        )

    def resnet(dtype: torch.dtype = torch.float32) -> nn.Module:
        model = ResNetForImageClassification(ResNetConfig(num_labels=10)).to(dtype)
        model.config.return_dict = False
        return model

    def image(dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        return (torch.randn(1, 3, 224, 224, dtype=dtype),)

    def optimized(dtype: torch.dtype) -> Contest:
        name = f"ResNet-50 optimized, 1 image, {dtype}".replace("torch.", "")
        return Contest(
            name, "models", inference(lambda: resnet(dtype), lambda: image(dtype), optimized=True), {"cpu": 1.35}
        )

    return [
        Contest("1,000 operators on 16 floats", "operators", chain, {}),
        *(Contest(f"{NODES:,} x {name}", "operators", nodes(call), {}) for name, call in SMALL.items()),
        Contest("MLP inference, batch 8", "models", inference(mlp, lambda: (torch.randn(8, 64),)), {}),
        Contest("MLP training step, batch 8", "models", mlp_training, {"cpu": 6.0}, grad=True),
        decode(64, {"cpu": 5.0, "inductor": 1.0}),
        decode(128, {"cpu": 3.0, "inductor": 1.0}),
        decode(256, {"cpu": 1.3}),
        Contest("ResNet-50 inference, 1 image", "models", inference(resnet, image), {}),
        optimized(torch.float32),
        optimized(torch.bfloat16),
    ]
