"""Each row of the table of fusions, by the operators that run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tolerance import assert_close
from torch import Tensor
from torch.nn import functional as F

import torch_npu

X = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))
W = torch.randn(8, generator=torch.Generator().manual_seed(1))
M = torch.randn(5, 8, generator=torch.Generator().manual_seed(2))

FUSIONS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "aclnnFlashAttentionScoreV2": (lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]), (X,)),
    "aclnnRmsNorm": (lambda x, w: F.rms_norm(x, (8,), w, 1e-5), (X, W)),
    "aclnnLayerNorm": (lambda x, w: F.layer_norm(x, (8,), w, w), (X, W)),
    "aclnnGroupNorm": (lambda x: F.group_norm(x, 3), (X,)),
    "aclnnAddmm": (lambda x, m: F.linear(x, m, m[:, 0]), (X[0], M)),
    "aclnnSoftmax": (lambda x: F.softmax(x, -1), (X,)),
}


@pytest.mark.parametrize("operator", FUSIONS)
def test_one_operator_runs(operator: str) -> None:
    function, arguments = FUSIONS[operator]
    on_npu = [t.npu() for t in arguments]
    torch_npu.clear_native_calls()
    with torch_npu.fallback_policy("error"):
        actual = function(*on_npu)
    assert torch_npu.native_calls().get(operator) == 1
    assert any(operator in f.operator for f in torch_npu.fusion_table())
    assert_close(actual, function(*arguments), terms=16)


@pytest.mark.parametrize("eps", [None, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_rms_norm_and_its_gradients(dtype: torch.dtype, eps: float | None) -> None:
    tensors = [t.to(dtype) for t in (X, W)]
    device = [t.npu().requires_grad_() for t in tensors]
    reference = [t.double().requires_grad_() for t in tensors]
    y = F.rms_norm(device[0], (8,), device[1], eps)
    expected = F.rms_norm(reference[0], (8,), reference[1], torch.finfo(dtype).eps if eps is None else eps)
    assert_close(y, expected, terms=4)
    y.sum().backward()
    expected.sum().backward()
    assert "RmsNorm" not in str(torch_npu.fallback_report())
    for a, b in zip(device, reference, strict=True):
        assert_close(a.grad, b.grad, terms=24, atol=24 * torch.finfo(dtype).eps)


def test_what_does_not_fit_is_composed() -> None:
    torch_npu.clear_native_calls()
    assert_close(F.rms_norm(X.npu(), (8,)), F.rms_norm(X, (8,)))
    assert_close(F.rms_norm(X.double().npu(), (8,), W.double().npu()), F.rms_norm(X.double(), (8,), W.double()))
    assert "aclnnRmsNorm" not in torch_npu.native_calls()


def test_the_table_prints() -> None:
    assert "scaled_dot_product_attention" in str(torch_npu.fusion_table())
