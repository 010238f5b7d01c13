"""Attention over pairs (torch_npu/composed/floyd_attention.py), by its definition in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
B, H, N, M, K, D = 2, 3, 4, 5, 7, 6
SHAPES = [(B, H, N, M, D), (B, H, N, K, D), (B, H, N, K, D), (B, H, K, M, D), (B, H, K, M, D)]


def reference(q: Tensor, k1: Tensor, v1: Tensor, k2: Tensor, v2: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    """Query by query; one for which nothing counts has 0."""
    out, largest, total = torch.zeros_like(q), torch.full(q.shape[:-1], -torch.inf), torch.zeros(q.shape[:-1])
    for b in range(B):
        for n in range(N):
            seen = torch.ones(K).bool() if mask is None else ~mask[b, 0, n, 0].bool()
            for m in range(M if seen.any() else 0):
                scores = 0.3 * ((k1[b, :, n] + k2[b, :, :, m]) @ q[b, :, n, m].unsqueeze(-1)).squeeze(-1)[:, seen]
                weights = scores.softmax(-1).unsqueeze(-1)
                out[b, :, n, m] = (weights * (v1[b, :, n] + v2[b, :, :, m])[:, seen]).sum(1)
                largest[b, :, n, m] = scores.detach().amax(-1).float()
                total[b, :, n, m] = (scores.detach() - scores.detach().amax(-1, keepdim=True)).exp().sum(-1).float()
    return largest, total, out


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", [None, torch.bool, torch.uint8], ids=str)
def test_attention_and_gradients(device, dtype, kind):
    inputs = [torch.randn(shape).to(dtype) for shape in SHAPES]
    mask = None
    if kind is not None:
        mask = torch.rand(B, 1, N, 1, K) < 0.4
        mask[0, 0, 1] = True
        mask = mask.to(kind)
    wide = [t.double().requires_grad_() for t in inputs]
    largest, total, expected = reference(*wide, mask)
    leaves = [t.to(device).requires_grad_() for t in inputs]
    options = {"atten_mask": None if mask is None else mask.to(device), "scale_value": 0.3}
    maxima, sums, out = torch_npu.npu_fused_floyd_attention(*leaves, **options)
    assert out.dtype == dtype
    assert_close(out, expected, terms=16)
    assert_close(maxima, largest.unsqueeze(-1).expand(-1, -1, -1, -1, 8).double(), terms=16)
    assert_close(sums, total.unsqueeze(-1).expand(-1, -1, -1, -1, 8).double(), terms=16)
    grad = torch.randn(out.shape).to(dtype)
    expected.backward(grad.double())
    out.backward(grad.to(device))
    found = torch_npu.npu_fused_floyd_attention_backward(
        grad.to(device), *(t.detach() for t in leaves), out.detach(), maxima, sums, **options
    )
    # The explicit gradient reads an output that is rounded to the dtype.
    for leaf, explicit, one in zip(leaves, found, wide, strict=True):
        assert_close(leaf.grad, one.grad, terms=32, atol=torch.finfo(dtype).eps * 16)
        assert_close(explicit, one.grad, terms=32, atol=torch.finfo(dtype).eps * 16)


def test_refusals():
    inputs = [torch.zeros(shape) for shape in SHAPES]
    with pytest.raises(ValueError, match="key_jk"):
        torch_npu.npu_fused_floyd_attention(*inputs[:3], inputs[1], inputs[1])
    with pytest.raises(ValueError, match="atten_mask"):
        torch_npu.npu_fused_floyd_attention(*inputs, atten_mask=torch.zeros(B, 1, N, 1, K))
    maxima = torch.zeros(B, H, N, M)
    with pytest.raises(ValueError, match="softmax_max"):
        torch_npu.npu_fused_floyd_attention_backward(inputs[0], *inputs, inputs[0], maxima, maxima)
