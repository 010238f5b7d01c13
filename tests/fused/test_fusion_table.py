"""Each row of the table of fusions, by the operators that run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tolerance import assert_close
from torch import Tensor, nn
from torch.nn import functional as F

import torch_npu

X = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))
W = torch.randn(8, generator=torch.Generator().manual_seed(1))
M = torch.randn(5, 8, generator=torch.Generator().manual_seed(2))


def optimizer_step(kind: type[torch.optim.Optimizer], **options: Any) -> None:
    parameters = [torch.ones(3, 5).npu().requires_grad_() for _ in range(2)]
    for p in parameters:
        p.grad = torch.ones_like(p)
    kind(parameters, fused=True, **options).step()


def backward(function: Callable[..., Tensor], *tensors: Tensor) -> None:
    """The function of leaves on the device, and its gradient."""
    function(*(t.npu().requires_grad_() for t in tensors)).sum().backward()


IMAGE, GAIN = X.view(1, 4, 6, 8), torch.ones(4)

# What each row's function does, and the operators that it must call.
ROWS: dict[str, tuple[Callable[[], object], set[str]]] = {
    "F.scaled_dot_product_attention": (
        lambda: backward(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), IMAGE),
        {"aclnnFlashAttentionScoreV2", "aclnnFlashAttentionScoreGradV2"},
    ),
    "F.rms_norm, nn.RMSNorm": (
        lambda: backward(lambda x, w: F.rms_norm(x, (8,), w), X, W), {"aclnnRmsNorm", "aclnnRmsNormGrad"}
    ),
    "nn.LSTM, nn.GRU, nn.RNN": (
        lambda: [layer(8, 3).npu()(X.npu())[0].sum().backward() for layer in (nn.LSTM, nn.GRU, nn.RNN)],
        {"aclnnRecurrentLayer", "aclnnRecurrentLayerBackward"},
    ),
    "F.layer_norm, nn.LayerNorm": (
        lambda: backward(lambda x, w: F.layer_norm(x, (8,), w, w), X, W), {"aclnnLayerNorm", "aclnnLayerNormBackward"}
    ),
    "F.group_norm, nn.GroupNorm": (
        lambda: backward(lambda x, w: F.group_norm(x, 2, w, w), IMAGE, GAIN),
        {"aclnnGroupNorm", "aclnnGroupNormBackward"},
    ),
    "F.batch_norm, nn.BatchNorm*": (
        lambda: backward(lambda x, w: F.batch_norm(x, None, None, w, w, training=True), IMAGE, GAIN),
        {"aclnnBatchNorm", "aclnnBatchNormBackward"},
    ),
    "F.linear with a bias": (lambda: F.linear(X[0].npu(), M.npu(), M[:, 0].npu()), {"aclnnAddmm"}),
    "F.softmax, F.log_softmax": (
        lambda: (F.softmax(X.npu(), -1), F.log_softmax(X.npu(), -1)), {"aclnnSoftmax", "aclnnLogSoftmax"}
    ),
    "F.cross_entropy": (
        lambda: F.cross_entropy(M.npu(), torch.arange(5).npu()), {"aclnnLogSoftmax", "aclnnNLLLoss"}
    ),
    "torch.optim.Adam, AdamW (fused=True)": (
        lambda: (optimizer_step(torch.optim.Adam), optimizer_step(torch.optim.AdamW)), {"aclnnApplyAdamWV2"}
    ),
    "torch.optim.SGD (fused=True)": (
        lambda: optimizer_step(torch.optim.SGD, lr=0.1, momentum=0.9), {"aclnnFusedSgd"}
    ),
    "foreach operators (torch._foreach_*)": (
        lambda: torch._foreach_addcmul_([X.npu()], [X.npu()], [X.npu()], 2.0), {"aclnnForeachAddcmulScalarV2"}
    ),
}  # fmt: skip


def test_every_row_is_tested() -> None:
    assert set(ROWS) == {f.function for f in torch_npu.fusion_table()}


@pytest.mark.parametrize("function", ROWS)
def test_a_row_runs_the_operators_that_it_names(function: str) -> None:
    run, operators = ROWS[function]
    (row,) = [f for f in torch_npu.fusion_table() if f.function == function]
    torch_npu.clear_native_calls()
    with torch_npu.fallback_policy("error"):
        run()
    assert operators <= set(torch_npu.native_calls())
    for operator in operators - {o for o in operators if o.endswith(("Grad", "GradV2", "Backward"))}:
        assert operator in row.operator or (row.operator.endswith("*") and operator.startswith(row.operator[:-1]))


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


ATTENTION: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "dimensions": (lambda x: F.scaled_dot_product_attention(x[0], x[0], x[0]), "must have 4 dimensions"),
    "dtype": (lambda x: F.scaled_dot_product_attention(*[x.double()] * 3), "float16, bfloat16 or float32"),
    "dropout": (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), "dropout_p must be 0"),
    "sizes": (lambda x: F.scaled_dot_product_attention(x, x, x[..., :4].contiguous()), "heads of one size"),
    "batches": (lambda x: F.scaled_dot_product_attention(x.expand(2, -1, -1, -1), x, x), "batches must be equal"),
    "mask": (
        lambda x: F.scaled_dot_product_attention(x, x, x, torch.zeros(6, 6).npu().requires_grad_()),
        "attn_mask must not need a gradient",
    ),
}


@pytest.mark.parametrize("case", ATTENTION)
def test_attention_that_is_composed_leaves_its_reason(case: str) -> None:
    function, reason = ATTENTION[case]
    torch_npu.clear_unfused_report()
    function(IMAGE.npu())
    function(IMAGE.npu())
    (call,) = torch_npu.unfused_report()
    assert (call.function, call.calls) == ("scaled_dot_product_attention", 2)
    assert reason in call.reason
    assert "test_fusion_table.py" in call.first_line
    assert reason in " ".join(str(torch_npu.unfused_report()).replace("│", " ").split())
    torch_npu.clear_unfused_report()


def test_what_is_fused_leaves_no_reason() -> None:
    torch_npu.clear_unfused_report()
    x = IMAGE.npu()
    F.scaled_dot_product_attention(x, x[:, :2], x[:, :2], enable_gqa=True)
    F.rms_norm(x, (8,), W.npu())
    assert torch_npu.unfused_report() == []
    assert str(torch_npu.unfused_report()) == "every call was fused\n"
    F.rms_norm(x, (8,))
    assert [c.reason for c in torch_npu.unfused_report()] == ["weight must be given"]


def test_the_table_prints() -> None:
    assert "scaled_dot_product_attention" in str(torch_npu.fusion_table())
