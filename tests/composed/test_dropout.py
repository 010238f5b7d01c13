"""Dropout whose mask is at hand (torch_npu/composed/dropout.py)."""

import math

import numpy as np
import pytest
import torch

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.float32])


def bits(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    unpacked = np.unpackbits(mask.cpu().numpy(), bitorder="little")[: like.numel()]
    return torch.from_numpy(unpacked).view(like.shape)


def kept(x: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    """The reference, in float64."""
    return x.detach().cpu().double() * mask.cpu() / (1 - p)


@DEVICES
@DTYPES
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 43), (5, 7, 11)])
@pytest.mark.parametrize("p", [0, 0.3])
def test_dropout_with_bits(device, dtype, shape, p):
    x = torch.randn(shape, dtype=dtype, device=device, requires_grad=True)
    y, mask = torch_npu._npu_dropout(x, p)
    assert mask.dtype == torch.uint8
    assert mask.numel() == math.ceil(x.numel() / 128) * 16
    assert_close(y.detach(), kept(x, bits(mask, x), p))
    again, copy = torch_npu.npu_dropout_do_mask(x, mask, p)
    assert torch.equal(again, y)
    assert torch.equal(copy, mask)
    grad = torch.randn_like(x)
    y.backward(grad)
    assert torch.equal(x.grad, torch_npu.npu_dropout_backward(grad, mask, p))
    assert_close(x.grad, kept(grad, bits(mask, x), p))


@DEVICES
@DTYPES
@pytest.mark.parametrize("shape", [(0,), (3, 43)])
def test_dropout_with_bytes(device, dtype, shape):
    x = torch.randn(shape, dtype=dtype, device=device, requires_grad=True)
    y, mask = torch_npu._dropout_with_byte_mask(x, 0.4)
    assert mask.dtype == torch.uint8
    assert mask.shape == x.shape
    assert_close(y.detach(), kept(x, mask, 0.4))
    grad = torch.randn_like(x)
    y.backward(grad)
    assert torch.equal(x.grad, torch_npu._dropout_with_byte_mask_backward(grad, mask, 0.4))
    assert torch.equal(torch_npu.dropout_with_byte_mask(x, 0.4, False), x)


@DEVICES
def test_a_share_p_is_dropped(device):
    torch.manual_seed(1)
    x = torch.ones(100_000, device=device)
    mask = torch_npu.npu_dropout_gen_mask([100, 1000], 0.2, device=torch.device(device))
    assert mask.device == x.device
    masked = torch_npu.npu_dropout_do_mask(x, mask, 0.2)[0]
    for y in (torch_npu._npu_dropout(x, 0.2)[0], torch_npu.dropout_with_byte_mask(x, 0.2, True), masked):
        # The standard deviation of the share is 0.0013.
        assert abs((y == 0).float().mean().item() - 0.2) < 0.008
    assert (torch_npu._npu_dropout(x, 1)[0] == 0).all()
    assert (torch_npu._npu_dropout(x, 0)[0] == 1).all()


def test_masks_are_made_on_npu():
    assert torch_npu.npu_dropout_gen_mask([3], 0.5).device.type == "npu"


@DEVICES
@DTYPES
@pytest.mark.parametrize("dim", [-1, 0])
@pytest.mark.parametrize("p", [0, 0.3])
def test_add_softmax(device, dtype, dim, p):
    shape = (3, 5, 9)
    x, bias = (torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for _ in range(2))
    mask, softmax, y = torch_npu.npu_dropout_with_add_softmax(x, bias, 0.125, p, dim)
    assert mask.shape == (256,)
    assert not softmax.requires_grad
    a, b = (t.detach().cpu().double().requires_grad_() for t in (x, bias))
    expected = (b + 0.125 * a).softmax(dim)
    assert_close(softmax, expected.detach(), terms=4)
    keep = mask[: x.numel()].view(shape)
    expected = expected * keep.cpu() / (1 - p)
    assert_close(y.detach(), expected.detach(), terms=16)
    grad = torch.randn_like(x)
    y.backward(grad)
    expected.backward(grad.cpu().double())
    assert_close(x.grad, a.grad, terms=100)
    assert_close(bias.grad, b.grad, terms=100)
    backward = torch_npu.npu_dropout_with_add_softmax_backward(grad, mask, softmax, 0.125, p, dim)
    assert_close(backward[0], a.grad, terms=100)
    assert_close(backward[1], b.grad, terms=100)


X = torch.zeros(2, 4)
REFUSED = {
    "p": (lambda: torch_npu._npu_dropout(X, 1.5), "a probability from 0 to 1, got 1.5"),
    "bits": (
        lambda: torch_npu.npu_dropout_do_mask(X, torch.zeros(0, dtype=torch.uint8), 0.5),
        "with 8 bits, got 0",
    ),
    "bytes": (lambda: torch_npu._dropout_with_byte_mask_backward(X, X, 0.5), "a mask of uint8"),
    "generated": (lambda: torch_npu.npu_dropout_gen_mask([2], -1), "from 0 to 1, got -1"),
    "shapes": (lambda: torch_npu.npu_dropout_with_add_softmax(X, X[:1], 1, 0.5, -1), "of one shape"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_whole_numbers_are_refused():
    with pytest.raises(TypeError, match=r"floating-point dtype, got torch\.int64"):
        torch_npu._npu_dropout(X.long(), 0.5)
