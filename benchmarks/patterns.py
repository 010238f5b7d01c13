"""Patterns that models spell out: compiled, beside the operator written for each by hand, called in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_npu
from benchmarks.timing import Contest, Work

Function = Callable[..., object]


@dataclass(frozen=True)
class _Pattern:
    """``spelled`` as a model writes it, ``by_hand`` the operators of layer 1; both of the tensors of ``make``."""

    name: str
    make: Callable[[], Sequence[Tensor]]
    spelled: Function
    by_hand: Function
    half: bool = True  # also in bfloat16

    def contest(self, dtype: torch.dtype) -> Contest:
        def prepare() -> dict[str, Work]:
            host = [t.to(dtype) if t.is_floating_point() else t for t in self.make()]
            ours = [t.npu() for t in host]
            torch._dynamo.reset()
            inductor = torch.compile(self.spelled, dynamic=False)
            compiled = torch.compile(self.spelled, backend="npu", dynamic=False)
            return {
                "inductor": lambda: inductor(*host),
                "by hand": lambda: self.by_hand(*ours),
                "npu": lambda: compiled(*ours),
            }

        return Contest(f"patterns: {self.name}, {str(dtype).removeprefix('torch.')}", "patterns", prepare, {})


def _randn(*shapes: tuple[int, ...]) -> Callable[[], list[Tensor]]:
    return lambda: [torch.randn(shape) for shape in shapes]


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """As transformers writes it."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def packed_swiglu(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    return F.silu(gate) * up


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def embeddings(
    words: Tensor, kinds: Tensor, table: Tensor, table2: Tensor, places: Tensor, w: Tensor, b: Tensor
) -> Tensor:
    """BERT's: words, kinds and positions, and their norm."""
    positions = torch.arange(words.shape[1], device=words.device)
    total = F.embedding(words, table) + F.embedding(kinds, table2) + F.embedding(positions, places)
    return F.layer_norm(total, w.shape, w, b)


def _embedding_tensors() -> list[Tensor]:
    words, kinds = torch.randint(0, 30522, (8, 128)), torch.randint(0, 2, (8, 128))
    return [words, kinds, *_randn((30522, 768), (2, 768), (512, 768), (768,), (768,))()]


def _logits() -> list[Tensor]:
    return [torch.randn(256, 32000), torch.randint(0, 32000, (256,))]


ROWS = (256, 4096)
PATTERNS = [
    _Pattern("rms norm", _randn(ROWS, ROWS[1:]), rms_norm, lambda x, w: torch_npu.npu_rms_norm(x, w, 1e-6)),
    _Pattern(
        "add + rms norm",
        _randn(ROWS, ROWS, ROWS[1:]),
        lambda x, y, w: (rms_norm(x + y, w), x + y),
        lambda x, y, w: torch_npu.npu_add_rms_norm(x, y, w, 1e-6),
    ),
    _Pattern(
        "layer norm",
        _randn(ROWS, ROWS[1:], ROWS[1:]),
        lambda x, w, b: F.layer_norm(x, w.shape, w, b),
        lambda x, w, b: F.layer_norm(x, w.shape, w, b),
    ),
    _Pattern("swiglu", _randn((256, 8192)), packed_swiglu, lambda x: torch_npu.npu_swiglu(x)),
    _Pattern(
        "swiglu of two products",
        _randn((256, 1024), (4096, 1024), (4096, 1024)),
        lambda x, g, u: F.silu(F.linear(x, g)) * F.linear(x, u),
        lambda x, g, u: torch_npu.npu_swiglu(torch.cat((F.linear(x, g), F.linear(x, u)), -1)),
    ),
    _Pattern(
        "linear + gelu",
        _randn((256, 1024), (4096, 1024), (4096,)),
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        lambda x, w, b: torch_npu.npu_linear_activation(x, w, b, "gelu_erf"),
    ),
    _Pattern(
        "linear + silu",
        _randn((256, 1024), (4096, 1024), (4096,)),
        lambda x, w, b: F.silu(F.linear(x, w, b)),
        lambda x, w, b: torch_npu.npu_linear_activation(x, w, b, "silu"),
    ),
    _Pattern("cross-entropy", _logits, F.cross_entropy, lambda x, t: torch_npu.npu_cross_entropy_loss(x, t)),
    _Pattern(
        "rotary embedding",
        _randn((1, 32, 512, 128), (1, 1, 512, 128), (1, 1, 512, 128)),
        lambda x, cos, sin: x * cos + rotate_half(x) * sin,
        lambda x, cos, sin: torch_npu.npu_rotary_mul(x, cos, sin),
    ),
    _Pattern("embeddings + layer norm", _embedding_tensors, embeddings, embeddings),
    _Pattern(
        "group norm + silu",
        _randn((2, 320, 32, 32), (320,), (320,)),
        lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)),
        lambda x, w, b: torch_npu.npu_group_norm_silu(x, w, b, 32),
    ),
]


def cases() -> list[Contest]:
    """Each in float32 and bfloat16, and cross-entropy with its gradient."""
    both = [p.contest(dtype) for p in PATTERNS for dtype in (torch.float32, torch.bfloat16)]
    return [*both, Contest("patterns: cross-entropy and gradient, float32", "patterns", _with_gradient, {}, grad=True)]


def _with_gradient() -> dict[str, Work]:
    """With and without the pass that spells cross-entropy out."""
    logits, target = torch.randn(64, 32000).npu().requires_grad_(), torch.randint(0, 32000, (64,)).npu()

    def work(**options: object) -> Work:
        torch._dynamo.reset()
        compiled = torch.compile(F.cross_entropy, backend="npu", dynamic=False, options=options)
        return lambda: torch.autograd.grad(compiled(logits, target), logits)

    return {"npu, without fuse_cross_entropy": work(passes={"fuse_cross_entropy": False}), "npu": work()}
