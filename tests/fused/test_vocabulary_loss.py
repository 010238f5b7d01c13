"""Cross entropy over a vocabulary that is spread over ranks: one rank's part, and all ranks against PyTorch's."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_close

import torch_npu

DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def problem(dtype: torch.dtype, rows: int = 13, hidden: int = 9, classes: int = 24) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [
        torch.randn(rows, hidden).to(dtype),
        torch.randn(classes, hidden).to(dtype),
        torch.randint(classes, (rows,)),
    ]


@DTYPES
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("rows", [0, 1, 13])
def test_one_rank(dtype, index, rows):
    x, weight, target = problem(dtype, rows)
    part, first = weight[8:16], 8
    results = torch_npu.npu_fused_linear_online_max_sum(
        x.npu(), part.npu(), target.to(index).npu(), first, first + 7, return_logits=True
    )
    logits = x.double() @ part.double().t()
    maximum = logits.amax(1)
    elsewhere = (target < first) | (target > first + 7)
    own = (target - first).masked_fill(elsewhere, 0)
    predicted = (logits - maximum[:, None]).gather(1, own[:, None]).squeeze(1).masked_fill(elsewhere, 0)
    bits = np.packbits(np.append(elsewhere.numpy(), np.ones(-rows % 8, dtype=bool)))
    assert_close(results[0], maximum, terms=9)
    assert_close(results[1], (logits - maximum[:, None]).exp().sum(1), terms=30)
    assert_close(results[2], predicted, terms=9)
    assert np.array_equal(results[3].cpu().numpy(), bits)
    assert torch.equal(results[4].cpu(), own.to(index))
    assert_close(results[5], logits, terms=4)
    assert [r.dtype for r in results] == [torch.float32] * 3 + [torch.uint8, index, dtype]


def over_ranks(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, keeps: bool) -> tuple[torch.Tensor, ...]:
    """Loss and gradients of all ranks, one after the other."""
    starts = [0, 8, 16]
    parts = [
        torch_npu.npu_fused_linear_online_max_sum(x, weight[i : i + 8], target, i, i + 7, return_logits=keeps)
        for i in starts
    ]
    assert all((part[5] is None) != keeps for part in parts)
    maxima = torch.stack([part[0] for part in parts])
    maximum = maxima.amax(0)
    total = torch.stack([part[1] for part in parts]).mul((maxima - maximum).exp()).sum(0)
    masks = [torch.from_numpy(np.unpackbits(part[3].cpu().numpy())[: len(x)]).npu() for part in parts]
    # A rank's prediction is relative to its own maximum.
    moved = [part[2] + (part[0] - maximum) * (1 - mask) for part, mask in zip(parts, masks, strict=True)]
    predicted = torch.stack(moved).sum(0)
    grad = torch.arange(1.0, len(x) + 1, device="npu")
    input_grad, weight_grads, losses = torch.zeros_like(x, dtype=torch.float32), [], []
    for i, part in zip(starts, parts, strict=True):
        loss, softmax = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(
            maximum, total, predicted, vocab_parallel_logits=part[5]
        )
        losses.append(loss)
        assert (softmax is None) != keeps
        saved = {"softmax": softmax} if keeps else {"logits_max": maximum, "sum_exp_logits": total}
        grads = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
            grad, x, weight[i : i + 8], part[3], part[4], **saved
        )
        input_grad += grads[0].float()
        weight_grads.append(grads[1])
    assert torch.equal(losses[0], losses[2])
    return losses[0], input_grad, torch.cat(weight_grads)


@DTYPES
@pytest.mark.parametrize("keeps", [True, False])
def test_all_ranks_are_one_cross_entropy(dtype, keeps):
    x, weight, target = problem(dtype)
    loss, input_grad, weight_grad = over_ranks(x.npu(), weight.npu(), target.npu(), keeps)
    a, b = x.double().requires_grad_(), weight.double().requires_grad_()
    expected = F.cross_entropy(a @ b.t(), target, reduction="none")
    expected.backward(torch.arange(1.0, len(x) + 1).double())
    # With logits kept in the dtype, their rounding is in the softmax: 4 is their magnitude, 13 that of the gradient.
    unit = torch.finfo(dtype).eps
    assert_close(loss, expected.detach(), terms=64)
    slack = {"rtol": 8 * unit, "atol": 13 * 8 * unit}
    assert_close(input_grad, a.grad, **slack)
    assert_close(weight_grad, b.grad, **slack)


X, W, T = torch.zeros(4, 3).half().npu(), torch.zeros(8, 3).half().npu(), torch.zeros(4, dtype=torch.int64).npu()
ROW = torch.zeros(4).npu()


def test_refusals():
    online = torch_npu.npu_fused_linear_online_max_sum
    backward = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward
    mask = torch.zeros(1, dtype=torch.uint8).npu()
    with pytest.raises(ValueError, match=r"input must be \[N, H\] and weight \[V, H\]"):
        online(X, W.t(), T, 0, 7)
    with pytest.raises(ValueError, match="must have rows of weight"):
        online(X, W, T, 0, 8)
    with pytest.raises(TypeError, match="float16"):
        online(X.float(), W.float(), T, 0, 7)
    with pytest.raises(NotImplementedError, match="label_smoothing must be 0"):
        torch_npu.npu_fused_cross_entropy_loss_with_max_sum(ROW, ROW, ROW, label_smoothing=0.1)
    with pytest.raises(ValueError, match="softmax, or logits_max and sum_exp_logits"):
        backward(ROW, X, W, mask, T)
    with pytest.raises(ValueError, match=r"softmax must be \[N, V\]"):
        backward(ROW, X, W, mask, T, softmax=ROW)
