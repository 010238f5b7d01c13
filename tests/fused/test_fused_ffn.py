"""npu_ffn against float64: plain, with experts, with int8 weights, and all of it in int8."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from operator_case import FLOATS, Case, check
from torch import Tensor

import torch_npu

F64 = torch.float64
ACTIVATIONS = ("relu", "gelu", "fastgelu", "silu", "geglu", "swiglu", "reglu")


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=F64) / 2


def activated(x: Tensor, activation: str) -> Tensor:
    if activation.endswith("glu"):
        a, b = x.chunk(2, -1)
        return a * activated(b, {"geglu": "gelu", "swiglu": "silu", "reglu": "relu"}[activation])
    if activation == "fastgelu":
        return x * torch.sigmoid(1.702 * x)
    return getattr(torch.nn.functional, activation)(x)


def ffn(
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    activation: str,
    expert_tokens: list[int] | None = None,
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
) -> Tensor:
    if expert_tokens is not None:
        groups = x.split(expert_tokens)
        return torch.cat([ffn(t, w1[i], w2[i], activation) for i, t in enumerate(groups)])
    hidden = activated(x @ w1 + (0 if bias1 is None else bias1), activation)
    return hidden @ w2 + (0 if bias2 is None else bias2)


def weights(activation: str) -> tuple[Tensor, Tensor]:
    hidden = 19
    return randn(12, hidden * 2 if activation.endswith("glu") else hidden), randn(hidden, 12)


CASES = [
    *(Case("npu_ffn", a, lambda a=a: (randn(2, 3, 12), *weights(a), a), ffn, terms=19, scale=2) for a in ACTIVATIONS),
    Case("npu_ffn", "experts", lambda: (randn(9, 12), randn(3, 12, 19), randn(3, 19, 12), "relu"),
         lambda x, a, b, c, expert_tokens: ffn(x, a, b, c, expert_tokens), keywords={"expert_tokens": [4, 0, 5]},
         terms=19, scale=2),
    Case("npu_ffn", "experts-by-end", lambda: (randn(9, 12), randn(3, 12, 19), randn(3, 19, 12), "silu"),
         lambda x, a, b, c, expert_tokens_index: ffn(x, a, b, c, [4, 0, 5]),
         keywords={"expert_tokens_index": [4, 4, 9]}, terms=19, scale=2),
    Case("npu_ffn", "empty", lambda: (randn(0, 12), *weights("relu"), "relu"), ffn),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(case: Case, dtype: torch.dtype) -> None:
    check(case, dtype)


def on_npu(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v.npu() if isinstance(v, Tensor) else v for k, v in values.items()}


def test_biases() -> None:
    torch.manual_seed(0)
    x, (w1, w2) = torch.randn(4, 12), (w.float() for w in weights("gelu"))
    biases = {"bias1": torch.randn(19), "bias2": torch.randn(12)}
    actual = torch_npu.npu_ffn(x.npu(), w1.npu(), w2.npu(), "gelu", **on_npu(biases))
    wanted = ffn(x.double(), w1.double(), w2.double(), "gelu", **{k: b.double() for k, b in biases.items()})
    torch.testing.assert_close(actual.cpu(), wanted.float(), rtol=1e-5, atol=1e-5)


def test_int8_weights() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 12)
    w1, w2 = torch.randint(-128, 128, (12, 19)), torch.randint(-128, 128, (19, 12))
    scales = {"antiquant_scale1": torch.rand(19) / 100, "antiquant_scale2": torch.rand(12) / 100}
    offsets = {"antiquant_offset1": torch.randn(19), "antiquant_offset2": torch.randn(12)}
    actual = torch_npu.npu_ffn(x.npu(), w1.char().npu(), w2.char().npu(), "silu", **on_npu(scales | offsets))
    plain = [(w + o.double()) * s for w, s, o in zip((w1, w2), scales.values(), offsets.values(), strict=True)]
    torch.testing.assert_close(actual.cpu(), ffn(x.double(), *plain, "silu").float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("output_dtype", [None, torch.bfloat16])
def test_int8(output_dtype: torch.dtype | None) -> None:
    torch.manual_seed(0)
    x, w1, w2 = (torch.randint(-20, 20, s) for s in ((4, 12), (12, 19), (19, 12)))
    named = {
        "scale": torch.tensor([3.0]), "offset": torch.tensor([1.0]),
        "bias1": torch.randint(-9, 9, (19,)).int(), "bias2": torch.randint(-9, 9, (12,)).int(),
        "deq_scale1": torch.rand(19) / 50, "deq_scale2": torch.rand(12) / 50,
    }  # fmt: skip
    actual = torch_npu.npu_ffn(
        x.char().npu(), w1.char().npu(), w2.char().npu(), "relu", **on_npu(named), output_dtype=output_dtype
    )
    hidden = ((x @ w1 + named["bias1"]) * named["deq_scale1"].double()).relu() * 3 + 1
    wanted = (hidden.round().clamp(-128, 127).long() @ w2 + named["bias2"]) * named["deq_scale2"].double()
    assert actual.dtype == (output_dtype or torch.float16)
    torch.testing.assert_close(actual.cpu().double(), wanted, rtol=1e-2, atol=1e-2)


def test_wrong_arguments() -> None:
    x, w1, w2 = (torch.randn(s, device="npu") for s in ((4, 12), (12, 19), (19, 12)))
    with pytest.raises(ValueError, match="activation must be relu"):
        torch_npu.npu_ffn(x, w1, w2, "tanh")
    with pytest.raises(ValueError, match="twice as many for geglu"):
        torch_npu.npu_ffn(x, w1, w2, "geglu")
    with pytest.raises(ValueError, match="weights of experts need expert_tokens"):
        torch_npu.npu_ffn(x, w1[None], w2[None], "relu")
    with pytest.raises(ValueError, match="belong to x in int8"):
        torch_npu.npu_ffn(x, w1, w2, "relu", scale=torch.ones(1, device="npu"), deq_scale1=w1[0], deq_scale2=w2[0])
    with pytest.raises(RuntimeError, match="expertTokens end at token 3 of 4"):
        torch_npu.npu_ffn(x, w1[None], w2[None], "relu", expert_tokens=[3])
