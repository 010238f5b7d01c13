"""Sorting, extremes and choice (torch_npu/composed/sorting.py)."""

import numpy as np
import pytest
import torch

import torch_npu

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int32])
@pytest.mark.parametrize(("dim", "descending"), [(-1, False), (0, True), (1, False)])
def test_sort(device, dtype, dim, descending):
    x = (torch.randn(3, 5, 7) * 100).to(dtype)
    expected = np.sort(x.numpy(), axis=dim)
    expected = np.flip(expected, dim) if descending else expected
    y = torch_npu.npu_sort_v2(x.to(device), dim, descending)
    assert np.array_equal(y.cpu().numpy(), expected)
    out = torch.empty_like(x, device=device)
    assert torch_npu.npu_sort_v2(x.to(device), dim, descending, out=out) is out
    assert torch.equal(out, y)


@DEVICES
@pytest.mark.parametrize(("function", "largest"), [(torch_npu.npu_max, True), (torch_npu.npu_min, False)])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [0, -2])
def test_extremes(device, function, largest, keepdim, dim):
    x = torch.randn(3, 5, 7, dtype=torch.float64)
    values, indices = function(x.to(device), dim, keepdim)
    sign = 1 if largest else -1
    expected = sign * (sign * x.numpy()).max(dim, keepdims=keepdim)
    assert np.array_equal(values.cpu().numpy(), expected)
    assert indices.dtype == torch.int32
    assert np.array_equal(indices.cpu().numpy(), (sign * x.numpy()).argmax(dim, keepdims=keepdim))

    x = x.to(device).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: function(x, dim, keepdim)[0], (x,))
    values, indices = function(x, dim, keepdim)
    grad = torch.randn_like(values)
    values.backward(grad)
    backward = torch_npu.npu_max_backward if largest else torch_npu.npu_min_backward
    assert torch.equal(x.grad, backward(grad, dim, indices, x.shape, keepdim))


@DEVICES
@pytest.mark.parametrize("shape", [(101,), (7, 11), (2, 3, 0), (3, 1, 5, 2)])
@pytest.mark.parametrize("count", [1, 9, 300])
@pytest.mark.parametrize("seed", [0, 5])
def test_random_choice(device, shape, count, seed):
    x = torch.rand(shape) < 0.6
    indices, mask = torch_npu.npu_random_choice_with_mask(x.to(device), count, seed)
    indices, mask = indices.cpu(), mask.cpu()
    there = min(count, int(x.sum()))
    assert indices.dtype == torch.int32
    assert indices.shape == (count, x.dim())
    assert mask.tolist() == [True] * there + [False] * (count - there)
    assert (indices[there:] == 0).all()
    chosen = [tuple(index) for index in indices[:there].tolist()]
    assert len(set(chosen)) == there
    assert sorted(chosen) == chosen
    assert all(x[index] for index in chosen)


@DEVICES
def test_each_element_is_chosen_as_often(device):
    x = torch.tensor([True] * 20 + [False] * 10, device=device)
    torch.manual_seed(3)
    times = torch.zeros(30)
    for _ in range(200):
        indices, _ = torch_npu.npu_random_choice_with_mask(x, 5)
        times[indices.flatten().long().cpu()] += 1
    assert (times[20:] == 0).all()
    # Each is chosen 50 times on average, with a standard deviation of about 6.
    assert times[:20].min() > 20
    assert times[:20].max() < 80
    same = [torch_npu.npu_random_choice_with_mask(x, 5, 1, 2)[0] for _ in range(2)]
    assert torch.equal(*same)


def test_refusals():
    with pytest.raises(TypeError, match=r"expected bool, got torch\.float32"):
        torch_npu.npu_random_choice_with_mask(torch.zeros(3))
    with pytest.raises(ValueError, match=r"a positive count, got \[1, 0\]"):
        torch_npu.npu_random_choice_with_mask(torch.zeros(3, dtype=torch.bool), 0)
    with pytest.raises(ValueError, match=r"out of shape \[3\], got \[2\]"):
        torch_npu.npu_sort_v2(torch.zeros(3), out=torch.zeros(2))
