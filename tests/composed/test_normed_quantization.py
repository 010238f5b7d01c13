"""Norms and rotations whose result is quantized (torch_npu/composed/normed_quantization.py)."""

from __future__ import annotations

import pytest
import torch

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]


@DEVICES
@DTYPES
@pytest.mark.parametrize("target", FLOAT8, ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_norms(device, dtype, target, biased):
    x1, x2, gamma = (torch.randn(shape).to(dtype) for shape in ((3, 5, 70), (3, 5, 70), (70,)))
    beta = torch.randn(70).to(dtype) if biased else None
    given = None if beta is None else beta.to(device)
    for added in (False, True):
        wide = x1.double() + (x2.double() if added else 0)
        inverse = (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        expected = wide * inverse * gamma.double() + (0 if beta is None else beta.double())
        options = {"beta": given, "epsilon": 1e-5, "dst_type": target, "scale_alg": 1}
        if added:
            y, total, powers, rstd = torch_npu.npu_add_rms_norm_dynamic_mx_quant(
                x1.to(device), x2.to(device), gamma.to(device), **options
            )
            assert_close(total, wide)
            assert total.dtype == dtype
        else:
            y, powers, rstd = torch_npu.npu_rms_norm_dynamic_mx_quant(x1.to(device), gamma.to(device), **options)
        assert_close(rstd, inverse, terms=70)
        assert y.dtype == target
        assert powers.shape == (3, 5, 2, 2)
        back = torch_npu.npu_anti_mx_quant(y, powers, dst_type=torch.float32)
        # A block's largest element is at most the largest number: half a unit of that is the worst error.
        unit = torch.finfo(target).eps * expected.abs().max().item()
        assert_close(back, expected, atol=2 * unit)


@DEVICES
@DTYPES
def test_rotations(device, dtype):
    x, rotation = torch.randn(5, 96).to(dtype), torch.randn(32, 32).to(dtype)
    x[2] = 0
    expected = (x.double().view(5, 3, 32) @ rotation.double()).view(5, 96)
    y, scale = torch_npu.npu_rotate_quant(x.to(device), rotation.to(device))
    assert y.dtype == torch.int8
    assert_close(scale, expected.abs().amax(1) / 127, terms=32)
    assert_close(y.float().cpu() * scale.cpu()[:, None], expected, atol=0.51 * scale.max().item())
    for target in FLOAT8:
        y, powers = torch_npu.npu_rotate_quant(x.to(device), rotation.to(device), dst_dtype=target)
        turned = (x.float().view(5, 3, 32) @ rotation.float()).view(5, 96).to(device)
        reference, same = torch_npu.npu_dynamic_mx_quant(turned, dst_type=target)
        assert torch.equal(powers, same)
        step = torch.finfo(target).eps * torch.finfo(target).max
        assert_close(y.float(), reference.float(), atol=step)


X, R = torch.zeros(2, 64), torch.zeros(32, 32)
REFUSED = {
    "columns": (ValueError, "rotation", lambda: torch_npu.npu_rotate_quant(X[:, 1:], R)),
    "axis": (ValueError, "last axis", lambda: torch_npu.npu_rotate_quant(X, R, axis=0)),
    "rounding": (NotImplementedError, "round_mode", lambda: torch_npu.npu_rotate_quant(X, R, round_mode="floor")),
    "four bits": (NotImplementedError, "dst_type", lambda: torch_npu.npu_rms_norm_dynamic_mx_quant(X, X[0])),
    "gamma": (ValueError, "gamma", lambda: torch_npu.npu_rms_norm_dynamic_mx_quant(X, R[0], dst_type=23)),
    "sum": (
        ValueError, "one shape", lambda: torch_npu.npu_add_rms_norm_dynamic_mx_quant(X, R, R[0], dst_type=23)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    error, message, call = REFUSED[case]
    with pytest.raises(error, match=message):
        call()


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("target", [None, *FLOAT8], ids=str)
@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("size", [1, 7])
def test_quantized_norms(device, dtype, target, divided, size):
    x, gamma, beta = torch.randn(3, 5, 7).to(dtype), torch.randn(7).to(dtype), torch.randn(7).to(dtype)
    scale, offset = torch.rand(size).to(dtype) + 0.2, torch.randint(-5, 6, (size,)).to(dtype)
    if not divided and target is None:
        scale = scale * 20
    y, rstd = torch_npu.npu_rms_norm_quant_v2(
        x.to(device), gamma.to(device), scale.to(device), offset=offset.to(device), beta=beta.to(device),
        div_mode=divided, dst_dtype=target,
    )  # fmt: skip
    inverse = (x.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    assert_close(rstd, inverse, terms=7)
    wide = x.double() * inverse * gamma.double() + beta.double()
    expected = (wide / scale.double() if divided else wide * scale.double()) + offset.double()
    assert y.dtype == (torch.int8 if target is None else target)
    error = (y.cpu().double() - expected.clamp(-128, 127)).abs()
    if target is None:
        assert error.max() <= 0.5001
    else:
        assert (error <= expected.abs() * {FLOAT8[0]: 2**-4, FLOAT8[1]: 2**-3}[target] * 1.001 + 2**-9).all()


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("shape", [(7,), (5, 7)])
def test_quantized_gradients_of_norms(device, dtype, divided, shape):
    x, dy, gamma = torch.randn(3, 5, 7).to(dtype), torch.randn(3, 5, 7).to(dtype), torch.randn(shape).to(dtype)
    leaves = [t.double().requires_grad_() for t in (x, gamma)]
    rstd = (leaves[0].square().mean(list(range(-len(shape), 0)), keepdim=True) + 1e-6).rsqrt()
    dx, dgamma = torch.autograd.grad(leaves[0] * rstd * leaves[1], leaves, dy.double())
    scale, offset = torch.tensor([0.03 if divided else 30.0]), torch.tensor([3], dtype=torch.int32)
    rows = rstd.detach().float().squeeze(list(range(-len(shape), 0)))
    given = (dy.to(device), x.to(device), rows.to(device), gamma.to(device), scale.to(device))
    y, actual = torch.ops.npu._npu_rms_norm_backward_quant(*given, offset_x=offset.to(device), div_mode=divided)
    expected = ((dx / 0.03 if divided else dx * 30) + 3).clamp(-128, 127)
    assert y.dtype == torch.int8
    assert (y.cpu().double() - expected).abs().max() <= 0.501
    assert actual.dtype == torch.float32
    assert_close(actual, dgamma, terms=64)


def test_refusals_of_quantized_norms():
    x, one = torch.zeros(2, 7), torch.ones(1)
    with pytest.raises(NotImplementedError, match="dst_type must be"):
        torch_npu.npu_rms_norm_quant_v2(x, x[0], one, dst_dtype=290)
    with pytest.raises(ValueError, match="scale and offset"):
        torch_npu.npu_rms_norm_quant_v2(x, x[0], torch.ones(3))
    with pytest.raises(NotImplementedError, match="quant_mode='dynamic'"):
        torch.ops.npu._npu_rms_norm_backward_quant(x, x, x[:, 0], x[0], one, quant_mode="dynamic")
    with pytest.raises(ValueError, match="rstd"):
        torch.ops.npu._npu_rms_norm_backward_quant(x, x, x[0], x[0], one)
