"""Softmax of attention windows, and products of batches that lie between rows, against float64."""

from __future__ import annotations

import pytest
import torch
from operator_case import FLOATS
from tolerance import assert_close

import torch_npu

B, W, N, S1, S2 = 2, 3, 4, 5, 7


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("mask_shape", [None, (W, S1, S2), (W, 1, S1, S2), (1, W, 1, S1, S2)])
@pytest.mark.parametrize("bias_rank", [3, 4])
def test_softmax_of_windows(dtype, split, mask_shape, bias_rank):
    torch.manual_seed(0)
    x, bias = torch.randn(B, W, N, S1, S2).to(dtype), torch.randn(N, S1, S2).to(dtype)
    mask = None if mask_shape is None else torch.randn(mask_shape).to(dtype)
    scores = x.double() * 0.3 + bias.double()
    if mask is not None:
        scores = scores + mask.double().view(W, 1, S1, S2)
    expected = scores.softmax(-1)
    given = x if split else x.flatten(0, 1)
    y = torch_npu.npu_masked_softmax_with_rel_pos_bias(
        given.npu(), None if mask is None else mask.npu(), (bias[None] if bias_rank == 4 else bias).npu(), 0.3
    )
    assert_close(y, expected.view(given.shape))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("perm_x1", [None, [0, 1, 2], [1, 0, 2]])
@pytest.mark.parametrize("perm_x2", [None, [0, 2, 1]])
@pytest.mark.parametrize("factor", [1, 2])
def test_batches_between_rows(dtype, perm_x1, perm_x2, factor):
    torch.manual_seed(0)
    x, weight = torch.randn(4, 5, 6).to(dtype), torch.randn(4, 6, 3).to(dtype)
    product = (x.double() @ weight.double()).transpose(0, 1)
    expected = product if factor == 1 else product.reshape(5, factor, -1).transpose(0, 1)
    given = [
        x.permute(perm_x1).contiguous() if perm_x1 else x,
        weight.permute(perm_x2).contiguous() if perm_x2 else weight,
    ]
    y = torch_npu.npu_transpose_batchmatmul(
        *(t.npu() for t in given), perm_x1=perm_x1, perm_x2=perm_x2, perm_y=[1, 0, 2], batch_split_factor=factor
    )
    assert_close(y, expected, terms=6, atol=torch.finfo(dtype).eps * 4)


X = torch.zeros(2, 4, 6)
REFUSED = {
    "mask": (lambda x: torch_npu.npu_masked_softmax_with_rel_pos_bias(x[None], x[:, :3], x), ValueError, "atten_mask"),
    "bias": (lambda x: torch_npu.npu_masked_softmax_with_rel_pos_bias(x[None], None, x[:1]), ValueError, "N, S1, S2"),
    "perm": (lambda x: torch_npu.npu_transpose_batchmatmul(x, x, perm_x1=[2, 0, 1]), ValueError, "perm_x1 must be"),
    "inner": (lambda x: torch_npu.npu_transpose_batchmatmul(x, x), ValueError, "inner dimensions"),
    "split": (
        lambda x: torch_npu.npu_transpose_batchmatmul(x, x, perm_x2=[0, 2, 1], batch_split_factor=3), ValueError,
        "divide the number of batches",
    ),
    "scale": (
        lambda x: torch_npu.npu_transpose_batchmatmul(x, x, perm_x2=[0, 2, 1], scale=x), NotImplementedError, "scale"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call(X.npu())
