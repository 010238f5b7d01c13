"""Attention that a model spells out, as one operator."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_close, assert_no_worse
from torch import Tensor

from torchtitan_npu.compile import reports

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def scaled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.matmul(q, k.transpose(-1, -2)).div(math.sqrt(q.shape[-1])).softmax(-1) @ v


def added(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.mT * 0.3
    scores = scores + mask[:, :, :, : k.shape[-2]]
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(F.dropout(weights, p=0.1, training=False), v)


def added_in_place(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.matmul(q * 0.5, k.permute(0, 1, 3, 2))
    scores += mask
    return scores.softmax(dim=-1).matmul(v)


def filled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = (q @ k.transpose(2, 3)) / 2.0
    return scores.masked_fill(mask < 0, float("-inf")).softmax(-1) @ v


def chosen(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.transpose(2, 3)
    lowest = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype, device=scores.device)
    scores = torch.where(mask >= 0, scores / torch.full([], 4.0, device=q.device), lowest)
    return torch.softmax(scores + mask, -1) @ v


FUSED: list[Attend] = [scaled, added, added_in_place, filled, chosen]


def tensors(dtype: torch.dtype, queries: int = 70, keys: int = 70) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 3, n, 16, generator=generator).to(dtype) for n in (queries, keys, keys))
    mask = torch.zeros(2, 1, queries, keys, dtype=dtype).masked_fill(
        torch.rand(2, 1, queries, keys, generator=generator) < 0.3, -1e4
    )
    return q, k, v, mask


def fused(kind: str = "inference") -> int:
    return sum(r.passes["fuse_attention"] for r in reports() if r.kind == kind)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("attend", FUSED)
def test_inference(attend: Attend, dtype: torch.dtype) -> None:
    given = tensors(dtype)
    compiled = torch.compile(attend, backend="npu", dynamic=False)
    with torch.no_grad():
        got = compiled(*(t.npu() for t in given))
    assert fused() == 1
    reference = attend(*(t.double() for t in given))
    if dtype == torch.float32:
        assert_close(got, reference, terms=70)
    else:  # rounded several times on the CPU
        assert_no_worse(got.cpu(), attend(*given), reference)


@pytest.mark.parametrize("attend", FUSED)
def test_gradients(attend: Attend) -> None:
    given = tensors(torch.float32)
    ours = [t.npu().requires_grad_(n < 3) for n, t in enumerate(given)]
    reference = [t.double().requires_grad_(n < 3) for n, t in enumerate(given)]
    torch.compile(attend, backend="npu", dynamic=False)(*ours).square().sum().backward()
    attend(*reference).square().sum().backward()
    assert fused("forward") == 1
    for a, b in zip(ours[:3], reference[:3], strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert_close(a.grad, b.grad, terms=1024)


def test_decoding() -> None:
    given = tensors(torch.float32, queries=1, keys=300)
    compiled = torch.compile(added, backend="npu", dynamic=False)
    with torch.no_grad():
        assert_close(compiled(*(t.npu() for t in given)), added(*(t.double() for t in given)), terms=300)
    assert fused() == 1


def drops(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.dropout((q @ k.mT).softmax(-1), 0.5) @ v


def shows_weights(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights


def scales_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return ((q @ k.mT + mask) * 0.5).softmax(-1) @ v


def over_queries(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-2) @ v


def other_size(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1) @ v[..., :5]


def changes_query(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    q = q + 0
    weights = (q @ k.mT).softmax(-1)
    q.mul_(2)
    return weights @ v + q


def rounds_scores(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.div(q @ k.mT, 0.25, rounding_mode="floor").softmax(-1) @ v


def names_arguments(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.matmul(q, other=k.mT).masked_fill(mask=mask < 0, value=-1.0)
    scores = scores / torch.full(size=(), fill_value=2.0, device=q.device)
    return torch.matmul(F.softmax(input=scores, dim=-1), other=v)


def names_value(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.matmul((q @ k.mT).softmax(-1), other=v)


def names_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT).masked_fill(mask=mask < 0, value=-1.0).softmax(-1) @ v


def names_key(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.matmul(q, other=k.mT).softmax(-1) @ v


def names_factor(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / torch.full(size=(), fill_value=2.0, device=q.device), -1) @ v


SOMETHING_ELSE = [
    drops, shows_weights, scales_mask, over_queries, other_size, changes_query, rounds_scores, names_arguments,
    names_value, names_mask, names_key, names_factor,
]  # fmt: skip


@pytest.mark.parametrize("attend", SOMETHING_ELSE)
def test_what_is_something_else(attend: Callable[..., Tensor | tuple[Tensor, Tensor]]) -> None:
    given = tensors(torch.float32)
    with torch.no_grad():
        got = torch.compile(attend, backend="npu", dynamic=False)(*(t.npu() for t in given))
        want = attend(*(t.double() for t in given))
    assert fused() == 0
    if attend is not drops:
        for a, b in zip([got], [want], strict=True) if isinstance(got, Tensor) else zip(got, want, strict=True):
            assert_close(a, b, terms=70)


def test_a_learned_bias_stays_as_it_is() -> None:
    q, k, v, mask = (t.npu() for t in tensors(torch.float32))
    torch.compile(added, backend="npu", dynamic=False)(q, k, v, mask.requires_grad_()).sum().backward()
    assert fused("forward") == 0
    assert mask.grad is not None


def test_small_ones_stay_as_they_are_and_the_pass_can_be_switched_off() -> None:
    with torch.no_grad():
        torch.compile(scaled, backend="npu", dynamic=False)(*(t.npu() for t in tensors(torch.float32, 9, 9)))
        options = {"passes": {"fuse_attention": False}}
        torch.compile(scaled, backend="npu", options=options)(*(t.npu() for t in tensors(torch.float32)))
    assert fused() == 0


def test_models_of_transformers() -> None:
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel

    common = {"vocab_size": 50, "attn_implementation": "eager"}
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    models = [
        BertModel(BertConfig(**sizes, **common)),
        LlamaModel(LlamaConfig(num_key_value_heads=1, **sizes, **common)),
        GPT2Model(GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=128, **common)),
    ]
    tokens, seen = torch.randint(0, 50, (2, 70)), torch.ones(2, 70, dtype=torch.long)
    seen[0, 50:] = 0
    for number, model in enumerate(models, 1):
        compiled = torch.compile(copy.deepcopy(model).eval().npu(), backend="npu", dynamic=False)
        with torch.no_grad():
            got = compiled(tokens.npu(), attention_mask=seen.npu(), use_cache=False).last_hidden_state
            want = model.eval()(tokens, attention_mask=seen, use_cache=False).last_hidden_state
        assert fused() == 2 * number
        for a, b in ((got[0, :50], want[0, :50]), (got[1], want[1])):
            assert_close(a, b, terms=256)
