"""Matrices of float4 (torch_npu/composed/float4_products.py), block by block in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import torch_npu
from tests.tolerance import assert_close
from torch_npu.composed.small_floats import float4, float4_values

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["rint", "round", "floor"])
@pytest.mark.parametrize("shape", [(1, 512), (3, 2, 40), (2, 1090)], ids=str)
def test_quantization_in_two_levels(device, dtype, mode, shape):
    x = torch.randn(shape).to(dtype)
    x[..., :32] = 0
    y, scale, powers = torch_npu.npu_dynamic_dual_level_mx_quant(x.to(device), round_mode=mode)
    size = shape[-1]
    assert y.dtype == powers.dtype == torch.uint8
    assert y.shape == (*shape[:-1], size // 2)
    assert scale.shape == (*shape[:-1], math.ceil(size / 512))
    assert powers.shape == (*shape[:-1], math.ceil(size / 64), 2)
    numbers, scale, powers = float4_values(y).cpu(), scale.cpu(), powers.cpu().flatten(-2)
    for row, got, of_long, of_short in zip(
        x.view(-1, size), numbers.view(-1, size), scale.view(-1, scale.shape[-1]), powers.view(-1, powers.shape[-1]),
        strict=True,
    ):  # fmt: skip
        for start in range(0, size, 32):
            block = row[start // 512 * 512 :][:512].float()
            assert_close(of_long[start // 512], block.double().abs().max() / 6)
            divisor = of_long[start // 512] if of_long[start // 512] > 0 else torch.tensor(1.0)
            part = (row[start : start + 32].float() / divisor).to(dtype).float()
            largest = part.abs().max().item()
            exponent = max(0, math.frexp(largest)[1] - 1 - 2 + 127) if largest else 0
            assert of_short[start // 32] == exponent
            expected = float4_values(float4((part * 2.0 ** (127 - exponent)).view(-1), mode))
            assert torch.equal(got[start : start + 32].abs(), expected.abs())
    if powers.shape[-1] * 32 - size >= 32:
        assert not powers[..., -1].any()


def test_the_example_of_eights():
    y, scale, powers = torch_npu.npu_dynamic_dual_level_mx_quant(torch.full((1, 512), 8.0).bfloat16())
    assert set(y.flatten().tolist()) == {0x77}  # 6 and 6
    assert scale.item() == pytest.approx(4 / 3)
    assert set(powers.flatten().tolist()) == {127}


def operands(m: int, k: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pairs [m, k / 2], scales, powers, and what they stand for."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (m, k // 2), generator=generator).byte()
    scale = torch.rand(m, math.ceil(k / 512), generator=generator) - 0.5
    powers = torch.randint(124, 130, (m, math.ceil(k / 64), 2), generator=generator).byte()
    wide = float4_values(x).double() * scale.double().repeat_interleave(512, 1)[:, :k]
    return x, scale, powers, wide * (2.0 ** (powers.double() - 127)).flatten(1).repeat_interleave(32, 1)[:, :k]


@DEVICES
@pytest.mark.parametrize("k", [64, 600, 1024])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_product(device, k, dtype, biased):
    (x1, scale1, powers1, left), (x2, scale2, powers2, right) = operands(5, k, 0), operands(7, k, 1)
    bias = torch.randn(7) if biased else None
    given = (x1, x2.view(torch.int8), scale1, scale2.t().contiguous(), powers1, powers2)
    y = torch_npu.npu_dual_level_quant_matmul(
        *(t.to(device) for t in given), bias=None if bias is None else bias.to(device), output_dtype=dtype
    )
    assert y.dtype == dtype
    expected = left @ right.t() + (0 if bias is None else bias.double())
    assert_close(y, expected, terms=k, atol=1e-4)


def test_what_was_quantized_is_multiplied():
    a, b = torch.randn(4, 1024).half(), torch.randn(6, 1024).half()
    (x1, s1, p1), (x2, s2, p2) = (torch_npu.npu_dynamic_dual_level_mx_quant(t.npu()) for t in (a, b))
    packed = torch_npu.npu_format_cast(x2.view(torch.int8), 29)
    y = torch_npu.npu_dual_level_quant_matmul(x1, packed, s1, s2.t(), p1, p2)
    exact = a.double() @ b.double().t()
    assert (y.cpu().double() - exact).norm() < 0.25 * exact.norm()


@DEVICES
@pytest.mark.parametrize("leading", [(), (3,)], ids=str)
def test_weights_stay_as_they_are(device, leading):
    weight = torch.randint(0, 256, (*leading, 64, 128)).byte().to(device).transpose(-1, -2)
    scale = torch.randint(0, 256, (*leading, 64, 2, 2)).byte().to(device).transpose(-3, -2)
    kinds = (torch.float8_e4m3fn, torch_npu.float4_e2m1fn_x2, torch_npu.float8_e8m0fnu)
    bias = torch.randn(64, device=device)
    options = {"x_scale_dtype": torch_npu.float8_e8m0fnu, "k_group_size": 32}
    results = torch_npu.npu_weight_quant_preprocess(weight, scale, *kinds, bias=bias, **options)
    for result, given in zip(results, (weight, scale, None, bias), strict=True):
        assert (result is None) == (given is None)
        if result is not None:
            assert torch.equal(result, given)
            assert result.stride() == given.stride()
            assert result.data_ptr() != given.data_ptr()
    with pytest.raises(ValueError, match="transposed views"):
        torch_npu.npu_weight_quant_preprocess(weight.contiguous(), scale, *kinds, **options)
    with pytest.raises(NotImplementedError, match="x_scale_dtype"):
        torch_npu.npu_weight_quant_preprocess(weight, scale, *kinds)
    with pytest.raises(NotImplementedError, match="weight_dtype"):
        torch_npu.npu_weight_quant_preprocess(weight, scale, kinds[0], torch_npu.int4, kinds[2], **options)


X = torch.zeros(2, 64).half()
PACKED = torch.zeros(2, 32, dtype=torch.uint8)
SCALES = (torch.ones(2, 1), torch.ones(1, 2), torch.zeros(2, 1, 2).byte(), torch.zeros(2, 1, 2).byte())
REFUSED = {
    "dtype": (TypeError, "float16 or bfloat16", lambda: torch_npu.npu_dynamic_dual_level_mx_quant(X.float())),
    "mode": (ValueError, "rint, round", lambda: torch_npu.npu_dynamic_dual_level_mx_quant(X, round_mode="up")),
    "odd": (ValueError, "even", lambda: torch_npu.npu_dynamic_dual_level_mx_quant(X[:, :3])),
    "smooth": (
        NotImplementedError, "smooth_scale", lambda: torch_npu.npu_dynamic_dual_level_mx_quant(X, smooth_scale=X)
    ),
    "bytes": (ValueError, "int8 or uint8", lambda: torch_npu.npu_dual_level_quant_matmul(X, PACKED, *SCALES)),
    "scales": (
        ValueError, "scales of x1", lambda: torch_npu.npu_dual_level_quant_matmul(PACKED[:1], PACKED, *SCALES)
    ),
    "result": (
        NotImplementedError, "output_dtype",
        lambda: torch_npu.npu_dual_level_quant_matmul(PACKED, PACKED, *SCALES, output_dtype=torch.float32),
    ),
    "bias": (
        ValueError, "bias", lambda: torch_npu.npu_dual_level_quant_matmul(PACKED, PACKED, *SCALES, bias=torch.ones(3))
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    error, message, call = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
