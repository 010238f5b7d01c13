"""Lossless compression of floats (torch_npu/composed/hans.py)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torch_npu

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)


def room(x: Tensor, fixed: int | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """pdf, mantissa, fixed (of as many numbers) and var for x."""
    size = x.element_size()
    bound = -(-x.numel() * 65 // 64 // size)
    lengths = x.numel() * (size - 1) // size, bound if fixed is None else fixed, bound
    return torch.zeros(256, dtype=torch.int32, device=x.device), *(x.new_zeros(n) for n in lengths)


def bits(x: Tensor) -> Tensor:
    return x.cpu().contiguous().view(torch.uint8)


def special(dtype: torch.dtype) -> Tensor:
    x = torch.randn(64 * 9)
    x[:6] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40])
    return x.to(dtype)


@DEVICES
@DTYPES
@pytest.mark.parametrize("reshuff", [False, True])
@pytest.mark.parametrize("kind", ["special", "normal", "wide", "equal", "strided", "empty"])
def test_round_trip(device, dtype, reshuff, kind):
    x = {
        "special": special(dtype), "normal": torch.randn(32, 96).to(dtype),
        "wide": (torch.randn(640) * torch.randn(640).mul(20).exp()).to(dtype),
        "equal": torch.full((128,), -2.5, dtype=dtype), "strided": torch.randn(64, 6).to(dtype).t(),
        "empty": torch.empty(0, dtype=dtype),
    }[kind].to(device)  # fmt: skip
    pdf, mantissa, fixed, var = torch_npu.npu_hans_encode(x, True, reshuff, out=room(x))
    assert int(pdf.sum()) == x.numel()
    out = torch.empty(x.shape, dtype=dtype, device=device)
    assert torch_npu.npu_hans_decode(mantissa, fixed, var, pdf, reshuff, out=out) is out
    assert torch.equal(bits(out), bits(x))


@DEVICES
def test_pdf_counts_exponents(device):
    x = torch.tensor([1.0, -1.5, 2.0, 0.0] * 16, device=device)
    pdf = torch_npu.npu_hans_encode(x, True, out=room(x))[0].tolist()
    assert [pdf[127], pdf[128], pdf[0], sum(pdf)] == [32, 16, 16, 64]


@DEVICES
@DTYPES
def test_normal_numbers_become_smaller_and_overflow_into_var(device, dtype):
    x = torch.randn(1 << 15).to(dtype).to(device)
    few = 4096 // x.element_size()
    pdf, mantissa, fixed, var = torch_npu.npu_hans_encode(x, True, out=room(x, few))
    used = fixed.nbytes + int(var.view(torch.uint8).nonzero().max())
    assert used < (0.6 if dtype != torch.float16 else 1.02) * x.numel()  # of 8 bits an exponent
    out = torch.empty_like(x)
    torch_npu.npu_hans_decode(mantissa, fixed, var, pdf, out=out)
    assert torch.equal(bits(out), bits(x))


@DEVICES
def test_another_pdf_is_read_again(device):
    x, pdf = torch.randn(256, device=device), torch.arange(256, dtype=torch.int32, device=device)
    _, mantissa, fixed, var = room(x)
    torch_npu.npu_hans_encode(x, out=(pdf, mantissa, fixed, var))
    assert torch.equal(pdf.cpu(), torch.arange(256, dtype=torch.int32))
    out = torch.empty_like(x)
    torch_npu.npu_hans_decode(mantissa, fixed, var, pdf, out=out)
    assert torch.equal(bits(out), bits(x))


def test_refusals():
    x = torch.randn(128)
    pdf, mantissa, fixed, var = room(x)
    with pytest.raises(ValueError, match="multiple of 64"):
        torch_npu.npu_hans_encode(x[:100], out=(pdf, mantissa, fixed, var))
    with pytest.raises(ValueError, match="mantissa of 384 bytes"):
        torch_npu.npu_hans_encode(x, out=(pdf, mantissa[:4], fixed, var))
    with pytest.raises(ValueError, match="room for"):
        torch_npu.npu_hans_encode(x, True, True, out=(pdf, mantissa, fixed[:8], var))
    with pytest.raises(TypeError, match="expected tensors of one of"):
        torch_npu.npu_hans_encode(x.double(), out=(pdf, mantissa, fixed, var))
    fixed.view(torch.uint8)[:] = 255
    with pytest.raises(ValueError, match="a stream of npu_hans_encode"):
        torch_npu.npu_hans_decode(mantissa, fixed, var, pdf, out=x)
