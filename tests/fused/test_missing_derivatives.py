"""What has no derivative raises where one is asked for, and never gives zeros."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tolerance import assert_close
from torch import Tensor, nn
from torch.nn import functional as F

import torch_npu
from opspec.npu import npu_ops
from torch_npu.composed import operators

X = torch.randn(3, 2, 8)
HEADS = torch.randn(1, 2, 4, 8)

FUNCTIONS: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {
    "npu_swiglu_backward": (torch_npu.npu_swiglu, [X]),
    "npu_gelu_backward": (lambda x: torch_npu.npu_gelu(x, approximate="none"), [X]),
    "npu_fusion_attention_grad": (
        lambda q, k, v: torch_npu.npu_fusion_attention(q, k, v, 2, "BNSD")[0], [HEADS] * 3
    ),
    "_recurrent_layer_backward": (lambda x: nn.LSTM(8, 4).npu()(x)[0], [X]),
}  # fmt: skip


@pytest.mark.parametrize("operator", FUNCTIONS)
def test_second_derivatives(operator: str) -> None:
    function, tensors = FUNCTIONS[operator]
    leaves = [t.npu().requires_grad_() for t in tensors]
    (first,) = torch.autograd.grad(function(*leaves).square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match=f"derivative for npu::{operator} is not implemented"):
        torch.autograd.grad(first.square().sum(), leaves[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(8,), (2, 8)], ids=str)
def test_second_derivatives_of_rms_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """As those of the composition that PyTorch has on the CPU."""

    def second(*leaves: Tensor) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(F.rms_norm(leaves[0], shape, leaves[1]).pow(3).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), leaves)

    tensors = [torch.randn(3, 2, 8).to(dtype), torch.randn(shape).to(dtype)]
    expected = second(*(t.double().requires_grad_() for t in tensors))
    actual = second(*(t.npu().requires_grad_() for t in tensors))
    allowed = {"rtol": 0.05, "atol": 0.05 * float(expected[0].abs().max())} if dtype == torch.bfloat16 else {}
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, terms=4096, **allowed)


def test_first_derivatives_of_what_has_none() -> None:
    x = torch.randn(2, 8, device="npu", requires_grad=True)
    scale = torch.ones(1, device="npu")
    assert not torch_npu._npu_dropout_gen_mask(x, [4], 0.5, 1, 2).requires_grad
    with pytest.raises(RuntimeError, match="derivative for npu::npu_dynamic_quant is not implemented"):
        (torch_npu.npu_dynamic_quant(x.half())[1] * scale).sum().backward()
    boxes = torch.rand(4, 5, device="npu", requires_grad=True)
    with pytest.raises(RuntimeError, match="derivative for npu::npu_nms_with_mask is not implemented"):
        torch_npu.npu_nms_with_mask(boxes, 0.5)[0].sum().backward()


def test_every_operator_has_a_kernel_for_autograd() -> None:
    """Its own, its parts', or the one that raises."""
    names = [op.full_name for op in npu_ops()] + [op.schema.partition("(")[0] for op in operators if op.is_opaque]
    missing = [
        name
        for name in names
        if not any(
            torch._C._dispatch_has_kernel_for_dispatch_key(f"npu::{name}", key)
            for key in ("Autograd", "CompositeImplicitAutograd")
        )
    ]
    assert missing == []
