"""What every operator of torch_npu/composed has by its registration: a page, graphs, compilation."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_npu
from opspec import composed_page
from torch_npu.composed import operators


def test_page_is_up_to_date():
    assert composed_page.PAGE.read_text() == composed_page.page(), "run python -m opspec.composed_page"


@pytest.mark.parametrize("operator", operators, ids=lambda op: op.schema.partition("(")[0])
def test_is_documented_and_exported(operator):
    assert operator.meaning.endswith(".")
    name, _, overload = operator.schema.partition("(")[0].partition(".")
    assert hasattr(torch_npu, name)
    assert getattr(torch.ops.npu, name).overloads() == [overload or "default"] or overload in ("", "dim", "out")


def loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    y = torch_npu.npu_softmax_cross_entropy_with_logits(torch_npu.npu_pad(x, [1, 0]), labels)
    return y * torch_npu.npu_max(x, 0)[0].sum()


@pytest.mark.slow
def test_is_compiled_with_its_gradient():
    x = torch.randn(4, 6, device="npu", requires_grad=True)
    labels = torch.rand(5, 6, device="npu")
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    expected = torch.autograd.grad(loss(x, labels).sum(), x)
    actual = torch.autograd.grad(compiled(x, labels).sum(), x)
    torch.testing.assert_close(actual, expected)


def test_is_captured():
    x, labels = torch.randn(4, 6, device="npu"), torch.rand(5, 6, device="npu")
    boxes = torch.rand(3, 4, device="npu") + torch.tensor([0, 0, 1, 1], device="npu")
    graph = torch.npu.NPUGraph()
    loss(x, labels)
    torch_npu._npu_dropout(x, 0.5)
    torch.npu.synchronize()
    with torch.npu.graph(graph):
        y = loss(x, labels)
        dropped, mask = torch_npu._npu_dropout(x, 0.5)
        bits = torch_npu.npu_sign_bits_pack(x.flatten(), 1)
        flags = torch_npu.npu_anchor_response_flags(boxes, [4, 4], [1, 1], 2)
    x.copy_(torch.randn(4, 6))
    graph.replay()
    assert torch.equal(y, loss(x, labels))
    assert torch.equal(dropped, torch_npu.npu_dropout_do_mask(x, mask, 0.5)[0])
    assert torch.equal(bits, torch_npu.npu_sign_bits_pack(x.flatten(), 1))
    assert torch.equal(flags, torch_npu.npu_anchor_response_flags(boxes, [4, 4], [1, 1], 2))


def test_opaque_operators_have_shapes_in_traces():
    with FakeTensorMode():
        indices, mask = torch_npu.npu_random_choice_with_mask(torch.zeros(3, 5, device="npu", dtype=torch.bool), 7)
    assert (indices.shape, indices.dtype) == ((7, 2), torch.int32)
    assert (mask.shape, mask.dtype) == ((7,), torch.bool)
