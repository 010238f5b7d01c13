"""Operators that write to a given tensor (torch_npu/composed/written_results.py), and samples of labels."""

from __future__ import annotations

import pytest
import torch

import torch_npu

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
QUANTIZED = [(torch.qint8, torch.int8), (torch.quint8, torch.uint8), (torch.qint32, torch.int32)]


@DEVICES
def test_copies_in_another_order(device):
    x = torch.randn(3, 4, 5, device=device)
    out = torch.empty(5, 3, 4, device=device).transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.ops.npu.npu_transpose_trans_contiguous(x, [2, 0, 1], out=out) is out
    assert torch.equal(out, x.permute(2, 0, 1))
    part = torch.empty(2, 2, 5, device=device)
    assert torch.ops.npu.npu_indexing_trans_contiguous(x, [0, 1, 0], [3, 4, 5], [2, 2, 1], out=part) is part
    assert torch.equal(part, x[0:3:2, 1:4:2])
    with pytest.raises(ValueError, match="out of shape"):
        torch.ops.npu.npu_indexing_trans_contiguous(x, [0, 1, 0], [3, 4, 5], [2, 2, 1], out=out)
    with pytest.raises(ValueError, match="out of shape"):
        torch.ops.npu.npu_transpose_trans_contiguous(x, [2, 1, 0], out=out)
    with pytest.raises(ValueError, match="some order"):
        torch.ops.npu.npu_transpose_trans_contiguous(x, [2, 1, 1], out=out)


@DEVICES
@pytest.mark.parametrize("kinds", QUANTIZED, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("axis", [None, 0, -2])
def test_quantization(device, kinds, dtype, axis):
    x = torch.randn(3, 5, 7).to(dtype) * 20
    size = 1 if axis is None else x.shape[axis]
    scales, zeros = torch.rand(size) + 0.1, torch.randint(0, 9, (size,))
    result = torch.empty(x.shape, dtype=kinds[1], device=device)
    given = [t.to(device) for t in (x, scales, zeros)]
    name = "_quantize_per_tensor_impl" if axis is None else "_quantize_per_channel_impl"
    function, places = getattr(torch.ops.npu, name), [] if axis is None else [axis]
    assert function(*given, *places, kinds[0], result=result) is result
    shape = [1, 1, 1] if axis is None else [size if d == axis % 3 else 1 for d in range(3)]
    limits = torch.iinfo(kinds[1])
    expected = (x.double() / scales.double().view(shape)).round() + zeros.view(shape)
    assert torch.equal(result.cpu(), expected.clamp(limits.min, limits.max).to(kinds[1]))
    with pytest.raises(ValueError, match="a result"):
        function(*given, *places, kinds[0], result=torch.empty(x.shape, device=device))


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("kept", [False, True])
def test_one_update_a_row(device, dtype, kept):
    x, indices = torch.randn(3, 4, 5).to(dtype), torch.randint(0, 4, (3, 5)).int()
    updates = torch.randn(3, 5).to(dtype)
    given = [t.unsqueeze(1) if kept else t for t in (indices, updates)]
    y = torch_npu.npu_scatter(x.to(device), *(t.to(device) for t in given), 1)
    expected = x.clone()
    for i in range(3):
        for j in range(5):
            expected[i, indices[i, j], j] = updates[i, j]
    assert torch.equal(y.cpu(), expected)
    with pytest.raises(ValueError, match="indices"):
        torch_npu.npu_scatter(x, indices, updates, 0)


@DEVICES
@pytest.mark.parametrize(("count", "fraction", "positive", "negative"), [
    (8, 0.5, 4, 4), (10, 0.9, 6, 4), (40, 0.5, 6, 9), (0, 0.5, 0, 0), (4, 1.0, 4, 0),
])  # fmt: skip
def test_samples_of_labels(device, count, fraction, positive, negative):
    labels = torch.tensor([1] * 4 + [0] * 9 + [-1] * 3 + [2, 3], dtype=torch.int32)[torch.randperm(18)]
    kept = torch_npu.npu_sub_sample(labels.to(device), count, fraction).cpu()
    assert kept.dtype == torch.int32
    assert ((kept == labels) | (kept == -1)).all()
    assert ((kept > 0).sum().item(), (kept == 0).sum().item()) == (positive, negative)
    with pytest.raises(ValueError, match="positive_fraction"):
        torch_npu.npu_sub_sample(labels, count, 1.5)
