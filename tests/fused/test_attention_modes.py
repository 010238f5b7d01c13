"""Training attention: sequences cut among devices, slopes, rotated parts of heads, given dropout masks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_attention_operators import ahead, assert_close, attention, check_gradients_of, inputs
from torch import Tensor

import torch_npu

TRIANGLE = torch.ones(2048, 2048).triu(1).bool()


def tokens(lengths: list[int], heads: int, size: int) -> Tensor:
    torch.manual_seed(sum(lengths) + heads)
    return torch.randn(sum(lengths), heads, size)


def ends(lengths: list[int]) -> list[int]:
    return torch.tensor(lengths).cumsum(0).tolist()


def of_sequences(
    tensors: list[Tensor], queries: list[int], keys: list[int], hidden: list[Tensor | None], **options: Any
):
    """The float64 reference over sequences behind each other, [T, N, D]."""
    parts = zip(*(t.split(n) for t, n in zip(tensors, (queries, keys, keys), strict=True)), hidden, strict=True)
    results = []
    for number, (*part, mask) in enumerate(parts):
        q, k, v = (t.transpose(0, 1)[None] for t in part)
        more = {name: of(number, q.shape[2], k.shape[2]) for name, of in options.items()}
        results.append(attention(q, k, v, 0.3, mask, **more)[0][0].transpose(0, 1))
    return torch.cat(results)


def require_equal(out: Tensor, expected: Tensor, leaves: list[Tensor], reference: list[Tensor]) -> None:
    """Results and gradients of npu against those in float64."""
    assert out.dtype == leaves[0].dtype
    assert_close(out, expected, terms=4)
    gradient = torch.randn(out.shape).to(out.dtype)
    out.backward(gradient.npu())
    expected.backward(gradient.double())
    for actual, wanted in zip(leaves, reference, strict=True):
        assert_close(actual.grad, wanted.grad, terms=64)


@pytest.mark.parametrize(
    ("mode", "before", "after", "queries", "keys"),
    [(7, 6, -2, [3, 2], [3, 6]), (8, 4, 1, [3, 5, 4], [4, 5, 4]), (7, 50, -1, [30, 40], [35, 44])],
)
def test_sequences_cut_among_devices(mode: int, before: int, after: int, queries: list[int], keys: list[int]) -> None:
    leaves = [tokens(queries, 4, 24), tokens(keys, 2, 24), tokens(keys, 2, 24) + 1]
    device = [t.npu().requires_grad_() for t in leaves]
    reference = [t.double().requires_grad_() for t in leaves]
    out = torch_npu.npu_fusion_attention(
        *device, 4, "TND", atten_mask=TRIANGLE.npu(), scale=0.3, sparse_mode=mode, pre_tockens=before,
        next_tockens=after, actual_seq_qlen=ends(queries), actual_seq_kvlen=ends(keys),
    )[0]  # fmt: skip
    cut = len(queries) - 1 if mode == 7 else 0
    hidden = []
    for i, (a, b) in enumerate(zip(queries, keys, strict=True)):
        from_last = ahead(a, b, last=True)
        band = (from_last > after) | (from_last < -before)
        hidden.append(band if i == cut else from_last > 0 if mode == 7 else ahead(a, b, last=False) > 0)
    expected = of_sequences(reference, queries, keys, hidden)
    assert_close(out, expected, terms=4)
    check_gradients_of(out, expected, device, reference, terms=64)


def distances(kind: int, slopes: Tensor, queries: int, keys: int, query_start: int = 0, key_start: int = 0) -> Tensor:
    apart = (torch.arange(queries)[:, None] + query_start - torch.arange(keys) - key_start).abs().double()
    return -slopes.double()[..., None, None] * (apart.sqrt() if kind == 3 else apart)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [2, 3])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("queries", [3, 70])
def test_slopes(kind: int, batched: bool, queries: int, dtype: torch.dtype) -> None:
    q, k, v = inputs(queries, queries + 4, dtype=dtype)
    slopes = torch.rand(2, 4) if batched else torch.rand(4)
    device = [t.npu().requires_grad_() for t in (q, k, v)]
    reference = [t.double().requires_grad_() for t in (q, k, v)]
    starts = {"q_start_idx": [5], "kv_start_idx": [2]} if batched else {}
    out = torch_npu.npu_fusion_attention_v2(
        *device, 4, "BNSD", pse=slopes.npu(), scale=0.3, pse_type=kind, **starts
    )[0]  # fmt: skip
    bias = distances(kind, slopes, queries, queries + 4, *((5, 2) if batched else ()))
    expected, _ = attention(*reference, 0.3, bias=bias)
    require_equal(out, expected, device, reference)


def test_slopes_of_each_sequence() -> None:
    queries, keys = [5, 9], [6, 9]
    leaves, slopes = [tokens(queries, 4, 24), tokens(keys, 2, 24), tokens(keys, 2, 24) + 1], torch.rand(2, 4)
    out = torch_npu.npu_fusion_attention_v2(
        *(t.npu() for t in leaves), 4, "TND", pse=slopes.npu(), scale=0.3, pse_type=2,
        actual_seq_qlen=ends(queries), actual_seq_kvlen=ends(keys),
    )[0]  # fmt: skip
    expected = of_sequences(
        [t.double() for t in leaves], queries, keys, [None, None],
        bias=lambda i, a, b: distances(2, slopes[i], a, b),
    )  # fmt: skip
    assert_close(out, expected, terms=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rotated_parts_of_heads(dtype: torch.dtype) -> None:
    queries, keys = [5, 30], [7, 41]
    shapes = [(queries, 4, 24), (keys, 2, 24), (keys, 2, 20), (queries, 4, 8), (keys, 2, 8)]
    leaves = [tokens(*shape).to(dtype) for shape in shapes]
    device = [t.npu().requires_grad_() for t in leaves]
    reference = [t.double().requires_grad_() for t in leaves]
    out = torch_npu.npu_fusion_attention_v2(
        *device[:3], 4, "TND", query_rope=device[3], key_rope=device[4], scale=0.3,
        actual_seq_qlen=ends(queries), actual_seq_kvlen=ends(keys),
    )[0]  # fmt: skip
    q, k, v, q_rope, k_rope = reference
    whole = [torch.cat((q, q_rope), -1), torch.cat((k, k_rope), -1), v]
    expected = of_sequences(whole, queries, keys, [None, None])
    require_equal(out, expected, device, reference)


def test_a_given_dropout_mask() -> None:
    q, k, v = inputs(5, 8)
    bits = torch.randint(0, 256, (2 * 4 * 5 * 8 // 8 + 3,), dtype=torch.uint8)
    out, *_, seed, offset, count = torch_npu.npu_fusion_attention(
        *(t.npu() for t in (q, k, v)), 4, "BNSD", scale=0.3, keep_prob=0.5, dropout_mask=bits.npu(), seed=7, offset=9
    )
    assert (seed, offset, count) == (7, 9, 2 * 4 * 5 * 8)
    kept = (bits[:, None] >> torch.arange(8)).bitwise_and(1).flatten()[:count].view(2, 4, 5, 8).double()
    wide_k, wide_v = (t.double().repeat_interleave(2, 1) for t in (k, v))
    weights = (q.double() @ wide_k.transpose(-1, -2) * 0.3).softmax(-1) * kept / 0.5
    assert_close(out, weights @ wide_v, terms=16)
    with pytest.raises(ValueError, match="must have one bit for each score; it has 4 bytes for 320 scores"):
        torch_npu.npu_fusion_attention(
            *(t.npu() for t in (q, k, v)), 4, "BNSD", keep_prob=0.5, dropout_mask=bits[:4].npu()
        )


def test_layout_of_the_statistics() -> None:
    q, k, v = (tokens([4, 5], heads, 24).npu() for heads in (4, 2, 2))
    results = [
        torch_npu.npu_fusion_attention(
            q, k, v, 4, "TND", actual_seq_qlen=[4, 9], actual_seq_kvlen=[4, 9], softmax_layout=layout
        )
        for layout in ("", "TND")
    ]
    assert all(torch.equal(a, b) for a, b in zip(results[0][:3], results[1][:3], strict=True))
    assert results[0][1].shape == (9, 4, 8)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"sparse_mode": 7}, "sparse_mode 7 and 8, for sequences cut among devices, need layout TND and no pse"),
        ({"softmax_layout": "TND"}, "softmax_layout must be empty, or TND with input_layout TND"),
        ({"pse_type": 2}, r"need pse, the slopes of the heads: float32 \[N\] or \[B, N\]"),
        ({"pse_type": 4}, "pse_type must be one of 0 to 3"),
        ({"q_start_idx": [1]}, "q_start_idx and kv_start_idx belong to pse_type 2 and 3"),
        ({"query_rope": 1}, "query_rope and key_rope belong together"),
        ({"query_rope": 1, "key_rope": 1}, "with layout TND; with others concatenate it to query"),
    ],
)
def test_refusals(arguments: dict[str, Any], text: str) -> None:
    q, k, v = (t.npu() for t in inputs(5, 7))
    arguments = {n: q if a == 1 and "rope" in n else a for n, a in arguments.items()}
    with pytest.raises(ValueError, match=text):
        torch_npu.npu_fusion_attention_v2(q, k, v, 4, "BNSD", **arguments)


def test_a_slope_of_zero_changes_nothing() -> None:
    q, k, v = (t.npu() for t in inputs(6, 6))
    plain = torch_npu.npu_fusion_attention_v2(q, k, v, 4, "BNSD", scale=1 / math.sqrt(24))[0]
    sloped = torch_npu.npu_fusion_attention_v2(
        q, k, v, 4, "BNSD", scale=1 / math.sqrt(24), pse=torch.zeros(4).npu(), pse_type=3
    )[0]
    assert_close(sloped, plain.double(), terms=4)


def test_dropout_masks_of_a_seed():
    q, k, v = (torch.randn(2, 4, 5, 16, device="npu") for _ in range(3))
    out, _, _, _, seed, offset, count = torch_npu.npu_fusion_attention(q, k, v, 4, "BNSD", keep_prob=0.7)
    mask = torch_npu._npu_dropout_gen_mask(q, [2, 4, 5, 5], 1 - 0.7, seed, offset)
    assert mask.numel() * 8 >= count == 2 * 4 * 5 * 5
    bits = (mask[:, None] >> torch.arange(8, device="npu", dtype=torch.uint8) & 1).flatten()[:count].view(2, 4, 5, 5)
    weights = (q.double() @ k.double().mT).softmax(-1) * bits / 0.7
    torch.testing.assert_close(out.double(), weights @ v.double(), rtol=1e-5, atol=1e-5)


def test_masks_follow_seed_and_offset():
    x = torch.empty(3, device="npu")
    mask = torch_npu._npu_dropout_gen_mask(x, [100, 1000], 0.3, 5, 100)
    assert mask.shape == (100_096 // 8,)
    assert torch.equal(mask, torch_npu._npu_dropout_gen_mask(x, [100, 1000], 0.3, 5, 100, parallel=False))
    assert not torch.equal(mask, torch_npu._npu_dropout_gen_mask(x, [100, 1000], 0.3, 6, 100))
    assert not torch.equal(mask, torch_npu._npu_dropout_gen_mask(x, [100, 1000], 0.3, 5, 104))
    kept = torch_npu.npu_dropout_do_mask(torch.ones(100, 1000, device="npu"), mask, 0.3)[0].count_nonzero().item()
    assert abs(kept / 100_000 - 0.7) < 0.01
    assert torch_npu._npu_dropout_gen_mask(x, [32, 16], 0.0, 1, 1).unique().tolist() == [255]
    assert torch_npu._npu_dropout_gen_mask(x, [0], 0.5, 1, 1).numel() == 0
    with pytest.raises(ValueError, match=r"p must lie in \[0, 1\]"):
        torch_npu._npu_dropout_gen_mask(x, [4], 2.0, 1, 1)
