"""Sparse COO and nested tensors on the device; tests/test_sparse.py has the other sparse layouts."""

import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

INDICES = torch.tensor([[0, 2, 2, 1], [1, 0, 0, 3]])  # (2, 0) twice
VALUES = torch.tensor([1.0, -2.0, 3.0, 4.0])


def coo(device: str) -> Tensor:
    return torch.sparse_coo_tensor(INDICES.to(device), VALUES.to(device), (3, 4))


@pytest.mark.parametrize(
    "operation",
    [
        lambda s: s,
        lambda s: s.coalesce(),
        lambda s: s + s,
        lambda s: s * 2,
        lambda s: s.coalesce() * s.coalesce(),
        lambda s: -s,
        lambda s: s.abs(),
        lambda s: s.t(),
        lambda s: s.unsqueeze(0),
        lambda s: s.clone(),
        lambda s: s.index_select(0, torch.tensor([2, 0], device=s.device)),
        lambda s: torch.cat([s, s]),
        lambda s: torch.sparse.sum(s, 0),
        lambda s: torch.sparse.softmax(s, 1),
        lambda s: torch.ones(3, 4, device=s.device).sparse_mask(s.coalesce()),
        lambda s: torch.zeros_like(s),
        lambda s: s.to(torch.float64),
        lambda s: torch.sparse.mm(s, s.t()),
    ],
)
def test_sparse_results(operation: Callable[[Tensor], Tensor]) -> None:
    result, expected = operation(coo("npu")), operation(coo("cpu"))
    assert result.is_sparse
    assert result.device == torch.device("npu:0")
    assert result.is_coalesced() == expected.is_coalesced()
    assert result._nnz() == expected._nnz()
    assert result._indices().device.type == result._values().device.type == "npu"
    torch.testing.assert_close(result.cpu().to_dense(), expected.to_dense())


@pytest.mark.parametrize(
    "operation",
    [
        lambda s: s.to_dense(),
        lambda s: s.sum(),
        lambda s: s @ torch.arange(8.0, device=s.device).view(4, 2),
        lambda s: s.mv(torch.arange(4.0, device=s.device)),
        lambda s: torch.ones(3, 4, device=s.device).add_(s, alpha=2),
        lambda s: torch.addmm(torch.ones(3, 2, device=s.device), s, torch.ones(4, 2, device=s.device)),
        lambda s: s.coalesce().indices(),
        lambda s: s.coalesce().values(),
    ],
)
def test_dense_results(operation: Callable[[Tensor], Tensor]) -> None:
    result = operation(coo("npu"))
    assert result.device == torch.device("npu:0")
    assert not result.is_sparse
    torch.testing.assert_close(result.cpu(), operation(coo("cpu")))


def test_sparse_in_place() -> None:
    for change in (lambda s: s.mul_(3), lambda s: s.add_(coo(s.device.type)), lambda s: s.zero_()):
        sparse, expected = coo("npu"), coo("cpu")
        change(sparse)
        change(expected)
        assert sparse._nnz() == expected._nnz()
        torch.testing.assert_close(sparse.cpu().to_dense(), expected.to_dense())


def test_gradient_of_a_sparse_product() -> None:
    gradients = []
    for device in ("cpu", "npu"):
        dense = torch.arange(8.0).view(4, 2).to(device).requires_grad_()
        sparse = coo(device).coalesce().requires_grad_()
        torch.sparse.mm(sparse, dense).square().sum().backward()
        gradients.append([dense.grad.cpu(), sparse.grad.cpu().to_dense()])
    torch.testing.assert_close(gradients[1], gradients[0])


def test_sparse_tensors_are_saved_and_loaded() -> None:
    buffer = io.BytesIO()
    torch.save(coo("npu"), buffer)
    buffer.seek(0)
    loaded = torch.load(buffer)
    assert loaded.device == torch.device("npu:0")
    torch.testing.assert_close(loaded.to_dense().cpu(), coo("cpu").to_dense())


def test_nested_tensors() -> None:
    parts = [torch.arange(6.0).view(3, 2), torch.ones(1, 2)]
    nested = torch.nested.nested_tensor([p.npu() for p in parts])
    assert nested.is_nested
    assert nested.device == torch.device("npu:0")
    doubled = nested * 2
    for ours, theirs in zip(doubled.unbind(), parts, strict=True):
        assert ours.device.type == "npu"
        torch.testing.assert_close(ours.cpu(), theirs * 2)
    padded = doubled.to_padded_tensor(-1.0)
    assert padded.device.type == "npu"
    torch.testing.assert_close(padded.cpu(), torch.nested.nested_tensor(parts).mul(2).to_padded_tensor(-1.0))
    torch.testing.assert_close(nested.cpu().unbind()[0], parts[0])
    torch.testing.assert_close(torch.nested.nested_tensor(parts).to("npu").unbind()[1].cpu(), parts[1])
    weight = torch.ones(3, 2, device="npu")
    torch.testing.assert_close(
        torch.nn.functional.linear(nested, weight).unbind()[0].cpu(), parts[0] @ torch.ones(2, 3)
    )
