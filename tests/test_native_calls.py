"""Counting the calls of aclnn operators."""

import torch

import torch_npu


def test_calls_are_counted_by_operator() -> None:
    x = torch.ones(3, device="npu")
    torch_npu.clear_native_calls()
    assert torch_npu.native_calls() == {}
    for _ in range(3):
        x + x
    torch.relu(x)
    assert torch_npu.native_calls() == {"aclnnAdd": 3, "aclnnRelu": 1}


def test_views_and_fallbacks_are_not_counted() -> None:
    x = torch.ones(3, dtype=torch.float64, device="npu")
    torch_npu.clear_native_calls()
    torch_npu.clear_fallback_report()
    x.view(3, 1)
    torch.special.bessel_j0(x)
    assert torch_npu.native_calls() == {}
    assert [entry.op for entry in torch_npu.fallback_report()] == ["aten::special_bessel_j0"]


def test_backward_is_counted_on_its_own_thread() -> None:
    x = torch.ones(3, device="npu", requires_grad=True)
    loss = (x * x).sum()
    torch_npu.clear_native_calls()
    loss.backward()
    assert sum(torch_npu.native_calls().values()) > 0
