"""The maximum and the sum of each row of npu_fusion_attention's softmax, and what is built of them."""

from __future__ import annotations

import math

import pytest
import torch
from tolerance import assert_close
from torch import Tensor

import torch_npu

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
SIZES = [(1, 65), (5, 7), (33, 70), (300, 129)]  # the last ones are too many queries for the kernel of decoding


def inputs(queries: int, keys: int, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(queries + keys)
    shapes = [(2, 4, queries, 24), (2, 2, keys, 24), (2, 2, keys, 24)]
    return [torch.randn(shape).to(dtype) for shape in shapes]


def scores_of(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return q.double() @ k.double().repeat_interleave(2, 1).mT * scale


def check(largest: Tensor, total: Tensor, scores: Tensor) -> None:
    """Eight times each, float32; a row that sees nothing has -inf and 0."""
    assert largest.dtype == total.dtype == torch.float32
    assert largest.shape == total.shape == (*scores.shape[:3], 8)
    expected = scores.amax(-1)
    sums = (scores - expected.masked_fill(expected.isneginf(), 0).unsqueeze(-1)).exp().sum(-1)
    for statistic, wanted in ((largest, expected), (total, sums)):
        assert_close(statistic, wanted.unsqueeze(-1).expand_as(statistic), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("hides", ["nothing", "some", "rows", "later"])
def test_maximum_and_sum(dtype: torch.dtype, queries: int, keys: int, hides: str) -> None:
    q, k, v = inputs(queries, keys, dtype)
    scores = scores_of(q, k, 0.3)
    hidden, options = None, {}
    if hides == "some":
        hidden = torch.rand(2, 1, queries, keys) > 0.7
    elif hides == "rows":
        hidden = (torch.arange(queries) % 2 == 0)[:, None].expand(queries, keys).contiguous()
    elif hides == "later":
        hidden = torch.ones(2048, 2048).triu(1).bool()
        options = {"sparse_mode": 3}
    seen = torch.ones(queries, keys).triu(keys - queries + 1).bool() if hides == "later" else hidden
    if seen is not None:
        scores = scores.masked_fill(seen, -math.inf)
    mask = None if hidden is None else hidden.npu()
    _, largest, total, *_ = torch_npu.npu_fusion_attention(
        q.npu(), k.npu(), v.npu(), 4, "BNSD", atten_mask=mask, scale=0.3, **options
    )
    check(largest, total, scores)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("queries", [5, 70])
def test_scores_that_are_no_numbers(dtype: torch.dtype, queries: int) -> None:
    q, k, v = inputs(queries, 600, dtype)
    q[0, 0, 3] = math.nan
    q[0, 1, 4, 0] = math.inf  # times keys of both signs: the maximum is inf, the sum NaN
    k[1, 1, 530, 2] = math.nan
    _, largest, total, *_ = torch_npu.npu_fusion_attention(q.npu(), k.npu(), v.npu(), 4, "BNSD", scale=0.3)
    check(largest, total, scores_of(q, k, 0.3))
    assert largest[1, 2:].isnan().all()
    assert largest[0, 1, 4].isposinf().all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("scale", [-0.5, 0.3])
def test_with_a_bias_a_sink_and_dropout(dtype: torch.dtype, scale: float) -> None:
    q, k, v = inputs(40, 33, dtype)
    pse, sink = torch.randn(2, 4, 40, 33).to(dtype), torch.randn(4)
    of_sink = sink.double().view(1, 4, 1, 1).expand(2, 4, 40, 1)
    scores = torch.cat([scores_of(q, k, scale) + pse.double() * scale, of_sink], -1)
    for keep_prob in (1.0, 0.7):  # what is dropped counts in the softmax
        _, largest, total, *_ = torch_npu.npu_fusion_attention(
            q.npu(), k.npu(), v.npu(), 4, "BNSD", pse=pse.npu(), scale=scale, sink=sink.npu(), keep_prob=keep_prob
        )
        check(largest, total, scores)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sequences_of_different_lengths(dtype: torch.dtype) -> None:
    lengths, keys = [1, 30, 12], [9, 41, 3]
    q, k, v = torch.randn(43, 4, 16).to(dtype), *(torch.randn(53, 2, 16).to(dtype) for _ in range(2))
    ends, key_ends = (torch.tensor(n).cumsum(0).tolist() for n in (lengths, keys))
    _, largest, total, *_ = torch_npu.npu_fusion_attention(
        q.npu(), k.npu(), v.npu(), 4, "TND", scale=0.3, actual_seq_qlen=ends, actual_seq_kvlen=key_ends
    )
    parts = zip(q.split(lengths), k.split(keys), largest.split(lengths), total.split(lengths), strict=True)
    for queries, of_keys, maxima, sums in parts:
        by_heads = [t.transpose(0, 1).unsqueeze(0) for t in (queries, of_keys, maxima, sums)]
        check(by_heads[2], by_heads[3], scores_of(by_heads[0], by_heads[1], 0.3))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("queries", [5, 60])
def test_a_ring_of_two_is_attention_over_all_keys(dtype: torch.dtype, queries: int) -> None:
    q, k, v = (torch.randn(n, 2, 64).to(dtype).npu() for n in (queries, 50, 50))
    hidden = torch.zeros(queries, 50, dtype=torch.bool)
    hidden[:, :20], hidden[0] = torch.rand(queries, 20) > 0.3, True  # the first query sees nothing

    def attend(begin: int, end: int) -> list[Tensor]:
        mask = hidden[:, begin:end].contiguous().npu()
        return torch_npu.npu_fusion_attention(
            q, k[begin:end], v[begin:end], 4, "SBH", atten_mask=mask, scale=0.3
        )[:3]  # fmt: skip

    whole, merged = attend(0, 50), torch_npu.npu_ring_attention_update(*attend(0, 20), *attend(20, 50))
    unit = torch.finfo(dtype).eps
    assert_close(merged[0], whole[0].double().cpu(), rtol=8 * unit, atol=max(8 * unit, 1e-6))
    for statistic, expected in zip(merged[1:], whole[1:], strict=True):
        assert_close(statistic, expected.double().cpu(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("queries", [5, 60])
def test_the_gradient_takes_any_pair_of_one_logarithm(dtype: torch.dtype, queries: int) -> None:
    q, k, v = (t.npu() for t in inputs(queries, 33, dtype))
    out, largest, total, *_ = torch_npu.npu_fusion_attention(q, k, v, 4, "BNSD", scale=0.3)
    grad = torch.randn(out.shape).to(dtype).npu()
    given = {"attention_in": out, "scale_value": 0.3}
    expected = torch_npu.npu_fusion_attention_grad(
        q, k, v, grad, 4, "BNSD", softmax_max=largest, softmax_sum=total, **given
    )
    other = {"softmax_max": largest + total.log(), "softmax_sum": torch.ones_like(total)}
    again = torch_npu.npu_fusion_attention_grad(q, k, v, grad, 4, "BNSD", **other, **given)
    for a, e in zip(again[:3], expected[:3], strict=True):
        assert_close(a, e.double().cpu(), rtol=8 * torch.finfo(dtype).eps, atol=1e-4)
