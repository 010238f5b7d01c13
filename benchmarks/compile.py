"""torch.compile(backend="npu") against CPU eager and Inductor, all in one run.

Inductor compiles for the CPU, once as it is and, where no gradient is taken, once with frozen weights.
"""

from __future__ import annotations

import copy
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._autograd import DeviceType
from torch._inductor import config as inductor_config

import torch_npu
import torchtitan_npu.compile
from benchmarks import in_place, mixtures, patterns
from benchmarks.peak import peak_bytes
from benchmarks.result import Result
from benchmarks.timing import Contest, Work, announce, interleaved

SUNK = "npu, enable_graph()"  # for modules without gradients: the compiled call, without Dynamo before it
PEERS = ("cpu eager", "inductor", "inductor, frozen", "npu")
Make = Callable[[], tuple[Callable[..., Tensor], tuple[Tensor, ...]]]


@dataclass(frozen=True)
class CompileCase:
    """``make()`` gives a function or module and its arguments, on the CPU."""

    name: str
    group: str
    make: Make
    aim: float | None = None  # over each Inductor
    bytes_moved: int = 0  # that the work cannot do without, for the share of the read bandwidth
    training: bool = False

    def measure(self, rounds: int) -> Result:
        announce(self.name)
        works, first = {}, {}
        torchtitan_npu.compile.reset()
        peers = [p for p in PEERS if not (p == "inductor, frozen" and self.training)]
        with torch.set_grad_enabled(self.training), _empty_caches():
            for peer in peers:
                torch.manual_seed(0)
                # Dynamo, too, asks this configuration, and not the options of the call.
                with inductor_config.patch(freezing=peer == "inductor, frozen"):
                    works[peer] = self._work(peer)
                    start = time.perf_counter()
                    works[peer]()
                    first[peer] = time.perf_counter() - start
            if self.group == "models" and not self.training:
                works[SUNK] = torch_npu.enable_graph(strict=True)(works["npu"])
            seconds = interleaved(works, rounds)
            peaks = self._peaks(works["inductor"]) if self.group == "models" else None
        sunk = seconds.pop(SUNK, None)
        aims = {} if self.aim is None else {p: self.aim for p in peers if p.startswith("inductor")}
        notes = {"first call, s (inductor)": f"{first['npu']:.2f} ({first['inductor']:.2f})"}
        if peaks is not None:
            notes["peak memory, MB (inductor)"] = "{:.1f} ({:.1f})".format(*(p / 1e6 for p in peaks))
        if sunk is not None:
            for peer in ("cpu eager", "inductor, frozen"):
                notes[f"in enable_graph() ({peer} / it)"] = f"{seconds[peer] / sunk:.2f}"
        return Result(self.name, self.group, seconds, aims, notes, self.bytes_moved)

    def _peaks(self, inductor: Work) -> tuple[int, int]:
        """Bytes on top of weights and arguments; of a plan in its first call, in which it gets what it then keeps."""
        torchtitan_npu.compile.reset()
        torch._dynamo.reset()
        plan = self._work("npu", {"sink": False})
        ours = peak_bytes(plan, DeviceType.PrivateUse1)
        inductor()
        return ours, peak_bytes(inductor, DeviceType.CPU)

    def _work(self, peer: str, options: dict[str, object] | None = None) -> Work:
        function, arguments = self.make()
        if peer == "npu":
            function = copy.deepcopy(function).npu() if isinstance(function, nn.Module) else function
            arguments = tuple(a.npu() for a in arguments)
            compiled = torch.compile(function, backend="npu", dynamic=False, options=options)
        elif peer == "cpu eager":
            compiled = function
        else:
            torch._dynamo.reset()
            compiled = torch.compile(function, dynamic=False)
        if not self.training:
            return lambda: compiled(*arguments)

        def step() -> None:
            compiled(*arguments).float().square().mean().backward()

        return step


@contextmanager
def _empty_caches() -> Iterator[None]:
    """Kernels of earlier runs are not found, so that a first call compiles all of its own."""
    names = ("GRAPH_AUTOFUSION_CACHE", "TORCHINDUCTOR_CACHE_DIR")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.environ.update({name: f"{folder}/{name}" for name in names})
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ.update({} if value is None else {name: value})


# ---- fused chains


def _randn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    return tuple(torch.randn(shape).to(dtype) for shape in shapes)


def six_operators(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-(x * y + z).abs()) * torch.tanh(x) + torch.sigmoid(y)


def residual_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x + y), weight.shape, weight, bias)


def fusion_cases() -> list[CompileCase]:
    square, row = (1024, 1024), (1024,)
    size = 4 << 20
    table: list[tuple[str, Callable[..., Tensor], list[tuple[int, ...]], int]] = [
        ("gelu + add", lambda x, y: F.gelu(x) + y, [square, square], 3),
        ("gelu (tanh) + add", lambda x, y: F.gelu(x, approximate="tanh") + y, [square, square], 3),
        (
            "six operators",
            lambda x, y, z: torch.exp(-(x * y + z).abs()) * torch.tanh(x) + torch.sigmoid(y),
            [square] * 3,
            4,
        ),
        ("swiglu", lambda x, y: F.silu(x) * y, [square, square], 3),
        ("softmax", lambda x: torch.softmax(x, -1), [square], 2),
        ("layer norm", lambda x, w, b: F.layer_norm(x, row, w, b), [square, row, row], 2),
        (
            "add + gelu + layer norm",
            lambda x, y, w, b: F.layer_norm(F.gelu(x + y), row, w, b),
            [square] * 2 + [row] * 2,
            3,
        ),
        ("rms norm", lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w, [square, row], 2),
    ]
    return [
        CompileCase(name, "1024 x 1024", lambda f=f, s=s: (f, _randn(*s)), 1.5, tensors * size)
        for name, f, s, tensors in table
    ]


# ---- decoding


class DecodeLayer(nn.Module):
    """One transformer layer at one token, with its cache."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("keys", torch.randn(1, heads, length, width // heads))
        self.register_buffer("values", torch.randn(1, heads, length, width // heads))

    def forward(self, x: Tensor) -> Tensor:
        q, k, _ = (t.view(1, self.heads, 1, -1) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        weights = ((self.keys * q).sum(-1, keepdim=True) * k.shape[-1] ** -0.5).softmax(2)
        x = x + self.out((weights * self.values).sum(2).view_as(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def decoder(width: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    layers = nn.Sequential(*(DecodeLayer(width, 4, 64) for _ in range(12)), nn.LayerNorm(width)).eval()
    return layers, _randn((1, width))


class LlamaLayer(nn.Module):
    """The matrices of a Llama-2-7B layer at one token, in bfloat16; attention over a short cache left out."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(4096), nn.RMSNorm(4096)
        self.qkv, self.out = nn.Linear(4096, 12288, bias=False), nn.Linear(4096, 4096, bias=False)
        self.gate, self.up = nn.Linear(4096, 11008, bias=False), nn.Linear(4096, 11008, bias=False)
        self.down = nn.Linear(11008, 4096, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.out(torch.sigmoid(q * k) * v)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def llama() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return nn.Sequential(LlamaLayer(), LlamaLayer()).eval().bfloat16(), _randn((1, 4096), dtype=torch.bfloat16)


def model_cases() -> list[CompileCase]:
    def vit() -> tuple[nn.Module, tuple[Tensor, ...]]:
        layer = nn.TransformerEncoderLayer(1024, 16, 4096, 0.0, "gelu", batch_first=True, norm_first=True)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).bfloat16(), _randn(
            (2, 197, 1024), dtype=torch.bfloat16
        )

    llama_bytes = 2 * 2 * (4096 * 12288 + 4096 * 4096 + 3 * 4096 * 11008)
    return [
        *(
            CompileCase(f"decode, 12 layers, width {w}", "models", lambda w=w: decoder(w), aim)
            for w, aim in ((64, 6.0), (128, 5.0), (256, 2.0))
        ),
        CompileCase("Llama-2-7B matrices, 2 layers, bfloat16", "models", llama, 1.4, llama_bytes),
        CompileCase("ViT-Large training, 2 layers, batch 2, bfloat16", "models", vit, 1.1, training=True),
    ]


def cases() -> list[CompileCase | Contest]:
    """Also: ``--only patterns`` beside operators by hand, ``mixtures`` of experts, inputs changed ``"in place"``."""
    return [*fusion_cases(), *model_cases(), *patterns.cases(), *in_place.cases(), *mixtures.cases()]
