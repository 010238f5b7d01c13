"""swiglu with quantization (torch_npu/composed/swiglu_quantization.py), by its definition in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]


def swiglu(x: Tensor, limit: float = 0.0) -> Tensor:
    gate, up = x.chunk(2, -1)
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * gate.sigmoid() * up


@DEVICES
@pytest.mark.parametrize("target", FLOAT8, ids=str)
@pytest.mark.parametrize("mode", ["blocks", "rounded blocks", "microscaled"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("limit", [-1.0, 0.7])
@pytest.mark.parametrize("shape", [(7, 2 * 260), (2, 3, 2 * 33)])
def test_groups(device, target, mode, weighted, limit, shape):
    x, weight = torch.randn(shape).bfloat16(), torch.rand(shape[:-1])
    x[0] = 0
    counts = torch.tensor([1, 0, 3])
    y, scale, rest = torch_npu.npu_swiglu_group_quant(
        x.to(device), weight=weight.to(device) if weighted else None, group_index=counts.to(device), dst_type=target,
        quant_mode=int(mode == "microscaled"), round_scale=mode != "blocks", clamp_limit=limit,
    )  # fmt: skip
    assert (rest.shape, rest.dtype, y.dtype) == ((0,), torch.bfloat16, target)
    expected = swiglu(x.double(), limit) * (weight.double().unsqueeze(-1) if weighted else 1)
    size, width = 32 if mode == "microscaled" else 128, shape[-1] // 2
    factors = scale.cpu().double() if mode != "microscaled" else 2.0 ** (scale.flatten(-2).cpu().double() - 127)
    factors = factors.repeat_interleave(size, -1)[..., :width]
    used = (torch.arange(weight.numel()) < 4).view(*shape[:-1], 1)
    assert not y.cpu().float().where(~used, 0).any()
    padded = torch.nn.functional.pad(expected, (0, -width % size)).unflatten(-1, (-1, size))
    raw = padded.abs().amax(-1).clamp_min(1e-4) / torch.finfo(target).max
    raw = raw.repeat_interleave(size, -1)[..., :width].where(used, 1)
    if mode == "blocks":
        assert_close(factors.where(used, 1).float(), raw)
    else:  # the next power of two; 1e-6 for magnitudes that float32 rounds across one
        ratio = factors.where(used, 1) / raw
        assert (ratio.where(used, 1) >= 1 - 1e-6).all()
        assert (ratio.where(used, 1) <= 2 + 1e-6).all()
        assert (factors.where(used, 1).log2() % 1 == 0).all()
    back = y.cpu().double() * factors
    step = 2.0 ** (-4 if target == FLOAT8[0] else -3)
    least = 2.0 ** (-10 if target == FLOAT8[0] else -17)
    error = (back - expected).abs().where(used, 0)
    assert (error <= step * 1.001 * expected.abs() + least * factors).all()


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("limit", [0.0, 0.7])
@pytest.mark.parametrize("shape", [(5, 14), (2, 3, 6)])
def test_gradients(device, dtype, grouped, weighted, limit, shape):
    x, weight = torch.randn(shape).to(dtype), torch.rand(*shape[:-1], 1)
    grad = torch.randn(*shape[:-1], shape[-1] // 2).to(dtype)
    leaf, factor = x.double().requires_grad_(), weight.double().requires_grad_()
    y = swiglu(leaf, limit)
    used = (torch.arange(weight.numel()) < 3).view(weight.shape) if grouped else torch.ones_like(weight).bool()
    (y * (factor if weighted else 1) * grad.double()).where(used, 0).sum().backward()
    y_origin = swiglu(x.double(), limit).to(dtype)
    dx, dweight = torch_npu.npu_swiglu_group_quant_backward(
        grad.to(device), x.to(device), weight=weight.to(device) if weighted else None,
        y_origin=y_origin.to(device) if weighted else None,
        group_index=torch.tensor([1, 2], device=device) if grouped else None, clamp_limit=limit,
    )  # fmt: skip
    assert dx.dtype == dtype
    assert_close(dx, leaf.grad, terms=4)
    if not weighted:
        assert dweight.numel() == 0
        return
    sums = (grad.double() * y_origin.double()).sum(-1, keepdim=True).where(used, 0)
    assert dweight.dtype == torch.float32
    assert_close(dweight, sums, terms=16)


@DEVICES
@pytest.mark.parametrize("target", FLOAT8, ids=str)
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(("split", "axis"), [(-1, -1), (-1, 0), (-2, -1), (0, -2)])
def test_microscaled(device, target, left, split, axis):
    x = torch.randn(70, 66).bfloat16()
    found = torch_npu.npu_swiglu_mx_quant(
        x.to(device), activate_dim=split, activate_left=left, axis=axis, dst_type=target, scale_alg=1
    )
    first, second = x.float().to(device).chunk(2, split)
    gate, up = (first, second) if left else (second, first)
    y = torch.nn.functional.silu(gate) * up
    for actual, expected in zip(
        found, torch_npu.npu_dynamic_mx_quant(y, axis=axis, dst_type=target, scale_alg=1), strict=True
    ):
        assert torch.equal(actual.float(), expected.float())


@DEVICES
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("axis", [-1, -2])
def test_variant_in_groups(device, counts, axis):
    x, ends = torch.randn(70, 66).bfloat16().to(device) * 4, torch.tensor([3, 41, 69], device=device)
    y, powers = torch_npu.npu_swiglu_mx_quant(
        x, group_index=ends.diff(prepend=ends[:1] * 0) if counts else ends, group_mode=0 if counts else 1,
        swiglu_mode=1, clamp_limit=2.0, glu_alpha=1.5, glu_bias=0.5, axis=axis, dst_type=24,
    )  # fmt: skip
    gate, up = x.float()[:, ::2].clamp(max=2), x.float()[:, 1::2].clamp(-2, 2)
    wide = gate * (1.5 * gate).sigmoid() * (up + 0.5)
    if axis == -1:
        expected = torch_npu.npu_dynamic_mx_quant(wide, dst_type=24)
    else:
        expected = torch_npu.npu_grouped_dynamic_mx_quant(wide, ends, dst_type=24)
    assert torch.equal(y[:69].float(), expected[0][:69].float())
    if axis == -1:
        assert torch.equal(powers[:69], expected[1][:69])
        assert not y[69:].float().any()


@DEVICES
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_both_axes(device, left, grouped, backward):
    x, grad = torch.randn(70, 66).bfloat16(), torch.randn(70, 33).bfloat16()
    ends = torch.tensor([3, 70], device=device) if grouped else None
    leaf = x.float().to(device).requires_grad_()
    first, second = leaf.chunk(2, -1)
    y = torch.nn.functional.silu(first if left else second) * (second if left else first)
    if backward:
        found = torch.ops.npu._npu_swiglu_backward_mx_quant_with_dual_axis(
            x.to(device), grad.to(device), group_index=ends, activate_left=left
        )
        (y,) = torch.autograd.grad(y, leaf, grad.float().to(device))
    else:
        found = torch_npu.npu_swiglu_mx_quant_with_dual_axis(x.to(device), group_index=ends, activate_left=left)
    options = {"dst_type": torch.float8_e4m3fn, "scale_alg": 1}
    expected = [*torch_npu.npu_dynamic_mx_quant(y.detach(), **options)]
    if grouped:
        expected += torch_npu.npu_grouped_dynamic_mx_quant(y.detach(), ends, **options)
    else:
        expected += torch_npu.npu_dynamic_mx_quant(y.detach(), axis=0, **options)
    assert [t.shape for t in found] == [t.shape for t in expected]
    for actual, reference in zip(found[1::2], expected[1::2], strict=True):
        assert (actual.int() - reference.int()).abs().max() <= 1  # a magnitude that is rounded across a power
        assert (actual == reference).float().mean() > 0.99
    for actual, reference in zip(found[::2], expected[::2], strict=True):
        assert (actual.float() == reference.float()).float().mean() > 0.97


X = torch.zeros(2, 64)
REFUSED = {
    "hifloat8": (NotImplementedError, "hifloat8", lambda: torch_npu.npu_swiglu_group_quant(X, quant_mode=3)),
    "origin": (
        NotImplementedError, "output_origin=True", lambda: torch_npu.npu_swiglu_group_quant(X, output_origin=True)
    ),
    "mode": (ValueError, "round_scale", lambda: torch_npu.npu_swiglu_group_quant(X, quant_mode=1)),
    "weight": (ValueError, "a weight", lambda: torch_npu.npu_swiglu_group_quant(X, weight=torch.zeros(3))),
    "y_origin": (
        ValueError, "y_origin", lambda: torch_npu.npu_swiglu_group_quant_backward(X[:, :32], X, weight=torch.zeros(2))
    ),
    "four bits": (NotImplementedError, "dst_type must be", lambda: torch_npu.npu_swiglu_mx_quant(X)),
    "axis": (ValueError, "last axes", lambda: torch_npu.npu_swiglu_mx_quant(X, dst_type=24, axis=2)),
    "variant": (
        ValueError, "swiglu_mode", lambda: torch_npu.npu_swiglu_mx_quant(X, dst_type=24, activate_dim=0, swiglu_mode=1)
    ),
    "halves": (ValueError, r"x \[M, 2 N\]", lambda: torch_npu.npu_swiglu_mx_quant_with_dual_axis(X[0])),
    "gradient": (
        ValueError, "y_grad", lambda: torch.ops.npu._npu_swiglu_backward_mx_quant_with_dual_axis(X, X)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    error, message, call = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
