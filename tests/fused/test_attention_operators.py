"""Attention operators against attention in float64: layouts, masks, caches, gradients."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import assert_close as assert_close_to_terms
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_npu

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
LAYOUTS = {
    "BNSD": lambda t: t,
    "BSND": lambda t: t.transpose(1, 2),
    "BSH": lambda t: t.transpose(1, 2).flatten(2),
    "SBH": lambda t: t.permute(2, 0, 1, 3).flatten(2),
}


def attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, hidden: Tensor | None = None, bias: Tensor | float = 0.0,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of [B, N, S, D] and log(sum(exp(scores))), in the dtype of the arguments (float64)."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-1, -2) * scale + bias
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    if sink is not None:
        scores = torch.cat((scores, sink.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)), -1)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return weights[..., : k.shape[2]] @ v, scores.logsumexp(-1)


def inputs(
    queries: int, keys: int, heads: int = 4, key_heads: int = 2, size: int = 24, batch: int = 2,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    torch.manual_seed(queries * 100 + keys)
    shapes = [(batch, heads, queries, size), (batch, key_heads, keys, size), (batch, key_heads, keys, size)]
    q, k, v = (torch.randn(s).to(dtype) for s in shapes)
    return q, k, v


def ahead(queries: int, keys: int, last: bool) -> Tensor:
    """How far a key lies behind its query, counted from the first or the last pair."""
    shift = keys - queries if last else 0
    return torch.arange(keys) - torch.arange(queries)[:, None] - shift


def assert_close(actual: Tensor, expected: Tensor, terms: int) -> None:
    """Results are means of values near one, so that differences near zero are judged by the unit of those."""
    unit = torch.finfo(actual.dtype).eps
    assert_close_to_terms(actual, expected, terms=terms, atol=max(1e-5, 2 * unit) * terms**0.5)


def check_gradients_of(
    out: Tensor, expected: Tensor, device: list[Tensor], reference: list[Tensor], terms: int
) -> None:
    """Gradients of leaves on the device against those of the float64 reference, for one random cotangent."""
    gradient = torch.randn(out.shape)
    out.backward(gradient.npu())
    expected.backward(gradient.double())
    for actual, wanted in zip(device, reference, strict=True):
        assert_close(actual.grad, wanted.grad, terms=terms)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (1, 65), (33, 70)])
@pytest.mark.parametrize("op", ["npu_fusion_attention", "npu_fusion_attention_v2"])
def test_layouts(op: str, layout: str, queries: int, keys: int, dtype: torch.dtype) -> None:
    q, k, v = inputs(queries, keys, dtype=dtype)
    arrange = LAYOUTS[layout]
    with torch_npu.fallback_policy("error"):
        out, maximum, total, *_ = getattr(torch_npu, op)(*(arrange(t).npu() for t in (q, k, v)), 4, layout, scale=0.3)
    expected, lse = attention(q.double(), k.double(), v.double(), 0.3)
    assert_close(out, arrange(expected), terms=4)
    assert_close((maximum.double() + total.double().log())[..., 0].float().cpu(), lse, terms=16)
    assert maximum.shape == (2, 4, queries, 8)


@pytest.mark.parametrize("queries", [3, 40])
@pytest.mark.parametrize(
    ("mode", "options"),
    [(0, {}), (1, {}), (2, {}), (3, {}), (4, {"pre_tockens": 4, "next_tockens": 2}), (6, {"prefix": [2, 9]})],
)
def test_sparse_modes_and_gradients(mode: int, options: dict[str, Any], queries: int) -> None:
    keys = queries + 5
    q, k, v = inputs(queries, keys)
    mask = torch.rand(2, 1, queries, keys) < 0.3
    from_last = ahead(queries, keys, last=True)
    hidden = {
        0: mask,
        1: mask,
        2: ahead(queries, keys, last=False) > 0,
        3: from_last > 0,
        4: (from_last > 2) | (from_last < -4),
        6: (from_last > 0) & ~(torch.arange(keys) < torch.tensor([2, 9])[:, None, None, None]),
    }[mode]
    given_mask = mask if mode < 2 else torch.ones(2048, 2048).triu(1).bool()
    device = [t.npu().requires_grad_() for t in (q, k, v)]
    reference = [t.double().requires_grad_() for t in (q, k, v)]
    out = torch_npu.npu_fusion_attention(
        *device, 4, "BNSD", atten_mask=given_mask.npu(), scale=0.2, sparse_mode=mode, **options
    )[0]
    expected, _ = attention(*reference, 0.2, hidden)
    assert_close(out, expected, terms=4)
    check_gradients_of(out, expected, device, reference, terms=16)


def test_mode_0_without_a_mask_ignores_the_band() -> None:
    q, k, v = inputs(9, 9)
    out = torch_npu.npu_fusion_attention(*(t.npu() for t in (q, k, v)), 4, "BNSD", pre_tockens=1, next_tockens=0)[0]
    assert_close(out, attention(q.double(), k.double(), v.double(), 1.0)[0], terms=16)


def test_bias_sink_and_their_gradients() -> None:
    q, k, v = inputs(11, 13)
    bias, sink = torch.randn(1, 4, 11, 13), torch.tensor([0.5, -1.0, 2.0, 0.0])
    device = [t.npu().requires_grad_() for t in (q, k, v, bias, sink)]
    reference = [t.double().requires_grad_() for t in (q, k, v, bias, sink)]
    out = torch_npu.npu_fusion_attention(*device[:3], 4, "BNSD", device[3], scale=0.3, sink=device[4])[0]
    expected, _ = attention(*reference[:3], 0.3, bias=reference[3] * 0.3, sink=reference[4])
    assert_close(out, expected, terms=4)
    check_gradients_of(out, expected, device, reference, terms=64)


def test_pse_type_0_is_added_after_scaling() -> None:
    q, k, v = inputs(5, 6)
    bias = torch.randn(2, 4, 5, 6)
    out = torch_npu.npu_fusion_attention_v2(
        *(t.npu() for t in (q, k, v)), 4, "BNSD", pse=bias.npu(), scale=0.3, pse_type=0
    )[0]
    assert_close(out, attention(q.double(), k.double(), v.double(), 0.3, bias=bias.double())[0], terms=4)


@pytest.mark.parametrize("mode", [0, 3])
def test_sequences_behind_each_other(mode: int) -> None:
    q, k, v = (t[0].transpose(0, 1).contiguous() for t in inputs(21, 26))
    ends_q, ends_k = [4, 4, 21], [6, 7, 26]
    device = [t.npu().requires_grad_() for t in (q, k, v)]
    reference = [t.double().requires_grad_() for t in (q, k, v)]
    out, maximum, *_ = torch_npu.npu_fusion_attention(
        *device, 4, "TND", scale=0.3, sparse_mode=mode, actual_seq_qlen=ends_q, actual_seq_kvlen=ends_k
    )
    parts, begin_q, begin_k = [], 0, 0
    for end_q, end_k in zip(ends_q, ends_k, strict=True):
        part = [reference[0][begin_q:end_q], reference[1][begin_k:end_k], reference[2][begin_k:end_k]]
        hidden = ahead(end_q - begin_q, end_k - begin_k, last=True) > 0 if mode == 3 else None
        parts.append(attention(*(t.transpose(0, 1)[None] for t in part), 0.3, hidden)[0][0].transpose(0, 1))
        begin_q, begin_k = end_q, end_k
    expected = torch.cat(parts)
    assert_close(out, expected, terms=4)
    assert maximum.shape == (21, 4, 8)
    check_gradients_of(out, expected, device, reference, terms=16)


def test_gradient_of_a_bias_of_sequences_behind_each_other() -> None:
    q, k, v = (t[0].transpose(0, 1).contiguous() for t in inputs(9, 12))
    ends_q, ends_k, bias = [4, 9], [5, 12], torch.randn(2, 4, 5, 7)
    device, reference = ([t.clone() for t in (q, k, v, bias)] for _ in range(2))
    device = [t.npu().requires_grad_() for t in device]
    reference = [t.double().requires_grad_() for t in reference]
    out = torch_npu.npu_fusion_attention(
        *device[:3], 4, "TND", device[3], scale=0.3, actual_seq_qlen=ends_q, actual_seq_kvlen=ends_k
    )[0]
    parts = []
    for i, (a, b, c, d) in enumerate([(0, 4, 0, 5), (4, 9, 5, 12)]):
        part = (t.transpose(0, 1)[None] for t in (reference[0][a:b], reference[1][c:d], reference[2][c:d]))
        shift = reference[3][i : i + 1, :, : b - a, : d - c] * 0.3
        parts.append(attention(*part, 0.3, bias=shift)[0][0].transpose(0, 1))
    expected = torch.cat(parts)
    assert_close(out, expected, terms=4)
    check_gradients_of(out, expected, device, reference, terms=16)


def test_dropout_of_sequences_behind_each_other() -> None:
    """The same seed and offset give the same mask; each sequence has its own part of it."""
    ends_q, ends_k = [64, 96], [64, 160]
    q, k = torch.randn(96, 4, 16).npu(), torch.randn(160, 2, 16).npu()
    v = torch.ones(160, 2, 16).npu().requires_grad_()
    options = {"actual_seq_qlen": ends_q, "actual_seq_kvlen": ends_k, "keep_prob": 0.8}
    torch.manual_seed(3)
    out, *_, seed, offset, numel = torch_npu.npu_fusion_attention(q, k, v, 4, "TND", **options)
    assert numel == 4 * (64 * 64 + 32 * 96)
    assert abs(out.mean().item() - 1) < 0.02
    assert out[64:].var().item() > 1e-4
    again = torch_npu.npu_fusion_attention(q, k, v, 4, "TND", **options, seed=seed, offset=offset)[0]
    assert torch.equal(again, out)
    out.sum().backward()
    torch.testing.assert_close(v.grad.sum().cpu(), out.detach().sum().cpu(), rtol=1e-4, atol=1e-3)


def test_dropout_keeps_the_mean_and_its_gradient_the_same_mask() -> None:
    q, k, v = (t.npu() for t in inputs(64, 64, batch=4))
    v = torch.ones_like(v).requires_grad_()
    torch.manual_seed(3)
    out, *_, seed, offset, numel = torch_npu.npu_fusion_attention(q, k, v, 4, "BNSD", keep_prob=0.8)
    assert numel == 4 * 4 * 64 * 64
    assert abs(out.mean().item() - 1) < 0.02
    assert out.var().item() > 1e-4
    again = torch_npu.npu_fusion_attention(q, k, v, 4, "BNSD", keep_prob=0.8, seed=seed, offset=offset)[0]
    torch.testing.assert_close(again, out)
    out.sum().backward()
    # The output is linear in v: its gradient, summed, is the sum of the kept weights.
    torch.testing.assert_close(v.grad.sum().cpu(), (out / v.shape[-1]).sum().cpu() * v.shape[-1], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("paged", ["no", "flat", "heads"])
@pytest.mark.parametrize("queries", [1, 3, 12])
def test_inference_with_a_cache(queries: int, paged: str, dtype: torch.dtype) -> None:
    lengths, block_size = [17, 40, 12], 8
    q, k, v = inputs(queries, 40, heads=6, key_heads=2, batch=3, dtype=dtype)
    options: dict[str, Any] = {}
    key, value = k.transpose(1, 2).flatten(2), v.transpose(1, 2).flatten(2)
    if paged != "no":
        torch.manual_seed(1)
        table = torch.randperm(15).view(3, 5).int()
        caches = []
        for t in (key, value):
            cache = torch.zeros(15, block_size, t.shape[-1], dtype=dtype)
            cache[table.flatten().long()] = t.reshape(15, block_size, -1)
            caches.append(cache if paged == "flat" else cache.unflatten(2, (2, -1)).transpose(1, 2).contiguous())
        key, value = caches
        options = {"block_table": table.npu(), "block_size": block_size}
    with torch_npu.fallback_policy("error"):
        out, lse = torch_npu.npu_fused_infer_attention_score(
            q.transpose(1, 2).flatten(2).npu(), key.npu(), value.npu(), num_heads=6, num_key_value_heads=2, scale=0.3,
            actual_seq_lengths_kv=lengths, sparse_mode=3, softmax_lse_flag=True, **options,
        )  # fmt: skip
    for i, length in enumerate(lengths):
        part = [q[i : i + 1], k[i : i + 1, :, :length], v[i : i + 1, :, :length]]
        expected, expected_lse = attention(*(t.double() for t in part), 0.3, ahead(queries, length, last=True) > 0)
        assert_close(out[i], LAYOUTS["BSH"](expected)[0], terms=4)
        assert_close(lse[i, ..., 0].cpu(), expected_lse[0], terms=16)


def test_inference_of_sequences_of_different_lengths() -> None:
    q, k, v = inputs(20, 20)
    out = torch_npu.npu_prompt_flash_attention(
        *(t.npu() for t in (q, k, v)), num_heads=4, num_key_value_heads=2, input_layout="BNSD_BSND", scale_value=0.3,
        actual_seq_lengths=[20, 9], actual_seq_lengths_kv=[20, 9], sparse_mode=2,
    )  # fmt: skip
    assert out.shape == (2, 20, 4, 24)
    for i, length in enumerate([20, 9]):
        part = [t[i : i + 1, :, :length].double() for t in (q, k, v)]
        expected, _ = attention(*part, 0.3, ahead(length, length, last=True) > 0)
        assert_close(out[i, :length], expected[0].transpose(0, 1), terms=4)
    assert not out[1, 9:].any()


def test_incremental_attention_with_a_mask_and_a_list_of_keys() -> None:
    q, k, v = inputs(1, 33, batch=1)
    hidden = torch.rand(1, 1, 33) < 0.5
    out = torch_npu.npu_incre_flash_attention(
        *(t.npu() for t in (q, k, v)), num_heads=4, num_key_value_heads=2, scale_value=0.3, input_layout="BNSD",
        atten_mask=hidden.npu(),
    )  # fmt: skip
    assert_close(out, attention(q.double(), k.double(), v.double(), 0.3, hidden[:, None])[0], terms=4)


def test_score_v2_with_a_sink_and_ragged_queries() -> None:
    q, k, v = (t[0].transpose(0, 1).contiguous() for t in inputs(9, 30))
    sink = torch.tensor([0.5, -1.0, 2.0, 0.0])
    out, lse = torch_npu.npu_fused_infer_attention_score_v2(
        *(t.npu() for t in (q, k, v)), num_query_heads=4, num_key_value_heads=2, softmax_scale=0.3, input_layout="TND",
        actual_seq_qlen=[1, 9], actual_seq_kvlen=[14, 30], sparse_mode=3, learnable_sink=sink.npu(),
        return_softmax_lse=True,
    )  # fmt: skip
    assert lse.shape == (9, 4, 1)
    for (a, b), (c, d) in [((0, 1), (0, 14)), ((1, 9), (14, 30))]:
        part = [t.transpose(0, 1)[None].double() for t in (q[a:b], k[c:d], v[c:d])]
        expected, _ = attention(*part, 0.3, ahead(b - a, d - c, last=True) > 0, sink=sink.double())
        assert_close(out[a:b], expected[0].transpose(0, 1), terms=16)


SHAPES = {
    "batch": st.integers(1, 3), "groups": st.integers(1, 3), "key_heads": st.integers(1, 2),
    "queries": st.integers(1, 20), "keys": st.integers(1, 150), "size": st.sampled_from([1, 8, 40, 64]),
    "dtype": st.sampled_from(FLOATS),
}  # fmt: skip
MODES = {"mode": st.integers(0, 6), "density": st.sampled_from([0.0, 0.5, 1.0]), "band": st.integers(-3, 9)}


def hidden_by(mode: int, mask: Tensor, before: int, after: int, prefix: list[int]) -> Tensor:
    """What sparse_mode hides, true: docs/npu_attention.md in words."""
    queries, keys = mask.shape[-2:]
    first, last = ahead(queries, keys, last=False), ahead(queries, keys, last=True)
    seen = torch.arange(keys) < torch.tensor(prefix)[:, None, None, None]
    return {
        0: mask | (first > after) | (first < -before),
        1: mask,
        2: (first > 0).expand(mask.shape),
        3: (last > 0).expand(mask.shape),
        4: ((last > after) | (last < -before)).expand(mask.shape),
        5: mask,
        6: (last > 0) & ~seen,
    }[mode]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(layout=st.sampled_from(list(LAYOUTS)), **SHAPES, **MODES)
def test_any_shape_layout_and_mask(
    layout: str, batch: int, groups: int, key_heads: int, queries: int, keys: int, size: int, dtype: torch.dtype,
    mode: int, density: float, band: int,
) -> None:  # fmt: skip
    """Values and, in float32, gradients of npu_fusion_attention."""
    heads = groups * key_heads
    q, k, v = inputs(queries, keys, heads, key_heads, size, batch, dtype)
    mask, prefix = torch.rand(batch, 1, queries, keys) < density, [keys // 2] * batch
    before, after = 6, max(band, 0)
    hidden = hidden_by(mode, mask, before, after, prefix)
    arrange = LAYOUTS[layout]
    device = [t.npu().requires_grad_() for t in (q, k, v)]
    reference = [t.double().requires_grad_() for t in (q, k, v)]
    out = torch_npu.npu_fusion_attention(
        *(arrange(t) for t in device), heads, layout, atten_mask=mask.npu(), scale=0.25, sparse_mode=mode,
        pre_tockens=before, next_tockens=after, prefix=prefix if mode == 6 else None,
    )[0]  # fmt: skip
    expected = arrange(attention(*reference, 0.25, hidden)[0])
    assert_close(out, expected, terms=16)
    if dtype is torch.float32:
        check_gradients_of(out, expected, device, reference, terms=64)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 40)), min_size=1, max_size=4),
    groups=st.integers(1, 3), key_heads=st.integers(1, 2), size=st.sampled_from([1, 8, 40]),
    mode=st.sampled_from([0, 2, 3]), dtype=st.sampled_from(FLOATS),
)  # fmt: skip
def test_any_sequences_behind_each_other(
    lengths: list[tuple[int, int]], groups: int, key_heads: int, size: int, mode: int, dtype: torch.dtype
) -> None:
    """Layout TND, of training and of inference, for sequences of any lengths, none included."""
    heads = groups * key_heads
    ends_q, ends_k = (list(itertools.accumulate(pair[i] for pair in lengths)) for i in (0, 1))
    q, k, v = (
        t[0].transpose(0, 1).contiguous() for t in inputs(ends_q[-1], ends_k[-1], heads, key_heads, size, 1, dtype)
    )
    parts = []
    for (a, b), (c, d) in zip(itertools.pairwise([0, *ends_q]), itertools.pairwise([0, *ends_k]), strict=True):
        part = [t.transpose(0, 1)[None].double() for t in (q[a:b], k[c:d], v[c:d])]
        hidden = None if mode == 0 else ahead(b - a, d - c, last=mode == 3) > 0
        parts.append(attention(*part, 0.25, hidden)[0][0].transpose(0, 1))
    expected = torch.cat(parts)
    on_npu = [t.npu() for t in (q, k, v)]
    out = torch_npu.npu_fusion_attention(
        *on_npu, heads, "TND", scale=0.25, sparse_mode=mode, actual_seq_qlen=ends_q, actual_seq_kvlen=ends_k
    )[0]
    assert_close(out, expected, terms=16)
    out, _ = torch_npu.npu_fused_infer_attention_score(
        *on_npu, num_heads=heads, num_key_value_heads=key_heads, input_layout="TND", scale=0.25, sparse_mode=mode,
        actual_seq_lengths=ends_q, actual_seq_lengths_kv=ends_k,
    )  # fmt: skip
    assert_close(out, expected, terms=16)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(block=st.sampled_from([1, 4, 16]), lengths=st.lists(st.integers(1, 60), min_size=1, max_size=3), **SHAPES)
def test_any_paged_cache(
    block: int, lengths: list[int], batch: int, groups: int, key_heads: int, queries: int, keys: int, size: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    """Blocks in any order, sequences of any length, few and many queries; batch and keys follow from the lengths."""
    batch, keys, heads = len(lengths), -(-max(lengths) // block) * block, groups * key_heads
    q, k, v = inputs(queries, keys, heads, key_heads, size, batch, dtype)
    table = torch.randperm(batch * keys // block).view(batch, -1).int()
    caches = []
    for t in (k, v):
        cache = torch.zeros(table.numel(), block, key_heads * size, dtype=dtype)
        cache[table.flatten().long()] = t.transpose(1, 2).reshape(table.numel(), block, -1)
        caches.append(cache.npu())
    out, _ = torch_npu.npu_fused_infer_attention_score(
        q.npu(), *caches, num_heads=heads, num_key_value_heads=key_heads, input_layout="BNSD", scale=0.25,
        block_table=table.npu(), block_size=block, actual_seq_lengths_kv=lengths,
    )  # fmt: skip
    for i, length in enumerate(lengths):
        part = (t[i : i + 1, :, :length].double() for t in (k, v))
        expected, _ = attention(q[i : i + 1].double(), *part, 0.25)
        assert_close(out[i : i + 1], expected, terms=16)


def test_autocast_computes_in_the_lower_precision() -> None:
    q, k, v = (t.npu() for t in inputs(5, 7))
    with torch.autocast("npu", torch.bfloat16):
        assert torch_npu.npu_fusion_attention(q, k, v, 4, "BNSD")[0].dtype == torch.bfloat16


def test_fake_shapes() -> None:
    q, k, v = (t.npu() for t in inputs(5, 7))
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in (q, k, v)]
        results = torch_npu.npu_fusion_attention(*fake, 4, "BNSD")
    real = torch_npu.npu_fusion_attention(q, k, v, 4, "BNSD")
    for a, b in zip(real, results, strict=True):
        assert a == b if isinstance(a, int) else (a.shape, a.dtype, a.device.type) == (b.shape, b.dtype, b.device.type)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"input_layout": "BDSN"}, ValueError, "one of BSH, SBH, BSND, BNSD, TND.*input_layout=BDSN"),
        ({"input_layout": "BSH"}, ValueError, "must have 4 dimensions in layouts BSND and BNSD, 3 in the others"),
        ({"head_num": 3}, ValueError, "number of query's heads.*head_num=3"),
        ({"keep_prob": 0.0}, ValueError, r"keep_prob must lie in \(0, 1\]"),
        ({"sparse_mode": 9}, ValueError, "sparse_mode must be one of 0 to 8"),
        ({"sparse_mode": 6}, ValueError, "needs `prefix`"),
        ({"softmax_layout": "same_as_input"}, ValueError, "softmax_layout must be empty, or TND"),
    ],
)
def test_refusals(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    q, k, v = (t.npu() for t in inputs(5, 7))
    arguments = {"head_num": 4, "input_layout": "BNSD", **arguments}
    with pytest.raises(error, match=text):
        torch_npu.npu_fusion_attention(q, k, v, **arguments)


def test_scales_of_plain_caches_are_refused() -> None:
    q, k, v = (t.npu() for t in inputs(1, 7))
    with pytest.raises(
        ValueError, match="keys and values in int8, or int4 in int32, need antiquant_scale; others must not have it"
    ):
        torch_npu.npu_incre_flash_attention(q, k, v, num_heads=4, input_layout="BNSD", antiquant_scale=q)
