"""Fused operators on device npu against the same in CPU PyTorch: composed in eager mode, and compiled by Inductor.

The limit is the time that reading the inputs once and writing the results once takes at the machine's read bandwidth.
Aims: twice as fast as the composition for normalizations, softmax and gated activations, 1.6 times as fast as CPU's
scaled_dot_product_attention for decode attention, 1.5 times as fast as torch's fused AdamW, 1.2 times as fast as the
three calls for convolution, batch norm and relu.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

import torch_npu
from benchmarks.result import Result
from benchmarks.timing import Contest, Work, announce, count_calls, interleaved

Make = Callable[[], Sequence[Tensor]]
Function = Callable[..., object]


@dataclass(frozen=True)
class FusedCase:
    """``composed`` runs on the CPU, eager and compiled, ``fused`` on npu, all with the tensors of ``make``."""

    name: str
    group: str
    make: Make
    composed: Function
    fused: Function
    aim: float | None
    compiles: bool = True

    def measure(self, rounds: int) -> Result:
        announce(self.name)
        torch.manual_seed(0)
        host = self.make()
        device = [t.npu() for t in host]
        works: dict[str, Work] = {"cpu": lambda: self.composed(*host)}
        with torch.no_grad():
            if self.compiles:
                torch._dynamo.reset()
                compiled = torch.compile(self.composed)
                works["inductor"] = lambda: compiled(*host)
            works["npu"] = lambda: self.fused(*device)
            result = self.fused(*device)
            results = result if isinstance(result, (tuple, list)) else (result,)
            moved = sum(t.nbytes for t in (*host, *(r for r in results if isinstance(r, Tensor))))
            calls = count_calls(works["npu"])
            seconds = interleaved(works, rounds)
        aims = {} if self.aim is None else {"cpu": self.aim}
        return Result(self.name, self.group, seconds, aims, calls, moved)


def randn(*shapes: tuple[int, ...], dtype: torch.dtype) -> Make:
    return lambda: [torch.randn(s).to(dtype) for s in shapes]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def rms_norm(x: Tensor, gamma: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * gamma


def add_rms_norm(a: Tensor, b: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    x = a + b
    return rms_norm(x, gamma), x


def swiglu(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def geglu(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return a * F.gelu(b, approximate="tanh")


def masked_softmax(x: Tensor, mask: Tensor) -> Tensor:
    return (x * 0.5).masked_fill(mask > 0, -10000.0).softmax(-1)


def norms_and_gates(dtype: torch.dtype) -> list[FusedCase]:
    n, h = 2048, 4096
    name = str(dtype).removeprefix("torch.")

    def case(title: str, make: Make, composed: Function, fused: Function, aim: float | None = 2.0) -> FusedCase:
        return FusedCase(f"{title}, {name}", "norms, gates, softmax, rotary", make, composed, fused, aim)

    tokens, gamma = (n, h), (h,)
    heads, table = (1, 512, 32, 128), (1, 512, 1, 128)
    scores = (4, 8, 512, 512)
    return [
        case("rms_norm", randn(tokens, gamma, dtype=dtype), rms_norm, torch_npu.npu_rms_norm),
        case("add_rms_norm", randn(tokens, tokens, gamma, dtype=dtype), add_rms_norm, torch_npu.npu_add_rms_norm),
        case(
            "add_layer_norm",
            randn(tokens, tokens, gamma, gamma, dtype=dtype),
            lambda a, b, g, s: F.layer_norm(a + b, (h,), g, s),
            torch_npu.npu_add_layer_norm,
        ),
        case("swiglu", randn((n, 2 * h), dtype=dtype), swiglu, torch_npu.npu_swiglu),
        case("geglu", randn((n, 2 * h), dtype=dtype), geglu, torch_npu.npu_geglu),
        case("rotary", randn(heads, table, table, dtype=dtype), rotate, torch_npu.npu_rotary_mul),
        case(
            "scaled_masked_softmax",
            lambda: [torch.randn(scores).to(dtype), torch.rand(4, 1, 512, 512) > 0.8],
            masked_softmax,
            lambda x, m: torch_npu.npu_scaled_masked_softmax(x, m, 0.5),
        ),
        case(
            "cross_entropy",
            lambda: [torch.randn(512, 32000).to(dtype), torch.randint(0, 32000, (512,))],
            lambda x, t: F.cross_entropy(x.float(), t),
            torch_npu.npu_cross_entropy_loss,
            None,
        ),
    ]


def attention(dtype: torch.dtype) -> list[FusedCase]:
    name = str(dtype).removeprefix("torch.")

    def case(title: str, heads: int, key_heads: int, queries: int, keys: int, aim: float | None) -> FusedCase:
        shapes = [(1, heads, queries, 128), (1, key_heads, keys, 128), (1, key_heads, keys, 128)]

        def composed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=heads != key_heads)

        def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=heads, num_key_value_heads=key_heads, scale=128**-0.5, input_layout="BNSD"
            )[0]

        return FusedCase(
            f"{title}, {name}", "attention", randn(*shapes, dtype=dtype), composed, fused, aim, compiles=False
        )

    return [
        case("decode, 32 heads, 2048 keys", 32, 32, 1, 2048, 1.6),
        case("decode, 8 heads, 512 keys", 8, 8, 1, 512, 1.6),
        case("decode, 32 heads on 8, 2048 keys", 32, 8, 1, 2048, 1.6),
        case("prefill, 8 heads, 512 tokens", 8, 8, 512, 512, None),
    ]


def convolutions(dtype: torch.dtype) -> list[FusedCase]:
    """Convolution, batch norm and relu; on npu with the norm folded in each call, and with a weight packed before."""
    name = str(dtype).removeprefix("torch.")

    def case(title: str, channels: int, filters: int, kernel: int, size: int) -> list[FusedCase]:
        padding = [kernel // 2] * 2
        packed: list[Tensor] = []

        def make() -> list[Tensor]:
            numbers = [torch.rand(filters) + 0.5 for _ in range(4)]
            tensors = [torch.randn(1, channels, size, size), torch.randn(filters, channels, kernel, kernel), *numbers]
            return [t.to(dtype) for t in tensors]

        def composed(x: Tensor, weight: Tensor, mean: Tensor, var: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
            return F.relu(F.batch_norm(F.conv2d(x, weight, padding=padding), mean, var, gamma, beta))

        def folded(x: Tensor, weight: Tensor, mean: Tensor, var: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
            return torch_npu.npu_conv2d_batch_norm(
                x, weight, None, mean, var, gamma, beta, padding=padding, activation="relu"
            )

        def prepared(x: Tensor, weight: Tensor, mean: Tensor, var: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
            if not packed:
                full, bias = torch.nn.utils.fuse_conv_bn_weights(weight, None, mean, var, 1e-5, gamma, beta)
                packed[:] = [torch_npu.npu_conv2d_pack_weight(full, x.shape, padding=padding), bias]
            return torch_npu.npu_conv2d_packed(
                x, packed[0], weight.shape, packed[1], padding=padding, activation="relu"
            )

        return [
            FusedCase(f"conv + bn + relu, {title}, {how}, {name}", "convolutions", make, composed, fused, 1.2)
            for how, fused in (("folded in the call", folded), ("packed", prepared))
        ]

    return [
        *case("3x3, 64 to 64, 56x56", 64, 64, 3, 56),
        *case("1x1, 64 to 256, 56x56", 64, 256, 1, 56),
        *case("1x1, 256 to 1024, 14x14", 256, 1024, 1, 14),
    ]


def packed_products(dtype: torch.dtype) -> list[Contest]:
    """Products with a weight in FRACTAL_NZ (``npu``) and with the same weight as it is (``ND``)."""
    name, size = str(dtype).removeprefix("torch."), 4096

    def case(rows: int, product: Callable[[Tensor, Tensor], Tensor]) -> Contest:
        def prepare() -> dict[str, Work]:
            there, plain = torch.randn(rows, size).to(dtype).npu(), torch.randn(size, size).to(dtype).npu()
            packed = torch_npu.npu_format_cast(plain, torch_npu.Format.FRACTAL_NZ)
            return {"ND": lambda: product(there, plain), "npu": lambda: product(there, packed)}

        title = f"{product.__name__}, {rows} rows, FRACTAL_NZ, {name}"
        return Contest(title, "packed weights", prepare, {"ND": 1.0}, longest=2.0)

    return [case(rows, product) for product in (F.linear, torch.mm) for rows in (1, 8, 32, 128, 512)]


def optimizers() -> list[FusedCase]:
    size = (4 << 20,)

    def step(p: Tensor, g: Tensor, m: Tensor, v: Tensor, count: Tensor) -> None:
        torch._fused_adamw_(
            [p], [g], [m], [v], [], [count], lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8,
            amsgrad=False, maximize=False,
        )  # fmt: skip

    def make() -> list[Tensor]:
        return [torch.randn(size), torch.randn(size), torch.zeros(size), torch.zeros(size), torch.tensor(1.0)]

    return [FusedCase("AdamW, 4 Mi parameters, float32", "optimizers", make, step, step, 1.5, compiles=False)]


def cases() -> list[FusedCase | Contest]:
    dtypes = (torch.float32, torch.bfloat16)
    composed = [c for make in (norms_and_gates, attention, convolutions) for dtype in dtypes for c in make(dtype)]
    packed = [c for dtype in (*dtypes, torch.float16) for c in packed_products(dtype)]
    return [*composed, *optimizers(), *packed]
