"""Padding, slicing, filling and packing (torch_npu/composed/shapes.py) against NumPy."""

import itertools

import numpy as np
import pytest
import torch

import torch_npu

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])


@DEVICES
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("place", [-1, 0, 1])
def test_one_hot(device, dtype, place):
    classes = torch.tensor([[5, 3, 2], [1, 0, 7]], dtype=dtype)
    y = torch_npu.npu_one_hot(classes.to(device), place, 6, 2, -1)
    expected = np.where(classes.numpy()[..., None] == np.arange(6), 2.0, -1.0)
    assert y.dtype == torch.float32
    assert np.array_equal(y.cpu().numpy(), np.moveaxis(expected, -1, place))


@DEVICES
@pytest.mark.parametrize("paddings", [[], [1, 2], [0, 1, 3, 0], [1, 0, 0, 2, 3, 1]])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8])
def test_pad(device, paddings, dtype):
    x = torch.arange(1, 31).reshape(2, 3, 5).to(dtype)
    pairs = [tuple(paddings[i : i + 2]) for i in range(0, len(paddings), 2)]
    pairs += [(0, 0)] * (3 - len(pairs))
    y = torch_npu.npu_pad(x.to(device), paddings)
    assert y.dtype == dtype
    assert np.array_equal(y.cpu().numpy(), np.pad(x.numpy(), pairs))


# begin, end, strides, masks; and what Python writes for it.
SLICES = {
    "plain": (([0, 1], [2, 5], [1, 2]), {}, np.s_[0:2, 1:5:2]),
    "fewer than dimensions": (([1], [3], [1]), {}, np.s_[1:3]),
    "negative": (([-1, -2], [-4, -5], [-1, -2]), {}, np.s_[-1:-4:-1, -2:-5:-2]),
    "empty": (([2, 0], [1, 5], [1, 1]), {}, np.s_[2:1]),
    "empty backwards": (([0, 0], [2, 5], [-1, 1]), {}, np.s_[0:2:-1]),
    "open": (([9, 1], [9, 3], [1, -1]), {"begin_mask": 3, "end_mask": 3}, np.s_[:, ::-1]),
    "ellipsis": (([0, 1], [0, 3], [1, 1]), {"ellipsis_mask": 1}, np.s_[..., 1:3]),
    "new axis": (([0, 0, 1], [0, 2, 4], [1, 1, 1]), {"new_axis_mask": 1}, np.s_[None, 0:2, 1:4]),
    "shrink": (([1, -1], [2, 0], [1, 1]), {"shrink_axis_mask": 2}, np.s_[1:2, -1]),
    "all": (
        ([0, 0, 0, -2], [0, 0, 0, 0], [1, 1, 1, -1]),
        {"ellipsis_mask": 4, "new_axis_mask": 2, "shrink_axis_mask": 1, "end_mask": 8},
        np.s_[0, None, ..., -2::-1],
    ),
}


@DEVICES
@pytest.mark.parametrize("case", SLICES)
def test_indexing(device, case):
    bounds, masks, expression = SLICES[case]
    x = torch.arange(60).reshape(3, 5, 4).to(device)
    expected = x.cpu().numpy()[expression]
    y = torch_npu.npu_indexing(x, *bounds, **masks)
    assert np.array_equal(y.cpu().numpy(), expected)
    assert y.shape == expected.shape
    y.zero_()  # a copy
    assert x.sum() == 59 * 30
    out = torch.empty(expected.shape, dtype=x.dtype, device=device)
    assert torch_npu.npu_indexing(x, *bounds, **masks, out=out) is out
    assert np.array_equal(out.cpu().numpy(), expected)


@DEVICES
def test_indexing_passes_gradients(device):
    x = torch.randn(3, 4, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: torch_npu.npu_indexing(x, [2, 0], [0, 3], [-1, 2]), (x,))


@DEVICES
@pytest.mark.parametrize(("offset1", "offset2", "c1_len"), [(0, 0, 1), (1, 0, 2), (2, 3, 1)])
def test_stride_add(device, offset1, offset2, c1_len):
    x, y = torch.randn(2, 37, 3, 2), torch.randn(2, 20, 3, 2)
    expected = np.zeros((2, 16 * c1_len, 3, 2))
    for channel in range(16 * c1_len):
        for tensor, offset in ((x, offset1), (y, offset2)):
            if channel + 16 * offset < tensor.shape[1]:
                expected[:, channel] += tensor[:, channel + 16 * offset].numpy()
    actual = torch_npu.npu_stride_add(x.to(device), y.to(device), offset1, offset2, c1_len)
    np.testing.assert_allclose(actual.cpu().numpy(), expected, rtol=1e-6, atol=1e-7)


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.int8])
@pytest.mark.parametrize(("shape", "axis"), [([9], 0), ([5, 9], 0), ([5, 9], -1), ([4, 3, 9], 1), ([4, 3, 9], 2)])
def test_masked_fill_range(device, dtype, shape, axis):
    x = torch.arange(int(np.prod(shape))).reshape(shape).to(dtype)
    start = torch.tensor([[0, 2, 1], [1, 0, 0]], dtype=torch.int32)
    end = torch.tensor([[1, 4, 1], [3, 0, 2]], dtype=torch.int32)
    value = torch.tensor([100, 50], dtype=dtype)
    expected = x.numpy().copy()
    last = axis % len(shape) == len(shape) - 1
    for i, j in itertools.product(range(2), range(3)):
        index = [slice(None)] * len(shape)
        index[axis] = slice(int(start[i, j]), int(end[i, j]))
        if last and len(shape) > 1:
            index[0] = j
        expected[tuple(index)] = value[i]
    y = torch_npu.npu_masked_fill_range(*(t.to(device) for t in (x, start, end, value)), axis)
    assert np.array_equal(y.cpu().numpy(), expected)


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("count", "size"), [(1, 1), (17, 1), (17, 3), (64, 4), (0, 2)])
def test_sign_bits(device, dtype, count, size):
    x = torch.randn(count).to(dtype)
    if count > 3:
        x[3] = 0
    y = torch_npu.npu_sign_bits_pack(x.to(device), size)
    expected = np.packbits(np.sign(x.numpy()) >= 0, bitorder="little").reshape(size, -1)
    assert np.array_equal(y.cpu().numpy(), expected)
    z = torch_npu.npu_sign_bits_unpack(y.flatten(), size, dtype)
    assert z.dtype == dtype
    assert z.shape == (size, (count + 7) // 8 * 8 // size)
    signs = z.flatten().cpu()[:count]
    assert torch.equal(signs, torch.where(x >= 0, 1, -1).to(dtype))
    assert (z.flatten()[count:] == -1).all()


@DEVICES
def test_in_place(device):
    x = torch.randn(3, 5, device=device)
    y = torch.empty(5, 3, device=device)
    assert torch_npu.copy_memory_(y, x.reshape(5, 3)) is y
    assert torch.equal(y.flatten(), x.flatten())
    expected = torch.nn.functional.silu(x)
    assert torch_npu.npu_silu_(x) is x
    assert torch.equal(x, expected)
    status = torch_npu.npu_alloc_float_status(x)
    assert status.tolist() == [0.0] * 8
    assert status.device == x.device


@DEVICES
def test_copies_of_views(device):
    x = torch.arange(24.0, device=device).view(4, 6)
    y = torch_npu.npu_stride_copy(x, [2, 3], [6, 2], 1)
    assert torch.equal(y.cpu(), torch.tensor([[1.0, 3, 5], [7, 9, 11]]))
    assert y.is_contiguous()
    out = torch.empty(2, 3, device=device)
    assert torch_npu.npu_stride_copy(x, [2, 3], [6, 2], 1, out=out) is out
    assert torch.equal(out, y)
    target = torch.zeros(6, 4, device=device)
    assert torch_npu.npu_view_copy(target, x.t(), False) is target
    assert torch.equal(target, x.t())
    assert torch.equal(torch_npu.reverse(x, [0, -1]), x.flip(0, 1))
    assert torch_npu.one_(target) is target
    assert torch.equal(target.cpu(), torch.ones(6, 4))
    assert torch_npu.npu_prefetch(x, None, 16) is None


@DEVICES
@pytest.mark.parametrize("mode", [0, 1])
def test_float_status(device, mode):
    x = torch.full((3,), float("inf"), device=device)
    status, cleared = torch_npu.npu_get_float_status(x, mode), torch_npu.npu_clear_float_status(x, mode)
    assert status.dtype == torch.int32
    assert cleared.dtype == torch.float32
    assert status.tolist() == cleared.tolist() == [0] * 8


X = torch.zeros(2, 3)
REFUSED = {
    "status": (lambda: torch_npu.npu_get_float_status(X, 2), "mode 0 or 1, got 2"),
    "stride_copy": (lambda: torch_npu.npu_stride_copy(X, [2], [1], 0, out=X), r"out of shape \[2\]"),
    "prefetch": (lambda: torch_npu.npu_prefetch(X, None, 0), "a positive max_size"),
    "one_hot depth": (lambda: torch_npu.npu_one_hot(X.int(), depth=0), "a positive depth, got 0"),
    "one_hot place": (lambda: torch_npu.npu_one_hot(X.int(), 3), "from -3 to 2, got 3"),
    "pad odd": (lambda: torch_npu.npu_pad(X, [1]), r"at most 2 dimensions, got \[1\]"),
    "pad negative": (lambda: torch_npu.npu_pad(X, [-1, 1]), r"sizes >= 0"),
    "indexing lengths": (lambda: torch_npu.npu_indexing(X, [0], [1, 1], [1]), r"one length, got \[1, 2, 1\]"),
    "indexing stride": (lambda: torch_npu.npu_indexing(X, [0], [1], [0]), "other than 0"),
    "indexing rank": (lambda: torch_npu.npu_indexing(X, [0] * 3, [1] * 3, [1] * 3), "at most 2 dimensions, got 3"),
    "indexing ellipses": (lambda: torch_npu.npu_indexing(X, [0] * 2, [1] * 2, [1] * 2, 0, 0, 3), "at most one bit"),
    "indexing out": (lambda: torch_npu.npu_indexing(X, [0], [1], [1], out=X), r"out of shape \[1, 3\]"),
    "stride_add": (lambda: torch_npu.npu_stride_add(X, X, -1, 0, 1), "offsets >= 0"),
    "fill axis": (lambda: torch_npu.npu_masked_fill_range(X, X.int(), X.int(), X[:, 0], 2), "from -2 to 1, got 2"),
    "fill value": (lambda: torch_npu.npu_masked_fill_range(X, X.int(), X.int(), X), r"value of \[M\]"),
    "fill rows": (lambda: torch_npu.npu_masked_fill_range(X, X.int(), X.int(), X[:, 0]), "at most 2 rows, got 3"),
    "pack": (lambda: torch_npu.npu_sign_bits_pack(X.flatten(), 2), "divide the 1 bytes, got 2"),
    "unpack": (lambda: torch_npu.npu_sign_bits_unpack(X.byte(), 2, torch.float32), "one dimension"),
    "copy": (lambda: torch_npu.copy_memory_(X, X.half()), "one dtype, device"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_refused_dtypes():
    with pytest.raises(TypeError, match=r"expected float16 or float32, got torch\.int32"):
        torch_npu.npu_sign_bits_pack(X.int().flatten(), 1)
    with pytest.raises(TypeError, match=r"like self, got torch\.float16"):
        torch_npu.npu_masked_fill_range(X, X.int(), X.int(), X[:, 0].half())
