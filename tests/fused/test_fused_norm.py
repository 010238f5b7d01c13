"""Normalizations, gated activations, masked softmax and rotary embedding against float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from operator_case import FLOATS, Case, check, check_gradients, with_strides
from torch import Tensor

import torch_npu

F64 = torch.float64


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=F64)


def moments(x: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and centred mean square over the last dimensions, kept."""
    dims = tuple(range(x.dim() - like.dim(), x.dim()))
    mean = x.mean(dims, keepdim=True)
    return mean, (x - mean).square().mean(dims, keepdim=True)


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    dims = tuple(range(x.dim() - gamma.dim(), x.dim()))
    rstd = (x.square().mean(dims, keepdim=True) + epsilon).rsqrt()
    return x * rstd * gamma, rstd


def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, ...]:
    return (*rms_norm(x1 + x2, gamma, epsilon), x1 + x2)


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    mean, variance = moments(x, gamma)
    rstd = (variance + epsilon).rsqrt()
    return (x - mean) * rstd * gamma + beta, mean, rstd


def add_layer_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor, epsilon: float = 1e-5, additional_output: bool = False
) -> tuple[Tensor | None, ...]:
    return (*layer_norm(x1 + x2, gamma, beta, epsilon), x1 + x2 if additional_output else None)


def deep_norm(
    x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor, alpha: float = 0.3, epsilon: float = 1e-6
) -> tuple[Tensor, ...]:
    y, mean, rstd = layer_norm(x * alpha + gx, gamma, beta, epsilon)
    return mean, rstd, y


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return torch.nn.functional.gelu(x, approximate=approximate)


def swiglu(x: Tensor, dim: int = -1) -> Tensor:
    a, b = x.chunk(2, dim)
    return torch.nn.functional.silu(a) * b


def geglu(x: Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False) -> tuple[Tensor, Tensor]:
    a, b = x.chunk(2, dim)
    if activate_left:
        a, b = b, a
    g = gelu(b, "tanh" if approximate else "none")
    return a * g, g


def gelu_mul(x: Tensor, approximate: str = "none") -> Tensor:
    a, b = x.chunk(2, -1)
    return gelu(a, approximate) * b


def masked_softmax(x: Tensor, mask: Tensor, scale: float = 1, fixed_triu_mask: bool = False) -> Tensor:
    hidden = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1) if fixed_triu_mask else mask
    return (x * scale).masked_fill(hidden, -10000).softmax(-1)


def rotated(x: Tensor, mode: str) -> Tensor:
    if mode == "interleave":
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def rotary_mul(x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half") -> Tensor:
    return x * r1 + rotated(x, rotary_mode) * r2


def apply_rotary(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: str = "BSND", rotary_mode: str = "half"
) -> Any:
    return rotary_mul(q, cos, sin, rotary_mode), rotary_mul(k, cos, sin, rotary_mode)


def group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor, group: int, eps: float = 1e-5) -> tuple[Tensor, ...]:
    y = torch.nn.functional.silu(torch.nn.functional.group_norm(x, group, weight, bias, eps))
    rows = x.reshape(x.shape[0], group, -1)
    return y, rows.mean(-1), (rows.var(-1, correction=0) + eps).rsqrt()


def masked() -> tuple[Tensor, Tensor]:
    return randn(2, 3, 5, 37), torch.rand(2, 1, 5, 37) < 0.4


CASES = [
    Case("npu_rms_norm", "odd", lambda: (randn(3, 5, 37), randn(37)), rms_norm, gradients=(0, 1), gradient_terms=15),
    Case("npu_rms_norm", "two-dims", lambda: (randn(4, 3, 50), randn(3, 50)), rms_norm, gradients=(0, 1), scale=4),
    Case("npu_rms_norm", "long", lambda: (randn(3, 4096), randn(4096)), rms_norm, gradients=(0, 1), scale=4),
    Case("npu_rms_norm", "strided", lambda: (with_strides(randn(3, 20)), randn(20)), rms_norm, gradients=(0, 1),
         scale=2),
    Case("npu_rms_norm", "one-column", lambda: (randn(5, 1), randn(1)), rms_norm),
    Case("npu_rms_norm", "empty", lambda: (randn(0, 8), randn(8)), rms_norm),
    Case("npu_gemma_rms_norm", "odd", lambda: (randn(7, 33), randn(33)), lambda x, g: rms_norm(x, g + 1),
         gradients=(0, 1), gradient_terms=7, scale=2),
    Case("npu_add_rms_norm", "odd", lambda: (randn(3, 5, 37), randn(3, 5, 37), randn(37)), add_rms_norm,
         gradients=(0, 1, 2), cotangents=(0, 2), gradient_terms=15, scale=4),
    Case("npu_add_rms_norm_cast", "odd", lambda: (randn(4, 65), randn(4, 65), randn(65)),
         lambda a, b, g: (rms_norm(a + b, g)[0],) * 2 + (rms_norm(a + b, g)[1], a + b), dtypes=(torch.float32,)),
    Case("npu_add_layer_norm", "odd", lambda: (randn(3, 5, 37), randn(3, 5, 37), randn(37), randn(37)), add_layer_norm,
         gradients=(0, 1, 2, 3), gradient_terms=15, scale=8),
    Case("npu_add_layer_norm", "sum", lambda: (randn(4, 64), randn(4, 64), randn(64), randn(64), 1e-5, True),
         add_layer_norm, gradients=(0, 1), cotangents=(0, 3), scale=8),
    Case("npu_deep_norm", "odd", lambda: (randn(3, 5, 37), randn(3, 5, 37), randn(37), randn(37)), deep_norm,
         gradients=(0, 1, 2, 3), cotangents=(2,), gradient_terms=15, scale=8),
    Case("npu_group_norm_silu", "odd", lambda: (randn(2, 6, 5, 7), randn(6), randn(6), 3), group_norm_silu, scale=4,
         terms=4),
    Case("npu_swiglu", "odd", lambda: (randn(5, 74),), swiglu, gradients=(0,), scale=2),
    Case("npu_swiglu", "first-dim", lambda: (randn(6, 5, 3), 0), swiglu, gradients=(0,), scale=2),
    Case("npu_swiglu", "strided", lambda: (with_strides(randn(5, 34)),), swiglu, gradients=(0,), scale=2),
    Case("npu_swiglu", "empty", lambda: (randn(0, 34),), swiglu),
    Case("npu_geglu", "tanh", lambda: (randn(5, 74),), geglu, gradients=(0,), scale=2),
    Case("npu_geglu", "erf-left", lambda: (randn(5, 74), -1, 0, True), geglu, gradients=(0,), scale=2),
    Case("npu_gelu", "none", lambda: (randn(5, 37),), gelu, gradients=(0,)),
    Case("npu_gelu", "tanh", lambda: (randn(5, 37),), gelu, keywords={"approximate": "tanh"}, gradients=(0,)),
    Case("npu_gelu_mul", "none", lambda: (randn(5, 74),), gelu_mul, scale=2),
    Case("npu_fast_gelu", "odd", lambda: (randn(5, 37),), lambda x: x * torch.sigmoid(1.702 * x), gradients=(0,)),
    Case("npu_silu", "odd", lambda: (randn(5, 37),), torch.nn.functional.silu, gradients=(0,)),
    Case("npu_mish", "odd", lambda: (randn(5, 37),), torch.nn.functional.mish, gradients=(0,)),
    Case("npu_scaled_masked_softmax", "mask", lambda: (*masked(), 0.5), masked_softmax, gradients=(0,)),
    Case("npu_scaled_masked_softmax", "triangle", lambda: (*masked(), 0.5, True), masked_softmax, gradients=(0,)),
    Case("npu_rotary_mul", "half", lambda: (randn(2, 5, 3, 24), randn(1, 5, 1, 24), randn(1, 5, 1, 24)), rotary_mul,
         gradients=(0, 1, 2), gradient_terms=12, scale=4),
    Case("npu_rotary_mul", "interleave",
         lambda: (randn(5, 2, 3, 38), randn(5, 1, 1, 38), randn(5, 1, 1, 38), "interleave"), rotary_mul,
         gradients=(0, 1, 2), gradient_terms=12, scale=4),
    Case("npu_rotary_mul", "matrix",
         lambda: (randn(2, 5, 3, 24), randn(1, 5, 1, 24), randn(1, 5, 1, 24), "half", randn(24, 24)),
         lambda x, r1, r2, mode, matrix: x * r1 + x @ matrix * r2, gradients=(0, 1, 2), terms=24, gradient_terms=150,
         scale=8),
    Case("npu_rotary_mul", "transposed",
         lambda: (randn(2, 5, 3, 24).transpose(1, 2), randn(1, 1, 5, 24), randn(1, 1, 5, 24)), rotary_mul,
         gradients=(0,), scale=4),
    Case("npu_apply_rotary_pos_emb", "half",
         lambda: (randn(2, 5, 4, 24), randn(2, 5, 2, 24), randn(2, 5, 1, 24), randn(2, 5, 1, 24)), apply_rotary,
         gradients=(0, 1), cotangents=(0, 1), scale=4),
    Case("npu_apply_rotary_pos_emb", "TND",
         lambda: (randn(7, 4, 24), randn(7, 2, 24), randn(7, 1, 24), randn(7, 1, 24), "TND", "interleave"),
         apply_rotary, scale=4),
    Case("npu_interleave_rope", "odd", lambda: (randn(2, 3, 5, 16), randn(2, 1, 5, 16), randn(2, 1, 5, 16)),
         lambda x, c, s: rotary_mul(torch.cat((x[..., ::2], x[..., 1::2]), -1), c, s), scale=4),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(case: Case, dtype: torch.dtype) -> None:
    if dtype in case.dtypes:
        check(case, dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", [c for c in CASES if c.gradients], ids=str)
def test_gradients(case: Case, dtype: torch.dtype) -> None:
    check_gradients(case, dtype)


def test_parameters_in_float32() -> None:
    torch.manual_seed(0)
    x, gamma = torch.randn(5, 33).bfloat16(), torch.randn(33)
    y, rstd = torch_npu.npu_rms_norm(x.npu(), gamma.npu())
    assert (y.dtype, rstd.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(y.cpu(), rms_norm(x.double(), gamma.double())[0].bfloat16(), atol=2e-2, rtol=1.6e-2)


def test_mixed_dtypes_of_add_layer_norm() -> None:
    x1, x2, ones = torch.randn(4, 8), torch.randn(4, 8).half(), torch.ones(8)
    y, *_ = torch_npu.npu_add_layer_norm(x1.npu(), x2.npu(), ones.npu(), ones.npu())
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.cpu(), layer_norm(x1 + x2.float(), ones, ones, 1e-5)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_inf_stay_in_their_row(bad: float) -> None:
    x = torch.randn(3, 40)
    x[1, 7] = bad
    ones = torch.ones(40)
    expected = rms_norm(x.double(), ones.double())[0].float()
    torch.testing.assert_close(torch_npu.npu_rms_norm(x.npu(), ones.npu())[0].cpu(), expected, equal_nan=True)
    torch.testing.assert_close(torch_npu.npu_swiglu(x.npu()).cpu(), swiglu(x), equal_nan=True, atol=1e-6, rtol=1e-5)
    scores = x.view(1, 1, 3, 40)
    none = torch.zeros(1, 1, 3, 40, dtype=torch.bool)
    softmax = torch_npu.npu_scaled_masked_softmax(scores.npu(), none.npu()).cpu()
    torch.testing.assert_close(softmax, scores.softmax(-1), equal_nan=True, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("columns", [512, 1019])
def test_results_larger_than_the_caches(columns: int, dtype: torch.dtype) -> None:
    """They are written past them, in rows that begin with a vector or not."""
    scores, hidden = randn(2, 3, 750, columns).to(dtype), torch.rand(2, 1, 750, columns) < 0.2
    target = torch.randint(columns, (4500,))
    assert scores.nbytes > 4 << 20
    unit = torch.finfo(dtype).eps
    weights = torch_npu.npu_scaled_masked_softmax(scores.npu(), hidden.npu(), 0.5).cpu()
    expected = masked_softmax(scores.double(), hidden, 0.5)
    torch.testing.assert_close(weights.double(), expected, rtol=4 * unit, atol=1e-5)
    log_weights = torch_npu.npu_cross_entropy_loss(scores.view(4500, columns).npu(), target.npu())[1].cpu()
    expected = scores.view(4500, columns).double().log_softmax(-1)
    torch.testing.assert_close(log_weights.double(), expected, rtol=2 * unit, atol=4 * unit)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: torch_npu.npu_rms_norm(x, x[0, :3]), ValueError, r"gamma must have the shape.*self float32\[4, 8\]"),
        (
            lambda x: torch_npu.npu_rms_norm(x.double(), x[0]),
            TypeError,
            "self is float64; expected float16, float32, bfloat16",
        ),
        (lambda x: torch_npu.npu_add_rms_norm(x, x[:2], x[0]), ValueError, "x1 and x2 must have one shape"),
        (lambda x: torch_npu.npu_swiglu(x[:, :3]), ValueError, "even size along dim.*dim=-1"),
        (lambda x: torch_npu.npu_swiglu(x, 2), ValueError, "dim must be a dimension of self"),
        (lambda x: torch_npu.npu_geglu(x, -1, 2), ValueError, "approximate must be 0"),
        (lambda x: torch_npu.npu_gelu(x, approximate="fast"), ValueError, "approximate=fast"),
        (lambda x: torch_npu.npu_rotary_mul(x, x, x, "quarter"), ValueError, "rotary_mode=quarter"),
        (lambda x: torch_npu.npu_rotary_mul(x, x, x, "half", x), ValueError, r"rotate must be a matrix \[D, D\]"),
        (lambda x: torch_npu.npu_rotary_mul(x, x[0], x[0, :4]), ValueError, "one shape"),
        (lambda x: torch_npu.npu_scaled_masked_softmax(x, x > 0), ValueError, "x must have 4 dimensions"),
        (lambda x: torch_npu.npu_group_norm_silu(x, None, None, 3), ValueError, "multiple of group"),
    ],
)
def test_refusals(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(torch.randn(4, 8).npu())


def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch_npu.npu_rms_norm(torch.randn(4, 8).npu(), torch.randn(8))
