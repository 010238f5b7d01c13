"""Attention of BERT in steps (torch_npu/composed/attention_scores.py), in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
B, N, S, S2, D = 2, 3, 5, 7, 4


def rows(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).reshape(heads.shape[0] * heads.shape[2], -1)


@DEVICES
@DTYPES
@pytest.mark.parametrize("keep", [1.0, 0.6])
def test_scores(device, dtype, keep):
    q, k, v = (torch.randn(B, N, n, D).to(dtype) for n in (S, S2, S2))
    mask = torch.randn(B, 1, S, S2).to(dtype)
    leaves = [t.to(device).requires_grad_() for t in (q, k, v)]
    out, softmax, kept = torch_npu.npu_fused_attention_score_fwd(*leaves, mask.to(device), 0.3, keep)
    assert (kept.dtype, kept.shape) == (torch.uint8, (B * N * S * S2,))
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    shares = (wide[0] @ wide[1].mT * 0.3 + mask.double()).softmax(-1)
    factors = kept.cpu().view(B, N, S, S2).double() / keep
    if keep == 1:
        assert (factors == 1).all()
        plain = torch_npu.npu_fused_attention_score(*leaves, mask.to(device), 0.3, keep)
        assert torch.equal(plain, out)
    expected = rows(shares * factors @ wide[2])
    eps = torch.finfo(dtype).eps
    assert_close(softmax, shares, terms=8)
    assert_close(out, expected, terms=8, atol=8 * eps)
    grad = torch.randn(out.shape).to(dtype)
    expected.backward(grad.double())
    out.backward(grad.to(device))
    given = (grad.to(device), softmax, *(t.detach() for t in leaves), kept, 0.3, keep)
    found = torch_npu.npu_fused_attention_score_backward(*given)
    flat = torch_npu.npu_fused_attention_score_grad(*given)
    for leaf, one, gradient, row in zip(leaves, wide, found, flat, strict=True):
        assert_close(leaf.grad, one.grad, terms=32, atol=16 * eps)
        assert_close(gradient, one.grad, terms=32, atol=16 * eps)
        assert torch.equal(row, rows(gradient))


@DEVICES
@DTYPES
@pytest.mark.parametrize("biased", [False, True])
def test_projections_and_their_gradients(device, dtype, biased):
    width = N * D
    x, gamma, beta = (torch.randn(s).to(dtype) for s in ((B * S, width), (width,), (width,)))
    kernels = [torch.randn(width, width).to(dtype) / 4 for _ in range(3)]
    biases = [torch.randn(width).to(dtype) if biased else None for _ in range(3)]
    norm, *heads, mean, variance = torch_npu.npu_fused_attention_layernorm_qkv_fwd(
        *(t.to(device) for t in (x, *kernels, gamma, beta)), *(b if b is None else b.to(device) for b in biases),
        seq_len=S, num_heads=N, eps=1e-3,
    )  # fmt: skip
    eps = torch.finfo(dtype).eps
    expected = torch.nn.functional.layer_norm(x.double(), (width,), gamma.double(), beta.double(), 1e-3)
    assert_close(norm, expected, terms=16, atol=16 * eps)
    assert_close(mean, x.double().mean(1), terms=16)
    assert_close(variance, x.double().var(1, correction=0), terms=16)
    for head, kernel, bias in zip(heads, kernels, biases, strict=True):
        product = norm.cpu().double() @ kernel.double() + (0 if bias is None else bias.double())
        assert head.is_contiguous()
        assert_close(head, product.view(B, S, N, D).transpose(1, 2), terms=16, atol=16 * eps)
    grads = [torch.randn(B * S, width).to(dtype) for _ in range(3)]
    more = torch.randn(B * S, width).to(dtype)
    dx, *rest = torch_npu.npu_fused_attention_qkv_grad(*(t.to(device) for t in (*grads, *kernels, x, more)))
    total = more.double() + sum(g.double() @ k.double().t() for g, k in zip(grads, kernels, strict=True))
    assert_close(dx, total, terms=64, atol=16 * eps)
    by_parts = [x.double().t() @ g.double() for g in grads] + [g.double().sum(0) for g in grads]
    for actual, reference in zip(rest, by_parts, strict=True):
        assert_close(actual, reference, terms=32, atol=16 * eps)


@DEVICES
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_gradients_of_multi_head_attention(device, biased, p):
    inner, size = N * D, 10
    inputs = [torch.randn(B * n, size) for n in (S, S2, S2)]
    weights = [torch.randn(inner, size) / 3 for _ in range(3)]
    biases = [torch.randn(n) if biased else None for n in (inner, inner, inner, size)]
    tensors = [*inputs, *weights, torch.randn(B, 1, S, S2), torch.randn(size, inner) / 3, *biases]
    leaves = [t if t is None else t.to(device).requires_grad_() for t in tensors]
    sizes = (N, D, S2, S, p, True)
    bits = torch_npu.npu_dropout_gen_mask([B, N, S, S2], p, device=torch.device(device))
    out, mask, *kept = torch_npu.npu_multi_head_attention(*leaves, bits, *sizes)
    grad = torch.randn(out.shape).to(device)
    out.backward(grad)
    plain = [t if t is None else t.detach() for t in leaves]
    found = torch_npu.npu_multi_head_attention_backward(*plain[:6], plain[7], *plain[8:], *kept, grad, mask, *sizes)
    order = [*leaves[3:6], leaves[7], *leaves[:3], *leaves[8:]]
    for actual, leaf in zip(found, order, strict=True):
        if leaf is None:
            assert actual is None
        else:
            assert_close(actual, leaf.grad, terms=400)


Q, K, MASK = torch.zeros(B, N, S, D), torch.zeros(B, N, S2, D), torch.zeros(B, 1, S, S2)
REFUSED = {
    "transposed": (
        NotImplementedError, "transposed", lambda: torch_npu.npu_fused_attention_score(Q, K, K, MASK, 1.0, 1.0, True)
    ),
    "heads": (ValueError, "query", lambda: torch_npu.npu_fused_attention_score(Q, K[:, :1], K, MASK, 1.0, 1.0)),
    "probability": (ValueError, "keep_prob", lambda: torch_npu.npu_fused_attention_score(Q, K, K, MASK, 1.0, 0.0)),
    "rows": (
        ValueError, "grad_output",
        lambda: torch_npu.npu_fused_attention_score_grad(Q, Q @ K.mT, Q, K, K, MASK.byte(), 1.0, 1.0),
    ),
    "length": (
        ValueError, "seq_len",
        lambda: torch_npu.npu_fused_attention_layernorm_qkv_fwd(Q[0, 0], *[Q[0, 0]] * 3, Q[0, 0, 0], Q[0, 0, 0]),
    ),
    "matrices": (ValueError, "matrices", lambda: torch_npu.npu_fused_attention_qkv_grad(*[Q] * 8)),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    error, message, call = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
