"""Attention in 8-bit floats (torch_npu/composed/quantized_attention.py), against float64 that rounds where it does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torch_npu
from tests.tolerance import assert_close
from torch_npu.composed.small_floats import hifloat8, hifloat8_values

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
KINDS = pytest.mark.parametrize("kind", ["float8_e4m3fn", "hifloat8"])
LAYOUTS = pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
B, N, N2, S, S2, D = 2, 4, 2, 300, 140, 6
SCALE = 0.6931471805599453  # ln 2: weights are powers of two where scores are integers


def stored(x: Tensor, kind: str) -> Tensor:
    return x.to(torch.float8_e4m3fn) if kind == "float8_e4m3fn" else hifloat8(x)


def rounded(x: Tensor, kind: str) -> Tensor:
    x = x.float().clamp(-448, 448) if kind == "float8_e4m3fn" else x.float()
    return (stored(x, kind).float() if kind == "float8_e4m3fn" else hifloat8_values(hifloat8(x))).double()


def arranged(x: Tensor, layout: str) -> Tensor:
    if layout == "BNSD":
        return x
    x = x.transpose(1, 2)
    return (x if layout == "BSND" else x.flatten(2) if layout == "BSH" else x.flatten(2).transpose(0, 1)).contiguous()


def inputs(kind: str) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Query, key, value and the gradient as they are given, [B, N, S, D]; their scales; what they stand for."""
    shapes = (B, N, S, D), (B, N2, S2, D), (B, N2, S2, D), (B, N, S, D)
    blocks = 128, 128, 256, 384  # 3, 2, 1 and 1 of them
    numbers = [torch.randint(0, 2, s).float() for s in shapes[:2]] + [torch.randint(-8, 9, s) / 4 for s in shapes[2:]]
    scales = [2.0 ** -torch.randint(0, 2, (*s[:2], -(-s[2] // b), 1)) for s, b in zip(shapes, blocks, strict=True)]
    wide = [
        n.double() * f.double().repeat_interleave(b, 2)[:, :, : n.shape[2]]
        for n, f, b in zip(numbers, scales, blocks, strict=True)
    ]
    return [stored(n, kind) for n in numbers], scales, [w.repeat_interleave(N // w.shape[1], 1) for w in wide]


def forward(wide: list[Tensor], kind: str) -> tuple[Tensor, Tensor, Tensor]:
    scores = wide[0] @ wide[1].mT * SCALE
    largest = scores.amax(-1, keepdim=True)
    weights = rounded((scores - largest).exp(), kind)
    return weights @ wide[2] / weights.sum(-1, keepdim=True), largest, weights.sum(-1, keepdim=True)


@DEVICES
@KINDS
@LAYOUTS
def test_attention_and_gradients(device, kind, layout):
    tensors, scales, wide = inputs(kind)
    out, largest, total = forward(wide, kind)
    given = [arranged(t, layout).to(device) for t in tensors]
    factors = [t.to(device) for t in scales]
    dtype = None if kind == "float8_e4m3fn" else torch_npu.hifloat8
    actual = torch_npu.npu_quant_fusion_attention(
        *given[:3], N, layout, d_scale_q=factors[0], d_scale_k=factors[1], d_scale_v=factors[2], scale=SCALE,
        query_dtype=dtype,
    )  # fmt: skip
    assert actual[0].dtype == torch.float16
    assert_close(actual[0], arranged(out, layout), atol=2e-3)
    assert_close(actual[1], largest.expand(-1, -1, -1, 8), terms=D)
    assert_close(actual[2], total.expand(-1, -1, -1, 8), terms=S2)
    assert actual[3].numel() == 0
    assert actual[4:] == (0, 0, 0)

    p_scale, ds_scale = torch.tensor([15.0]), torch.tensor([3.5])
    gradients = torch_npu.npu_quant_fusion_attention_backward(
        *given, N, layout, *factors, p_scale=p_scale.to(device), ds_scale=ds_scale.to(device), softmax_max=actual[1],
        softmax_sum=actual[2], attention_in=actual[0], scale_value=SCALE, query_dtype=dtype,
    )  # fmt: skip
    q, k, v, d = wide
    weights = (q @ k.mT * SCALE - largest).exp() / total
    by_scores = weights * (d @ v.mT - (out * d).sum(-1, keepdim=True))
    by_scores = rounded(by_scores * 3.5, kind) / 3.5 * SCALE
    expected = by_scores @ k, by_scores.mT @ q, (rounded(weights * 15, kind) / 15).mT @ d
    for result, reference, heads in zip(gradients, expected, (N, N2, N2), strict=False):
        assert result.dtype == torch.bfloat16
        summed = reference.unflatten(1, (heads, -1)).sum(2)
        # A few of the roundings to 8 bits fall the other way in float32.
        assert_close(result, arranged(summed, layout), terms=4, atol=2e-2)
    assert [t.numel() for t in gradients[3:]] == [0, 1, 1, 0]


def test_gradients_are_near_those_of_autograd():
    tensors, scales, wide = inputs("float8_e4m3fn")
    leaves = [t.requires_grad_() for t in wide[:3]]
    out = ((leaves[0] @ leaves[1].mT) * SCALE).softmax(-1) @ leaves[2]
    exact = torch.autograd.grad(out, leaves, wide[3])
    *results, _, _, _, _ = torch_npu.npu_quant_fusion_attention(
        *tensors[:3], N, "BNSD", d_scale_q=scales[0], d_scale_k=scales[1], d_scale_v=scales[2], scale=SCALE
    )
    gradients = torch_npu.npu_quant_fusion_attention_backward(
        *tensors, N, "BNSD", *scales, p_scale=torch.tensor([256.0]), ds_scale=torch.tensor([64.0]),
        softmax_max=results[1], softmax_sum=results[2], attention_in=results[0], scale_value=SCALE,
    )  # fmt: skip
    for actual, reference in zip(gradients, exact, strict=False):
        expected = reference.unflatten(1, (actual.shape[1], -1)).sum(2)
        assert (actual.double() - expected).norm() < expected.norm() / 16  # half a unit of float8_e4m3fn


def refused() -> dict[str, tuple[type[Exception], str, dict[str, object]]]:
    return {
        "dtype": (NotImplementedError, "must be float8_e4m3fn", {"query_dtype": torch_npu.hifloat8}),
        "layout": (ValueError, "layout BNSD", {"input_layout": "TND"}),
        "heads": (ValueError, "query of 3 heads", {"head_num": 3}),
        "scales": (ValueError, "d_scale_k", {"d_scale_k": torch.ones(B, N2, 3, 1)}),
    }


@pytest.mark.parametrize("case", ["dtype", "layout", "heads", "scales"])
def test_refusals(case):
    error, message, options = refused()[case]
    (q, k, v, _), scales, _ = inputs("float8_e4m3fn")
    named = dict(zip(("d_scale_q", "d_scale_k", "d_scale_v"), scales, strict=False))
    given = {"query": q, "key": k, "value": v, "head_num": N, "input_layout": "BNSD", **named}
    with pytest.raises(error, match=message):
        torch_npu.npu_quant_fusion_attention(**given | options)


def test_the_gradient_needs_what_the_forward_gave():
    tensors, scales, _ = inputs("float8_e4m3fn")
    with pytest.raises(ValueError, match="softmax_max, softmax_sum and attention_in"):
        torch_npu.npu_quant_fusion_attention_backward(*tensors, N, "BNSD", *scales)
