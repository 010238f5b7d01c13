"""Writing and reading by indices (torch_npu/composed/scatter.py)."""

from __future__ import annotations

import pytest
import torch

import torch_npu

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.int64], ids=str)


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randint(-9, 9, shape).to(dtype)


@DEVICES
@DTYPES
@pytest.mark.parametrize(("shape", "block", "axis"), [
    ((3, 5, 4), (3, 2, 4), -2), ((3, 5, 4), (2, 5, 1), 2), ((3, 2, 6, 4), (3, 2, 1, 4), -2), ((4, 7), (4, 3), 1),
])  # fmt: skip
def test_blocks(device, dtype, shape, block, axis):
    data, updates = numbers(dtype, *shape), numbers(dtype, *block)
    indices = torch.randint(0, shape[axis] - block[axis] + 1, (block[0],), dtype=torch.int32)
    expected = data.clone()
    for b, start in enumerate(indices.tolist()):
        expected[b].narrow(axis if axis < 0 else axis - 1, start, block[axis]).copy_(updates[b])
    x = data.to(device, copy=True)
    y = torch_npu.scatter_update(x, indices.to(device), updates.to(device), axis)
    assert torch.equal(y.cpu(), expected)
    assert torch.equal(x.cpu(), data)
    assert torch_npu.scatter_update_(x, indices.to(device), updates.to(device), axis) is x
    assert torch.equal(x.cpu(), expected)


@DEVICES
@DTYPES
@pytest.mark.parametrize(("count", "points"), [(1, (2,)), (2, (3,)), (3, (2, 2)), (1, (0,))])
def test_points(device, dtype, count, points):
    data = numbers(dtype, 3, 4, 5)
    total = int(torch.tensor(data.shape[:count]).prod())
    flat = torch.randperm(total)[: int(torch.tensor(points).prod())]
    indices = torch.stack(torch.unravel_index(flat, data.shape[:count]), -1).view(*points, count)
    updates = numbers(dtype, *points, *data.shape[count:])
    expected = data.clone()
    for place, value in zip(indices.view(-1, count).tolist(), updates.flatten(0, len(points) - 1), strict=True):
        expected[tuple(place)] = value
    x = data.to(device, copy=True)
    y = torch_npu.npu_scatter_nd_update(x, indices.int().to(device), updates.to(device))
    assert torch.equal(y.cpu(), expected)
    assert torch.equal(x.cpu(), data)
    assert torch_npu.npu_scatter_nd_update_(x, indices.to(device), updates.to(device)) is x
    assert torch.equal(x.cpu(), expected)


@DEVICES
@pytest.mark.parametrize("axis", [-2, -1, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_lists(device, axis, masked):
    data, length = [torch.randn(2, 6, 5) for _ in range(3)], 2
    block = [3, 2, 6, 5]
    block[axis] = length
    updates, indices = torch.randn(block), torch.tensor([0, 3, 1])
    mask = torch.tensor([1, 0, 1], dtype=torch.uint8) if masked else None
    place = (axis if axis > 0 else axis + 4) - 1
    expected = [t.clone() for t in data]
    for i, t in enumerate(expected):
        if mask is None or mask[i]:
            t.narrow(place, int(indices[i]), length).copy_(updates[i])
    x = [t.to(device, copy=True) for t in data]
    given = (indices.to(device), updates.to(device), None if mask is None else mask.to(device))
    y = torch_npu.npu_scatter_list(x, *given, "update", axis)
    assert all(torch.equal(a.cpu(), e) for a, e in zip(y, expected, strict=True))
    assert all(torch.equal(a.cpu(), d) for a, d in zip(x, data, strict=True))
    assert torch_npu.npu_scatter_list_(x, *given, "update", axis) is None
    assert all(torch.equal(a.cpu(), e) for a, e in zip(x, expected, strict=True))


@DEVICES
@DTYPES
@pytest.mark.parametrize("shape", [(4,), (2, 3), (0,)])
def test_rows(device, dtype, shape):
    table, index = numbers(dtype, 5, 3), torch.randint(0, 5, shape)
    y = torch_npu.npu_gather_sparse_index(table.to(device), index.int().to(device))
    assert torch.equal(y.cpu(), table[index])
    assert y.shape == (*shape, 3)


@DEVICES
def test_gradient_of_rows(device):
    table, index = torch.randn(5, 3, dtype=torch.float64, requires_grad=True), torch.tensor([[1, 4], [1, 1]])
    grad = torch.randn(2, 2, 3, dtype=torch.float64)
    table[index].backward(grad)
    actual = torch_npu.npu_gather_sparse_index_backward(grad.to(device), [5, 3], index.to(device))
    torch.testing.assert_close(actual.cpu(), table.grad)
    leaf = table.detach().to(device).requires_grad_()
    torch_npu.npu_gather_sparse_index(leaf, index.to(device)).backward(grad.to(device))
    torch.testing.assert_close(leaf.grad.cpu(), table.grad)


@DEVICES
def test_sums(device):
    x, index, source = torch.randn(4, 3), torch.tensor([2, 0, 2]), torch.randn(3, 3)
    expected = x.index_add(0, index, source, alpha=2)
    target = x.to(device, copy=True)
    y = torch_npu._npu_index_add(target, index.to(device), source.to(device), alpha=2)
    torch.testing.assert_close(y.cpu(), expected)
    assert torch_npu._npu_index_add_(target, index.to(device), source.to(device), alpha=2) is target
    torch.testing.assert_close(target.cpu(), expected)


X, START = torch.zeros(3, 4, 5), torch.zeros(3, dtype=torch.int64)
REFUSED = {
    "axis": (lambda: torch_npu.scatter_update(X, START, X, 0), "axis, which is not the first"),
    "shape": (lambda: torch_npu.scatter_update_(X, START, X[:, :, :2], 1), "first dimension and along axis"),
    "long": (lambda: torch_npu.scatter_update(X[:, :2], START, X, 1), "first dimension and along axis"),
    "indices": (lambda: torch_npu.scatter_update(X, START[:2], X, 1), r"indices of shape \[3\], got \[2\]"),
    "points": (lambda: torch_npu.npu_scatter_nd_update(X, START[:, None], X[:2]), r"indices \[..., k\]"),
    "too many": (
        lambda: torch_npu.npu_scatter_nd_update_(X, START.new_zeros(2, 4), X[0, 0, :2]),
        r"indices \[..., k\]",
    ),
    "reduce": (lambda: torch_npu.npu_scatter_list([X], START[:1], X[None], None, "add"), "reduce 'update', got add"),
    "list": (lambda: torch_npu.npu_scatter_list([X, X], START[:1], X[None]), r"updates \[2, ...\]"),
    "mask": (lambda: torch_npu.npu_scatter_list_([X], START[:1], X[None], START), r"mask of shape \[1\]"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()
