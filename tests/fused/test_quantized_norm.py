"""Normalizations with quantization or swish behind them, against float64."""

from __future__ import annotations

import pytest
import torch
from operator_case import FLOATS, Case, check, check_gradients
from tolerance import assert_close
from torch import Tensor

import torch_npu

F64 = torch.float64


def rms_norm(x: Tensor, gamma: Tensor, beta: Tensor | None = None, epsilon: float = 1e-6) -> Tensor:
    dims = tuple(range(x.dim() - gamma.dim(), x.dim()))
    normal = x / (x.square().mean(dims, keepdim=True) + epsilon).sqrt() * gamma
    return normal if beta is None else normal + beta


def close_to(numbers: Tensor, values: Tensor, low: int = -128, high: int = 127) -> None:
    """Rounded, but for values that lie between two numbers within the error of float32."""
    assert ((numbers.cpu().double() - values.clamp(low, high)).abs() <= 0.5 + 1e-3).all()


def unpacked(numbers: Tensor) -> Tensor:
    """int4, eight in an int32, the first lowest."""
    nibbles = torch.stack([(numbers.cpu() >> (4 * i)) & 15 for i in range(8)], -1).flatten(-2)
    return torch.where(nibbles > 7, nibbles - 16, nibbles)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("leading", [(), (1,)])
@pytest.mark.parametrize("packed", [False, True])
def test_rms_norm_quant(dtype, leading, packed):
    torch.manual_seed(0)
    x, gamma, beta = (torch.randn(*s).to(dtype) for s in ((3, 5, 24), (*leading, 24), (*leading, 24)))
    scale, offset = torch.tensor([20.0 if not packed else 2.0]).to(dtype), torch.tensor([3], dtype=torch.int8)
    y = torch_npu.npu_rms_norm_quant(
        *(t.npu() for t in (x, gamma, beta, scale, offset)), dst_dtype=torch.quint4x2 if packed else None
    )
    expected = rms_norm(x.double(), gamma.double().view(24), beta.double().view(24)) * scale.double() + 3
    if packed:
        assert y.shape == (3, 5, 3)
        close_to(unpacked(y), expected, -8, 7)
    else:
        assert y.dtype == torch.int8
        close_to(y, expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("div_mode", [False, True])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("shifted", [False, True])
def test_add_rms_norm_quant(dtype, div_mode, second, shifted):
    torch.manual_seed(0)
    x1, x2, gamma = (torch.randn(*s).to(dtype) for s in ((3, 5, 24), (3, 5, 24), (24,)))
    scales = [torch.rand(24) * s + s for s in ((0.03, 0.05) if div_mode else (20, 30))]
    zeros, beta = torch.randint(-9, 9, (24,), dtype=torch.int32), torch.randn(24).to(dtype) if shifted else None
    y1, y2, x = torch_npu.npu_add_rms_norm_quant(
        x1.npu(), x2.npu(), gamma.npu(), scales[0].npu(), zeros.npu(), None if beta is None else beta.npu(),
        scales[1].npu() if second else None, div_mode=div_mode,
    )  # fmt: skip
    total = x1.double() + x2.double()
    normal = rms_norm(total, gamma.double(), None if beta is None else beta.double())
    by = [normal / s.double() if div_mode else normal * s.double() for s in scales]
    assert_close(x, total, atol=torch.finfo(dtype).eps * 4)
    close_to(y1, by[0] + zeros)
    assert y2.shape == x1.shape
    if second:
        close_to(y2, by[1])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mask", [None, [True, False], [False, True], [True, True]])
@pytest.mark.parametrize("smooth", [0, 1, 2])
def test_add_rms_norm_dynamic_quant(dtype, packed, mask, smooth):
    torch.manual_seed(0)
    x1, x2, gamma, beta = (torch.randn(*s).to(dtype) for s in ((3, 5, 24), (3, 5, 24), (24,), (24,)))
    factors = [(torch.rand(24) + 0.5).to(dtype) for _ in range(2)]
    given = {f"smooth_scale{i + 1}": factors[i].npu() for i in range(smooth)}
    y1, y2, x, scale1, scale2 = torch_npu.npu_add_rms_norm_dynamic_quant(
        x1.npu(), x2.npu(), gamma.npu(), beta=beta.npu(), output_mask=mask,
        y_dtype=torch.quint4x2 if packed else None, **given,
    )  # fmt: skip
    total = x1.double() + x2.double()
    assert_close(x, total, atol=torch.finfo(dtype).eps * 4)
    normal = rms_norm(total, gamma.double(), beta.double())
    wanted = mask or [True, smooth == 2]
    for i, (y, scale) in enumerate(((y1, scale1), (y2, scale2))):
        if not wanted[i]:
            assert y.shape == scale.shape == ()
            continue
        values = normal * factors[i].double() if i < smooth else normal
        assert_close(scale, values.abs().amax(-1) / (7 if packed else 127), rtol=1e-5)
        numbers = unpacked(y) if packed else y
        close_to(numbers, values / scale.cpu().double()[..., None])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dims", [1, 2])
def test_add_rms_norm_in_place(dtype, dims):
    torch.manual_seed(0)
    x1, x2, gamma = torch.randn(3, 5, 8).to(dtype), torch.randn(3, 5, 8).to(dtype), torch.randn(3, 5, 8)[0].to(dtype)
    gamma = gamma if dims == 2 else gamma[0]
    total = x1.double() + x2.double()
    a, b = x1.npu(), x2.npu()
    rstd, norm, summed = torch_npu.npu_add_rms_norm_v2_functional(a, b, gamma.npu())
    assert torch.equal(a.cpu(), x1)
    assert torch.equal(b.cpu(), x2)
    again = torch_npu.npu_add_rms_norm_v2(a, b, gamma.npu())
    for actual, same in ((rstd, again), (norm, a), (summed, b)):
        assert torch.equal(actual, same)
    assert_close(norm, rms_norm(total, gamma.double()), atol=torch.finfo(dtype).eps * 4)
    assert_close(summed, total, atol=torch.finfo(dtype).eps * 4)
    dimensions = tuple(range(3 - dims, 3))
    assert_close(rstd, (total.square().mean(dimensions, keepdim=True) + 1e-6).rsqrt(), rtol=1e-5)


def group_norm_swish(
    x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float = 1e-5, swish_scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    parts = x.reshape(x.shape[0], groups, -1)
    mean, variance = parts.mean(-1), parts.var(-1, unbiased=False)
    y = torch.nn.functional.group_norm(x, groups, weight, bias, eps)
    return y * (y * swish_scale).sigmoid(), mean, (variance + eps).rsqrt()


CASES = [
    Case("npu_group_norm_swish", "4d",
         lambda: (torch.randn(2, 6, 3, 5, dtype=F64), 3, torch.randn(6, dtype=F64), torch.randn(6, dtype=F64)),
         group_norm_swish, gradients=(0, 2, 3), terms=30, scale=4),
    Case("npu_group_norm_swish", "scale",
         lambda: (torch.randn(3, 4, dtype=F64), 2, torch.randn(4, dtype=F64), torch.randn(4, dtype=F64), 1e-3, 1.5),
         group_norm_swish, gradients=(0, 2, 3), terms=2, gradient_terms=6, scale=8),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_group_norm_swish(case, dtype):
    check(case, dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_of_group_norm_swish(case):
    check_gradients(case, torch.float32)


X, G = torch.ones(2, 12), torch.ones(12)
REFUSED = {
    "gamma": (lambda x, g: torch_npu.npu_rms_norm_quant(x, g[:8], g[:8], g[:1], g[:1]), ValueError, "gamma and beta"),
    "int4": (
        lambda x, g: torch_npu.npu_rms_norm_quant(x, g, g, g[:1], g[:1], dst_dtype=torch.quint4x2), ValueError,
        "multiple of 8",
    ),
    "dtype": (
        lambda x, g: torch_npu.npu_rms_norm_quant(x, g, g, g[:1], g[:1], dst_dtype=torch.int32), TypeError, "dst_dtype"
    ),
    "scales": (lambda x, g: torch_npu.npu_add_rms_norm_quant(x, x, g, g[:1], None), ValueError, "scales1"),
    "zero points": (
        lambda x, g: torch_npu.npu_add_rms_norm_quant(x, x, g, g, None, zero_points2=g), ValueError, "needs scales2"
    ),
    "mask": (
        lambda x, g: torch_npu.npu_add_rms_norm_dynamic_quant(x, x, g, output_mask=[False, False]), ValueError,
        "name one result",
    ),
    "pair": (lambda x, g: torch_npu.npu_add_rms_norm_v2(x, x[:1], g), ValueError, "one shape"),
    "swish": (lambda x, g: torch_npu.npu_group_norm_swish(x, 5, g, g), ValueError, "multiple of num_groups"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call(X.npu(), G.npu())
