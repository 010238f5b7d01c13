"""Products with activations, losses, sampling, caches and boxes against float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from operator_case import FLOATS, Case, check, check_gradients
from torch import Tensor
from torch.nn import functional as F

import torch_npu

F64 = torch.float64


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=F64)


ACTIVATIONS = {
    "": lambda x: x,
    "relu": F.relu,
    "gelu_erf": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


def linear_activation(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return ACTIVATIONS[activation](F.linear(x, weight, bias))


def fused_matmul(
    x: Tensor, w: Tensor, *, bias: Tensor | None = None, x3: Tensor | None = None, fused_op_type: str = ""
) -> Tensor:
    y = x @ w if bias is None else x @ w + bias
    if fused_op_type in ("add", "mul"):
        return y + x3 if fused_op_type == "add" else y * x3
    return ACTIVATIONS[fused_op_type](y)


def transpose(x: Tensor, perm: list[int], shape: list[int], first: bool) -> Tensor:
    return x.permute(perm).reshape(shape) if first else x.reshape(shape).permute(perm)


CASES = [
    Case("npu_linear", "bias", lambda: (randn(3, 5, 37), randn(7, 37), randn(7)), F.linear, gradients=(0, 1, 2),
         terms=37, scale=4),
    Case("npu_linear", "one-row", lambda: (randn(1, 65), randn(37, 65), randn(37)), F.linear, terms=65, scale=4),
    Case("npu_linear", "four-rows", lambda: (randn(4, 130), randn(5, 130)), F.linear, terms=130, scale=4),
    *[Case("npu_linear_activation", a or "none", lambda a=a: (randn(3, 5, 37), randn(7, 37), randn(7), a),
           linear_activation, terms=37, scale=4) for a in ACTIVATIONS],
    Case("npu_linear_activation", "no-bias", lambda: (randn(1, 33), randn(8, 33), None, "silu"), linear_activation,
         terms=33, scale=4),
    Case("npu_fused_matmul", "gelu", lambda: (randn(5, 9), randn(9, 4)), fused_matmul,
         keywords={"fused_op_type": "gelu_tanh"}, terms=9, scale=4),
    Case("npu_bmmV2", "plain", lambda: (randn(2, 5, 9), randn(2, 9, 4), []), lambda a, b, s: a @ b, gradients=(0, 1),
         terms=9, scale=4),
    Case("npu_confusion_transpose", "first", lambda: (randn(2, 3, 4, 5), [0, 2, 1, 3], [2, 4, 15], True), transpose,
         gradients=(0,)),
    Case("npu_confusion_transpose", "last", lambda: (randn(2, 12, 5), [0, 2, 1, 3], [2, 3, 4, 5], False), transpose,
         gradients=(0,)),
    Case("npu_transpose", "plain", lambda: (randn(2, 3, 4), [2, 0, 1]), lambda x, p: x.permute(p), gradients=(0,)),
    Case("npu_slice", "block", lambda: (randn(4, 6), [1, 2], [2, -1]), lambda x, o, s: x[1:3, 2:]),
    Case("npu_broadcast", "plain", lambda: (randn(1, 6), [3, 6]), lambda x, s: x.expand(s)),
    Case("npu_conv2d", "plain", lambda: (randn(1, 3, 8, 9), randn(4, 3, 3, 3), randn(4), [1, 1], [1, 1], [1, 1], 1),
         F.conv2d, gradients=(0, 1), terms=27, scale=4, gradient_terms=72, dtypes=(torch.float32,)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(case: Case, dtype: torch.dtype) -> None:
    if dtype in case.dtypes:
        check(case, dtype)


@pytest.mark.parametrize("case", [c for c in CASES if c.gradients], ids=str)
def test_gradients(case: Case) -> None:
    check_gradients(case, torch.float32)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_cross_entropy(reduction: str, weighted: bool, smoothing: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits, target = torch.randn(9, 37).to(dtype), torch.randint(0, 37, (9,))
    target[3] = -100
    weight = torch.rand(37) + 0.5 if weighted else None
    reference = logits.double().requires_grad_()
    actual = logits.npu().requires_grad_()
    options = {"reduction": reduction, "label_smoothing": smoothing}
    expected = F.cross_entropy(reference, target, None if weight is None else weight.double(), **options)
    with torch_npu.fallback_policy("error"):
        loss, log_prob, zloss, _ = torch_npu.npu_cross_entropy_loss(
            actual, target.npu(), None if weight is None else weight.npu(), **options
        )
        loss.sum().backward()
    expected.sum().backward()
    epsilon = torch.finfo(dtype).eps
    assert loss.shape == ((9,) if reduction == "none" else (1,))
    tolerance = {"rtol": 4 * epsilon, "atol": 4 * epsilon}
    torch.testing.assert_close(loss.cpu().double(), expected.reshape(loss.shape), **tolerance)
    torch.testing.assert_close(log_prob.cpu().double(), reference.log_softmax(-1), rtol=4 * epsilon, atol=8 * epsilon)
    torch.testing.assert_close(actual.grad.cpu().double(), reference.grad, rtol=8 * epsilon, atol=8 * epsilon)
    assert zloss.numel() == 0


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_z_loss(reduction: str, dtype: torch.dtype) -> None:
    """A second loss beside the first, with a gradient of its own."""
    torch.manual_seed(0)
    logits, target = torch.randn(9, 37).to(dtype), torch.randint(0, 37, (9,))
    target[3] = -100
    reference, actual = logits.double().requires_grad_(), logits.npu().requires_grad_()
    loss, _, zloss, lse = torch_npu.npu_cross_entropy_loss(
        actual, target.npu(), reduction=reduction, lse_square_scale_for_zloss=0.1, return_zloss=True
    )
    squares = 0.1 * reference.logsumexp(1).square() * (target != -100)
    expected = {"mean": squares.sum().reshape(1) / 8, "sum": squares.sum().reshape(1), "none": squares}[reduction]
    epsilon = torch.finfo(dtype).eps
    torch.testing.assert_close(zloss.cpu().double(), expected, rtol=4 * epsilon, atol=4 * epsilon)
    torch.testing.assert_close(lse.cpu().double(), reference.logsumexp(1), rtol=4 * epsilon, atol=0)
    both = F.cross_entropy(reference, target, reduction=reduction).sum() + 3 * expected.sum()
    both.backward()
    (loss.sum() + 3 * zloss.sum()).backward()
    torch.testing.assert_close(actual.grad.cpu().double(), reference.grad, rtol=16 * epsilon, atol=16 * epsilon)


def test_z_loss_without_a_gradient_of_the_loss() -> None:
    logits, target = torch.randn(4, 7).npu().requires_grad_(), torch.zeros(4, dtype=torch.int64).npu()
    _, _, zloss, _ = torch_npu.npu_cross_entropy_loss(logits, target, lse_square_scale_for_zloss=0.5, return_zloss=True)
    zloss.backward()
    wide = logits.detach().cpu().double().requires_grad_()
    (0.5 * wide.logsumexp(1).square().mean()).backward()
    torch.testing.assert_close(logits.grad.cpu().double(), wide.grad, rtol=1e-5, atol=1e-6)


def test_top_k_top_p() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 50)
    k, p = torch.tensor([1, 5, 50, 10], dtype=torch.int32), torch.tensor([1.0, 0.5, 0.3, 0.9])
    actual = torch_npu.npu_top_k_top_p(logits.npu(), p.npu(), k.npu()).cpu()
    for row in range(4):
        order = logits[row].argsort(descending=True)[: k[row]]
        mass = logits[row, order].softmax(-1).cumsum(-1)
        kept = order[: int((mass < p[row] - 1e-6).sum()) + 1]
        expected = torch.full((50,), -math.inf)
        expected[kept] = logits[row, kept]
        torch.testing.assert_close(actual[row], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_scatter_into_a_paged_cache(dtype: torch.dtype) -> None:
    key, value = (torch.randint(-9, 9, (5, 2, 4)).to(dtype) for _ in range(2))
    caches = [torch.zeros(3, 4, 2, 4, dtype=dtype, device="npu") for _ in range(2)]
    slots = torch.tensor([0, 5, -1, 11, 2])
    torch_npu.npu_scatter_pa_kv_cache(key.npu(), value.npu(), *caches, slots.npu(), cache_mode="Norm")
    for cache, tokens in zip(caches, (key, value), strict=True):
        expected = torch.zeros(12, 2, 4, dtype=dtype)
        expected[slots[slots >= 0]] = tokens[slots >= 0]
        torch.testing.assert_close(cache.cpu().view(12, 2, 4), expected)


def test_scatter_into_a_paged_nz_cache() -> None:
    """The default: 16 neighbouring elements of a token lie beside each other, pages behind them."""
    key, value = torch.randn(5, 2, 16), torch.randn(5, 2, 24)
    caches = [torch.zeros(3, width // 16, 4, 16, device="npu") for width in (32, 48)]
    slots = torch.tensor([0, 5, -1, 11, 2], dtype=torch.int32)
    torch_npu.npu_scatter_pa_kv_cache(key.npu(), value.npu(), *caches, slots.npu())
    for cache, tokens in zip(caches, (key, value), strict=True):
        expected = torch.zeros(12, tokens[0].numel())
        expected[slots[slots >= 0].long()] = tokens[slots >= 0].flatten(1)
        by_token = cache.cpu().transpose(1, 2).reshape(12, -1)
        torch.testing.assert_close(by_token, expected)


def test_scatter_refuses_caches_of_other_sizes() -> None:
    key = torch.randn(5, 2, 16).npu()
    caches = [torch.zeros(3, 3, 4, 16, device="npu") for _ in range(2)]
    with pytest.raises(RuntimeError, match="takes 48 elements a token"):
        torch_npu.npu_scatter_pa_kv_cache(key, key, *caches, torch.arange(5).npu())
    with pytest.raises(ValueError, match=r"cache_mode must be 'Norm' \(or None\) or 'PA_NZ'"):
        torch_npu.npu_scatter_pa_kv_cache(key, key, *caches, torch.arange(5).npu(), cache_mode="PA")


def boxes(count: int, seed: int) -> Tensor:
    corner = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 10
    size = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed + 1)) * 5 + 1
    return torch.cat((corner, corner + size), 1)


def test_overlaps_of_boxes() -> None:
    a, b = boxes(5, 0), boxes(7, 2)
    width = (torch.minimum(a[:, None, 2], b[:, 2]) - torch.maximum(a[:, None, 0], b[:, 0])).clamp_min(0)
    height = (torch.minimum(a[:, None, 3], b[:, 3]) - torch.maximum(a[:, None, 1], b[:, 1])).clamp_min(0)
    common = width * height
    area_a, area_b = ((t[:, 2] - t[:, 0]) * (t[:, 3] - t[:, 1]) for t in (a, b))
    union = area_a[:, None] + area_b - common
    of_a, of_b = ((t[:, 2:] - t[:, :2] + 0.01).prod(-1) for t in (a, b))
    expected = common / (of_a[:, None] + of_b - common)
    torch.testing.assert_close(torch_npu.npu_iou(a.npu(), b.npu()).cpu(), expected.T)
    torch.testing.assert_close(torch_npu.npu_iou(a.npu(), b.npu(), 1).cpu(), (common / of_b).T)
    hull_w = torch.maximum(a[:, None, 2], b[:, 2]) - torch.minimum(a[:, None, 0], b[:, 0])
    hull_h = torch.maximum(a[:, None, 3], b[:, 3]) - torch.minimum(a[:, None, 1], b[:, 1])
    giou = common / union - (hull_w * hull_h - union) / (hull_w * hull_h)
    actual = torch_npu.npu_giou(a.T.npu(), b.T.npu(), is_cross=True)
    torch.testing.assert_close(actual.cpu(), giou, atol=1e-5, rtol=1e-5)
    pairs = torch_npu.npu_giou(a.T.npu(), a.T.npu())
    torch.testing.assert_close(pairs.cpu(), torch.ones(5, 1), atol=1e-5, rtol=1e-5)
    centres = ((a[:, None, :2] + a[:, None, 2:]) - (b[:, :2] + b[:, 2:])).square().sum(-1) / 4
    diou = common / union - centres / (hull_w**2 + hull_h**2)
    torch.testing.assert_close(
        torch_npu.npu_diou(a.T.npu(), b.T.npu(), is_cross=True).cpu(), diou.T, atol=1e-5, rtol=1e-5
    )
    same = torch_npu.npu_ciou(a.T.npu(), a.T.npu(), is_cross=False)
    torch.testing.assert_close(same.cpu(), torch.ones(1, 5), atol=1e-5, rtol=1e-5)


def test_regions() -> None:
    plane = torch.arange(64, dtype=torch.float32).view(1, 1, 8, 8)
    rois = torch.tensor([[0.0, 1.0, 1.0, 5.0, 5.0]])
    actual = torch_npu.npu_roi_align(plane.npu(), rois.npu(), 1.0, 2, 2, 2, 0).cpu()
    # A plane is linear: the mean over a bin is its value in the middle of the bin.
    expected = torch.tensor([[x + 8 * y for x in (2.0, 4.0)] for y in (2.0, 4.0)]).view(1, 1, 2, 2)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: torch_npu.npu_linear_activation(x, x.t()), ValueError, r"input must be \[.., k\]"),
        (lambda x: torch_npu.npu_linear_activation(x, x, None, "tanh"), ValueError, "activation=tanh"),
        (lambda x: torch_npu.npu_fused_matmul(x, x.t(), fused_op_type="add"), ValueError, "x3 belongs to"),
        (lambda x: torch_npu.npu_dtype_cast(x, 291), ValueError, "dtype is 291; expected a torch.dtype"),
        (lambda x: torch_npu.npu_cross_entropy_loss(x, x[:, 0].long(), None, "max"), ValueError, "mean, sum or none"),
        (lambda x: torch_npu.npu_iou(x, x), ValueError, r"boxes must be \[.., 4\]"),
    ],
)
def test_refusals(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(torch.randn(4, 8).npu())


def test_linear_of_torch_npu() -> None:
    x, weight, bias = torch.randn(2, 3, 5), torch.randn(4, 5), torch.randn(4)
    actual = torch.npu.linear(x.npu(), weight.npu(), bias.npu())
    torch.testing.assert_close(actual.cpu(), F.linear(x, weight, bias), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.npu.linear(x.npu(), weight.npu()).cpu(), x @ weight.T, rtol=1e-5, atol=1e-5)
