"""Quantization by blocks and microscaling (torch_npu/composed/block_quantization.py), block by block in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
LARGEST_EXPONENT = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 15}


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", [torch.int8, *FLOAT8], ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(1, 128), (2, 3)])
@pytest.mark.parametrize("shape", [(5, 130), (2, 3, 7), (0, 4)])
def test_blocks(device, dtype, target, rows, columns, shape):
    x = torch.randn(shape).to(dtype)
    y, scale = torch_npu.npu_dynamic_block_quant(
        x.to(device), dst_type=target, row_block_size=rows, col_block_size=columns, min_scale=0.5
    )
    assert y.dtype == target
    assert y.shape == x.shape
    assert scale.shape == (*shape[:-2], -(-shape[-2] // rows), -(-shape[-1] // columns))
    largest = 127 if target == torch.int8 else torch.finfo(target).max
    for i in range(scale.shape[-2]):
        for j in range(scale.shape[-1]):
            block = x[..., rows * i : rows * i + rows, columns * j : columns * j + columns].double()
            expected = (block.abs().amax((-2, -1)) / largest).clamp_max(2)
            assert_close(scale[..., i, j], expected)
            found = y[..., rows * i : rows * i + rows, columns * j : columns * j + columns].cpu().float()
            # Half a unit of 2, 3 or 7 bits.
            step = {torch.int8: 0.51, torch.float8_e4m3fn: 1 / 16, torch.float8_e5m2: 1 / 8}[target]
            wide = block / expected[..., None, None].clamp_min(1e-30)
            allowed = step if target == torch.int8 else step * wide.abs() + 2**-9
            assert not ((found - wide).abs() > allowed).any()


def test_blocks_of_zeros():
    y, scale = torch_npu.npu_dynamic_block_quant(torch.zeros(2, 4).half().npu())
    assert not y.any()
    assert not scale.any()


def shared_exponent(block: Tensor, dtype: torch.dtype, alg: int) -> int:
    largest = block.abs().max().item()
    if largest == 0:
        return 0
    if alg == 0:
        return max(0, math.floor(math.log2(largest)) - LARGEST_EXPONENT[dtype] + 127)
    return max(0, math.ceil(math.log2(float(torch.tensor(largest / torch.finfo(dtype).max)))) + 127)


@DEVICES
@pytest.mark.parametrize("target", FLOAT8, ids=str)
@pytest.mark.parametrize("alg", [0, 1])
@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_microscaling(device, target, alg, axis, dtype):
    x = (torch.randn(70, 3, 33) * 10 ** torch.randint(-3, 3, (70, 3, 33))).to(dtype)
    x[:2] = 0
    y, scale = torch_npu.npu_dynamic_mx_quant(x.to(device), axis=axis, dst_type=target, scale_alg=alg)
    size = x.shape[axis]
    shape = list(x.shape)
    shape[axis] = -(-size // 64)
    assert list(scale.shape) == [*shape, 2]
    assert scale.dtype == torch.uint8
    assert y.dtype == target
    rows, found = x.movedim(axis, -1).reshape(-1, size), y.cpu().movedim(axis, -1).reshape(-1, size)
    shared = scale.cpu().movedim(axis if axis >= 0 else axis - 1, -2).reshape(len(rows), -1)
    largest = torch.finfo(target).max
    for row in range(0, len(rows), 7):
        for start in range(0, size, 32):
            block = rows[row, start : start + 32]
            exponent = shared_exponent(block, target, alg)
            assert shared[row, start // 32] == exponent
            expected = (block.float() * 2.0 ** (127 - exponent)).clamp(-largest, largest).to(target)
            assert torch.equal(found[row, start : start + 32].float(), expected.float())
    back = torch_npu.npu_anti_mx_quant(y, scale, axis=axis, dst_type=torch.float32)
    for row in range(0, len(rows), 7):
        powers = 2.0 ** (shared[row].double() - 127).repeat_interleave(32)[:size]
        assert_close(back.cpu().movedim(axis, -1).reshape(-1, size)[row], found[row].double() * powers)


def test_two_axes():
    x = torch.randn(2, 40, 66).bfloat16().npu()
    found = torch_npu.npu_dynamic_mx_quant_with_dual_axis(x, dst_type=torch.float8_e4m3fn)
    for number, axis in ((0, -1), (2, -2)):
        y, scale = torch_npu.npu_dynamic_mx_quant(x, axis=axis, dst_type=torch.float8_e4m3fn)
        assert torch.equal(found[number].float(), y.float())
        assert torch.equal(found[number + 1], scale)


def test_what_is_not_finite():
    x = torch.ones(3, 32)
    x[0, 3], x[1, 4] = torch.inf, torch.nan
    y, scale = torch_npu.npu_dynamic_mx_quant(x.npu(), dst_type=torch.float8_e5m2)
    assert scale[:, 0, 0].tolist() == [255, 255, 127 - 15]
    assert y[:2].float().isnan().all()
    assert torch_npu.npu_anti_mx_quant(y, scale)[0].isnan().all()


X = torch.zeros(2, 64)
REFUSED = {
    "four bits": (NotImplementedError, "dst_type must be", lambda: torch_npu.npu_dynamic_mx_quant(X)),
    "algorithm": (
        NotImplementedError, "scale_alg", lambda: torch_npu.npu_dynamic_mx_quant(X, dst_type=23, scale_alg=2)
    ),
    "largest": (
        NotImplementedError, "dst_type_max=6.0",
        lambda: torch_npu.npu_dynamic_mx_quant(X, dst_type=23, dst_type_max=6.0),
    ),
    "axis": (ValueError, "an axis", lambda: torch_npu.npu_dynamic_mx_quant(X, dst_type=23, axis=2)),
    "scale": (
        ValueError, "two powers",
        lambda: torch_npu.npu_anti_mx_quant(X.to(torch.float8_e5m2), torch.zeros(2, 2, 2).byte()),
    ),
    "float": (NotImplementedError, "x must be", lambda: torch_npu.npu_anti_mx_quant(X, X[None])),
    "rounding": (
        NotImplementedError, "round_mode='floor'", lambda: torch_npu.npu_dynamic_block_quant(X, round_mode="floor")
    ),
    "dims": (ValueError, r"x \[M, N\]", lambda: torch_npu.npu_dynamic_block_quant(X[0])),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    error, message, call = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
