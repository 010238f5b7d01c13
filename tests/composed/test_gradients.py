"""Gradients under names of their own (torch_npu/composed/gradients.py), against autograd in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def gradients(function: Callable[..., Tensor], *values: Tensor) -> tuple[Tensor, list[Tensor]]:
    """A cotangent of the result in float32, and the gradients in float64."""
    leaves = [v.double().requires_grad_() for v in values]
    result = function(*leaves)
    cotangent = torch.randn(result.shape)
    return cotangent, list(torch.autograd.grad(result, leaves, cotangent.double()))


def check(actual: Tensor | tuple[Tensor, ...], expected: list[Tensor], terms: int = 1) -> None:
    results = actual if isinstance(actual, tuple) else (actual,)
    for a, e in zip(results, expected, strict=True):
        assert a.shape == e.shape
        assert_close(a, e, terms=terms)


@DEVICES
def test_activations(device):
    x = torch.randn(5, 7)
    grad, expected = gradients(F.silu, x)
    check(torch_npu.npu_silu_backward(*(t.to(device) for t in (grad, x, F.silu(x)))), expected)
    grad, expected = gradients(F.mish, x)
    check(torch_npu.npu_mish_backward(grad.to(device), x.to(device)), expected)


@DEVICES
def test_linear(device):
    x, weight = torch.randn(5, 7), torch.randn(3, 7)
    grad, expected = gradients(F.linear, x, weight)
    check(torch_npu.npu_linear_backward(*(t.to(device) for t in (grad, x, weight))), expected, terms=5)


@DEVICES
@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm(device, affine):
    x, weight, bias = torch.randn(5, 3, 7), torch.randn(3, 7), torch.randn(3, 7)
    parameters = [weight, bias] if affine else []
    grad, expected = gradients(lambda x, *p: F.layer_norm(x, (3, 7), *p), x, *parameters)
    _, mean, rstd = torch.native_layer_norm(x, (3, 7), None, None, 1e-5)
    given = [p.to(device) for p in parameters] if affine else [None, None]
    actual = torch_npu.npu_layernorm_grad(
        grad.to(device), x.to(device), [3, 7], mean.to(device), rstd.to(device), *given
    )
    assert [a is not None for a in actual] == [True, affine, affine]
    check(tuple(a for a in actual if a is not None), expected, terms=21)


@DEVICES
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_binary_cross_entropy(device, reduction, weighted):
    x, target = torch.randn(4, 6), torch.rand(4, 6)
    weight, positive = (torch.rand(4, 6), torch.rand(6) + 0.5) if weighted else (None, None)
    options = {"weight": weight, "pos_weight": positive, "reduction": reduction}
    doubled = {k: v.double() if isinstance(v, Tensor) else v for k, v in options.items()}
    grad, expected = gradients(lambda x: F.binary_cross_entropy_with_logits(x, target.double(), **doubled), x)
    arguments = [None if t is None else t.to(device) for t in (grad, x, target, weight, positive)]
    actual = torch_npu.npu_binary_cross_entropy_with_logits_backward(*arguments, REDUCTIONS[reduction])
    check(actual, expected)


@DEVICES
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_losses(device, reduction):
    x, target = torch.randn(4, 6), torch.rand(4, 6)
    grad, (expected, _) = gradients(lambda x, t: F.l1_loss(x, t, reduction=reduction), x, target)
    on_device = [t.to(device) for t in (grad, x, target)]
    check(torch_npu.l1_loss_backward(*on_device, REDUCTIONS[reduction]), [expected])


@DEVICES
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
def test_divergence(device, reduction, log_target):
    x, target = torch.randn(4, 6), torch.rand(4, 6)
    options = {"reduction": reduction, "log_target": log_target}
    grad, expected = gradients(lambda x, t: F.kl_div(x, t, **options), x, target)
    on_device = [t.to(device) for t in (grad, x, target)]
    for operator, wanted in zip((torch_npu.kl_div_backward, torch_npu.kl_div_target_backward), expected, strict=True):
        check(operator(*on_device, REDUCTIONS[reduction], log_target=log_target), [wanted])


SHAPES = [((3, 4, 5), (3, 5, 2)), ((4, 5), (3, 5, 2)), ((3, 4, 5), (5, 2)), ((1, 4, 5), (3, 5, 2)), ((4, 5), (5, 2))]
VECTORS = [((5,), (5, 2)), ((4, 5), (5,)), ((3, 4, 5), (5,)), ((5,), (3, 5, 2))]


@DEVICES
@pytest.mark.parametrize("shapes", SHAPES + VECTORS, ids=str)
def test_products(device, shapes):
    a, b = (torch.randn(s) for s in shapes)
    grad, (da, db) = gradients(torch.matmul, a, b)
    arguments = [t.to(device) for t in (grad, a, b)]
    check(torch_npu.npu_bmm_v2_mat1_backward(*arguments, list(a.shape)), [da], terms=9)
    check(torch_npu.npu_bmm_v2_mat2_backward(*arguments, list(b.shape)), [db], terms=12)


@DEVICES
@pytest.mark.parametrize("transpose_first", [False, True])
def test_confusion_transpose(device, transpose_first):
    x = torch.randn(2, 3, 4, 5)
    perm, shape = ([0, 2, 1, 3], [2, 4, 15]) if transpose_first else ([1, 0, 2], [6, 4, 5])
    grad, expected = gradients(lambda x: torch_npu.npu_confusion_transpose(x, perm, shape, transpose_first), x)
    check(torch_npu.npu_confusion_transpose_backward(grad.to(device), perm, list(x.shape), transpose_first), expected)


@DEVICES
def test_casts(device):
    x = torch.randn(3, 4, device=device)
    assert torch.equal(torch_npu._npu_dtype_cast(x, torch.float16), x.half())
    assert torch.equal(torch_npu._npu_dtype_cast_backward(x.half(), torch.float32), x.half().float())
    assert torch.equal(torch_npu.npu_dtype_cast_backward(x, torch.bfloat16), x.bfloat16())
    with pytest.raises(ValueError, match="neither grad_dtype"):
        torch_npu.npu_dtype_cast_backward(x, torch.float16, grad_dtype=1)


@DEVICES
def test_gather(device):
    x, index = torch.randn(4, 6), torch.randint(0, 6, (4, 9))
    grad, expected = gradients(lambda x: x.gather(1, index), x)
    check(torch_npu.npu_gather_backward(grad.to(device), [4, 6], 1, index.to(device), False), expected, terms=9)
    with pytest.raises(ValueError, match="sparse_grad False"):
        torch_npu.npu_gather_backward(grad.to(device), [4, 6], 1, index.to(device), True)


@DEVICES
@pytest.mark.parametrize("dim", [None, 0, -1])
def test_repetition(device, dim):
    x = torch.randn(3, 4)
    grad, expected = gradients(lambda x: x.repeat_interleave(3, dim), x)
    check(torch_npu.repeat_interleave_backward_int(grad.to(device), x.to(device), 3, dim), expected, terms=3)
    repeats = torch.randint(0, 4, (x.numel() if dim is None else x.shape[dim],))
    for counts in (repeats, torch.tensor([2])):
        grad, expected = gradients(lambda x, r=counts: x.repeat_interleave(r, dim), x)
        actual = torch_npu.repeat_interleave_backward_tensor(grad.to(device), x.to(device), counts.to(device), dim)
        check(actual, expected, terms=3)


@DEVICES
def test_attention_weights(device):
    logits, values, grad = torch.randn(2, 5, 7), torch.randn(2, 7, 3), torch.randn(2, 5, 3)
    leaf = logits.double().requires_grad_()
    (leaf.softmax(-1) @ values.double()).backward(grad.double())
    x = logits.to(device, copy=True)
    assert torch_npu.npu_attn_softmax_(x) is x
    assert_close(x, logits.double().softmax(-1))
    assert torch_npu.npu_attn_softmax_backward_(x, grad.to(device), values.to(device)) is x
    assert_close(x, leaf.grad, terms=7)


def boxes(count: int) -> Tensor:
    corner = torch.rand(2, count) * 4
    return torch.cat((corner, corner + torch.rand(2, count) * 5 + 1))


@DEVICES
@pytest.mark.parametrize("name", ["giou", "diou", "ciou"])
@pytest.mark.parametrize("is_cross", [False, True])
@pytest.mark.parametrize("trans", [False, True])
def test_overlaps(device, name, is_cross, trans):
    a, b = boxes(4), boxes(4)
    overlap = getattr(torch_npu, f"npu_{name}")
    grad, expected = gradients(lambda a, b: overlap(a, b, trans, is_cross, 0), a, b)
    given = [t.to(device) for t in (grad, a, b)] + ([None] if name == "ciou" else [])
    actual = getattr(torch_npu, f"npu_{name}_backward")(*given, trans, is_cross, 0)
    check(actual, expected, terms=16)
    assert not actual[0].requires_grad
    if not is_cross:  # one number a pair, as a row or as a column
        given[0] = given[0].reshape(given[0].shape[::-1])
        check(getattr(torch_npu, f"npu_{name}_backward")(*given, trans, is_cross, 0), expected, terms=16)


X = torch.zeros(2, 3)
REFUSED = {
    "linear": (lambda: torch_npu.npu_linear_backward(X[None], X, X), "expected matrices"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()
