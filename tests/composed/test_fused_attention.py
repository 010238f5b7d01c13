"""Fused attention with tensors for lengths and random state (torch_npu/composed/fused_attention.py)."""

from __future__ import annotations

import pytest
import torch

import torch_npu


@pytest.mark.parametrize("layout", ["BNSD", "TND"])
@pytest.mark.parametrize(("keep_prob", "with_sink"), [(1.0, False), (1.0, True), (0.7, False)])
def test_equals_the_form_with_lists(layout, keep_prob, with_sink):
    shape = (2, 4, 5, 16) if layout == "BNSD" else (9, 4, 16)
    leaves = [torch.randn(shape).npu().requires_grad_() for _ in range(3)]
    others = [t.detach().clone().requires_grad_() for t in leaves]
    options = {"scale": 0.3, "keep_prob": keep_prob, "sink": torch.randn(4).npu() if with_sink else None}
    ends = [4, 9]
    lists = {} if layout == "BNSD" else {"actual_seq_qlen": ends, "actual_seq_kvlen": ends}
    tensors = {name: torch.tensor(value).npu() for name, value in lists.items()}
    torch.npu.manual_seed(3)
    *expected, seed, offset, _ = torch_npu.npu_fusion_attention(*leaves, 4, layout, **options, **lists)
    torch.npu.manual_seed(3)
    *actual, seed_tensor, offset_tensor = torch_npu.npu_fusion_attention_v3(*others, 4, layout, **options, **tensors)
    assert (seed_tensor.tolist(), offset_tensor.tolist()) == ([seed], [offset])
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    grad = torch.randn(shape).npu()
    expected[0].backward(grad)
    actual[0].backward(grad)
    explicit = torch_npu.npu_fusion_attention_grad_v3(
        *(t.detach() for t in others), grad, 4, layout, softmax_max=actual[1].detach(), softmax_sum=actual[2].detach(),
        attention_in=actual[0].detach(), scale_value=0.3, keep_prob=keep_prob, seed=seed_tensor, offset=offset_tensor,
        sink=options["sink"], **tensors,
    )  # fmt: skip
    for leaf, other, gradient in zip(leaves, others, explicit[:3], strict=True):
        assert torch.equal(other.grad, leaf.grad)
        torch.testing.assert_close(gradient, leaf.grad)


def test_gradient_of_dropout_needs_its_state():
    x = torch.zeros(1, 1, 2, 16).npu()
    with pytest.raises(ValueError, match="seed and offset"):
        torch_npu.npu_fusion_attention_grad_v3(x, x, x, x, 1, "BNSD", keep_prob=0.5)
