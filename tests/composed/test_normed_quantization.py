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
