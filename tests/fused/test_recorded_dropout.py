"""Dropout of attention that is traced or recorded: forward and backward drop the same, each replay something else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tolerance import assert_close
from torch import Tensor, nn

import torch_npu

HEADS, SIZE = 4, 16
Call = Callable[[Tensor, Tensor, Tensor], Tensor]


def inputs(layout: str) -> list[Tensor]:
    shapes = {
        "BNSD": (2, HEADS, 40, SIZE), "BSND": (2, 40, HEADS, SIZE), "BSH": (2, 40, HEADS * SIZE),
        "SBH": (40, 2, HEADS * SIZE), "TND": (40, HEADS, SIZE),
    }  # fmt: skip
    return [torch.randn(shapes[layout], device="npu", requires_grad=True) for _ in range(3)]


def attention(operator: str, layout: str) -> Call:
    lengths = [15, 40] if layout == "TND" else None
    if operator == "npu_fusion_attention_v3" and lengths is not None:
        lengths = torch.tensor(lengths)
    options = {"actual_seq_qlen": lengths, "actual_seq_kvlen": lengths, "scale": SIZE**-0.5, "keep_prob": 0.6}
    return lambda q, k, v: getattr(torch_npu, operator)(q, k, v, HEADS, layout, **options)[0]


class Attention(nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.call(q, k, v)


def assert_consistent(call: Call, qkv: list[Tensor]) -> list[float]:
    """The result is linear in v: its gradient, along v, is the result. Returns a number of each call's mask."""
    seen = []
    for _ in range(4):
        result = call(*qkv)
        direction = torch.randn_like(result)
        dq, _, dv = torch.autograd.grad(result, qkv, direction)
        assert_close((dv * qkv[2]).sum(), (result * direction).sum(), terms=4096)
        assert bool(dq.isfinite().all())
        seen.append(result.sum().item())
    return seen


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH", "TND"])
@pytest.mark.parametrize("operator", ["npu_fusion_attention", "npu_fusion_attention_v2", "npu_fusion_attention_v3"])
@pytest.mark.parametrize("way", ["eager", "compiled", "enable_graph"])
def test_forward_and_backward_drop_the_same(way: str, operator: str, layout: str) -> None:
    call, qkv = attention(operator, layout), inputs(layout)
    if way == "compiled":
        torch._dynamo.reset()
        call = torch.compile(call, backend="npu")
    if way == "enable_graph":
        with torch_npu.enable_graph():
            seen = assert_consistent(Attention(call), qkv)
    else:
        seen = assert_consistent(call, qkv)
    assert len(set(seen)) == 4


def test_a_capture_of_forward_and_backward() -> None:
    qkv = inputs("BNSD")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = attention("npu_fusion_attention", "BNSD")(*qkv)
        (dv,) = torch.autograd.grad(result.sum(), qkv[2])
    seen = set()
    for _ in range(3):
        graph.replay()
        assert_close((dv * qkv[2]).sum(), result.sum(), terms=4096)
        seen.add(result.sum().item())
    assert len(seen) == 3


def test_inference_mode_in_a_capture() -> None:
    graph, results = torch.npu.NPUGraph(), set()
    with torch.inference_mode():
        qkv = inputs("BNSD")
        with torch.npu.graph(graph):
            result = attention("npu_fusion_attention", "BNSD")(*qkv)
        for _ in range(3):
            graph.replay()
            results.add(result.sum().item())
    assert len(results) == 3


def test_dynamic_sizes() -> None:
    torch._dynamo.reset()
    call = torch.compile(attention("npu_fusion_attention", "BSH"), backend="npu", dynamic=True, fullgraph=True)
    for length in (40, 33, 7):
        qkv = [torch.randn(2, length, HEADS * SIZE, device="npu", requires_grad=True) for _ in range(3)]
        assert_consistent(call, qkv)


def test_a_given_mask_is_the_gradient_s_too() -> None:
    """Without the seed and offset that it was made from."""
    qkv = inputs("BNSD")
    mask = torch.randint(0, 256, (2 * HEADS * 40 * 40 // 8,), dtype=torch.uint8, device="npu")

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        options = {"scale": SIZE**-0.5, "keep_prob": 0.5, "dropout_mask": mask}
        return torch_npu.npu_fusion_attention(q, k, v, HEADS, "BNSD", **options)[0]

    assert len(set(assert_consistent(call, qkv))) == 1


def test_the_state_is_what_the_generator_gives() -> None:
    """v3 drops what npu_fusion_attention drops, and its tensors are what the gradient by hand takes."""
    qkv = inputs("BNSD")
    torch.manual_seed(5)
    expected = attention("npu_fusion_attention", "BNSD")(*qkv)
    torch.manual_seed(5)
    result, largest, total, _, seed, offset = torch_npu.npu_fusion_attention_v3(
        *qkv, HEADS, "BNSD", scale=SIZE**-0.5, keep_prob=0.6
    )
    assert torch.equal(result, expected)
    direction = torch.randn_like(result)
    by_hand = torch_npu.npu_fusion_attention_grad_v3(
        *(t.detach() for t in qkv), direction, HEADS, "BNSD", softmax_max=largest, softmax_sum=total,
        attention_in=result.detach(), scale_value=SIZE**-0.5, keep_prob=0.6, seed=seed, offset=offset,
    )  # fmt: skip
    for gradient, other in zip(torch.autograd.grad(result, qkv, direction), by_hand, strict=False):
        assert_close(gradient, other)
