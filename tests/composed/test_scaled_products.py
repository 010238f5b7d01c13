"""Products of quantized matrices and what follows them (torch_npu/composed/scaled_products.py)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torch_npu
from tests.tolerance import assert_close

FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]


def int8(*shape: int) -> Tensor:
    return torch.randint(-20, 20, shape, dtype=torch.int8)


def powers(shape: tuple[int, ...]) -> Tensor:
    return torch.randint(124, 130, shape, dtype=torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("approximate", ["gelu_erf", "gelu_tanh"])
def test_gelu(dtype, approximate):
    x1, x2 = int8(5, 24), int8(24, 7)
    s1, s2, bias = torch.rand(5) / 40, torch.rand(7) / 40, torch.randint(-9, 9, (7,)).int()
    s2 = s2.to(torch.bfloat16) if dtype == torch.bfloat16 else s2
    actual = torch_npu.npu_quant_matmul_gelu(
        *(t.npu() for t in (x1, x2, s1, s2)), bias=bias.npu(), approximate=approximate
    )
    product = (x1.double() @ x2.double() + bias) * s2.double() * s1.double()[:, None]
    expected = torch.nn.functional.gelu(product, approximate="tanh" if approximate == "gelu_tanh" else "none")
    assert actual.dtype == dtype
    assert_close(actual, expected, terms=4, atol=torch.finfo(dtype).eps * 4)


def test_sum_over_a_batch():
    x1, x2 = int8(3, 5, 24), int8(3, 24, 7)
    s1, s2 = torch.rand(3, 5) / 40, (torch.rand(7) / 40).bfloat16()
    actual = torch_npu.npu_quant_matmul_reduce_sum(x1.npu(), x2.npu(), x1_scale=s1.npu(), x2_scale=s2.npu())
    expected = (x1.double() @ x2.double() * s1.double()[..., None]).sum(0) * s2.double()
    assert actual.dtype == torch.bfloat16
    assert_close(actual, expected)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("k", [64, 70])
def test_added_products(dtype, k):
    x1, x2, y = torch.randn(k, 5).to(dtype), torch.randn(k, 7).to(dtype), torch.randn(5, 7)
    pairs = -(-k // 64)
    s1, s2 = powers((pairs, 5, 2)), powers((pairs, 7, 2))
    wide = [
        x.double() * 2.0 ** (s.double() - 127).transpose(1, 2).flatten(0, 1).repeat_interleave(32, 0)[:k]
        for x, s in ((x1, s1), (x2, s2))
    ]
    given = [t.npu() for t in (x1, x2, s2.view(torch.float8_e8m0fnu))]
    target = y.npu()
    made = torch_npu.npu_add_quant_matmul(target, *given, x1_scale=s1.npu(), group_sizes=[1, 1, 32])
    assert torch.equal(target.cpu(), y)
    assert_close(made, y.double() + wide[0].T @ wide[1], terms=k, atol=1e-4)
    assert torch_npu.npu_add_quant_matmul_(target, *given, x1_scale=s1.npu()) is target
    assert torch.equal(target, made)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("blocks", [False, True])
def test_batches_that_are_turned(dtype, turned, blocks):
    m, b, k, n = 5, 3, 128, 7
    x1, x2 = torch.randn(m, b, k).to(dtype), torch.randn(b, k, n).to(dtype)
    if blocks:
        s1, s2 = powers((m, b, 2, 2)), powers((b, 2, n, 2))
        left = x1.double() * 2.0 ** (s1.double() - 127).flatten(2).repeat_interleave(32, 2)
        right = x2.double() * 2.0 ** (s2.double() - 127).transpose(2, 3).flatten(1, 2).repeat_interleave(32, 1)
        expected = torch.einsum("mbk,bkn->mbn", left, right)
        s2 = s2.transpose(1, 2).contiguous() if turned else s2
    else:
        s1, s2 = torch.rand(m), torch.rand(n)
        expected = torch.einsum("mbk,bkn->mbn", x1.double(), x2.double()) * s1[:, None, None] * s2
    given = x2.float().transpose(1, 2).contiguous().to(dtype) if turned else x2
    actual = torch_npu.npu_transpose_quant_batchmatmul(
        x1.npu(), given.npu(), torch.bfloat16, x1_scale=s1.npu(), x2_scale=s2.npu(), perm_x1=[1, 0, 2],
        perm_x2=[0, 2, 1] if turned else [0, 1, 2], perm_y=[1, 0, 2],
    )  # fmt: skip
    assert actual.dtype == torch.bfloat16
    assert_close(actual, expected, terms=4, atol=0.02 * expected.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolution(dtype, fixed, groups):
    x, weight = int8(2, 4, 7, 6), int8(6, 4 // groups, 3, 2)
    scale, bias = torch.rand(6) / 40, torch.randint(-99, 99, (6,)).int()
    given = torch_npu.npu_trans_quant_param(scale.npu()) if fixed else scale.npu()
    if fixed:  # it keeps 19 bits
        scale = (scale.view(torch.int32) & -8192).view(torch.float32)
    actual = torch_npu.npu_quant_conv2d(
        x.npu(), weight.npu(), given, [2, 1], [1, 0], [1, 2], groups, output_dtype=dtype, bias=bias.npu()
    )
    shape = ([2, 1], [1, 0], [1, 2], groups)
    expected = torch.nn.functional.conv2d(x.double(), weight.double(), bias.double(), *shape)
    assert actual.dtype == dtype
    assert_close(actual, expected * scale.double()[:, None, None])
    plain = torch_npu.npu_quant_conv2d(x.npu(), int8(6, 4, 1, 1).npu(), scale.npu())
    assert plain.shape == (2, 6, 7, 6)
    assert plain.dtype == torch.float16


X, F8 = torch.zeros(64, 4), torch.zeros(64, 4).to(torch.float8_e4m3fn)
S = powers((1, 4, 2))
REFUSED = {
    "gelu": (
        ValueError, "approximate", lambda: torch_npu.npu_quant_matmul_gelu(X, X, X, X, approximate="tanh")
    ),
    "batch": (ValueError, "x1_scale", lambda: torch_npu.npu_quant_matmul_reduce_sum(X[None], X[None])),
    "dtype": (TypeError, "float8", lambda: torch_npu.npu_add_quant_matmul(X[:4], X, X, S, x1_scale=S)),
    "scale": (ValueError, "a scale in", lambda: torch_npu.npu_add_quant_matmul(X[:4], F8, F8, S)),
    "groups": (
        NotImplementedError, "group_sizes",
        lambda: torch_npu.npu_add_quant_matmul(X[:4], F8, F8, S, x1_scale=S, group_sizes=[1, 1, 64]),
    ),
    "order": (
        ValueError, "perm_x1",
        lambda: torch_npu.npu_transpose_quant_batchmatmul(F8[None], F8[None], torch.float16, perm_x1=[0, 1, 2]),
    ),
    "convolution": (TypeError, "int8", lambda: torch_npu.npu_quant_conv2d(X[None], X[None], X[0])),
    "offset": (
        NotImplementedError, "offset_x=3", lambda: torch_npu.npu_quant_conv2d(X[None], X[None], X[0], offset_x=3)
    ),
    "bias": (
        NotImplementedError, "bias is not",
        lambda: torch_npu.npu_transpose_quant_batchmatmul(F8[None], F8[None], torch.float16, bias=X),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    error, message, call = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
