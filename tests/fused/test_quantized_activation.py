"""Activations with quantization behind them, quantization by groups and into caches, against float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from operator_case import FLOATS
from tolerance import assert_close
from torch import Tensor

import torch_npu


def close_to(numbers: Tensor, values: Tensor, low: int = -128, high: int = 127) -> None:
    """Rounded, but for values that lie between two numbers within the error of float32."""
    assert ((numbers.cpu().double() - values.clamp(low, high)).abs() <= 0.5 + 1e-3).all()


def unpacked(numbers: Tensor) -> Tensor:
    """int4, eight in an int32, the first lowest."""
    nibbles = torch.stack([(numbers.cpu() >> (4 * i)) & 15 for i in range(8)], -1).flatten(-2)
    return torch.where(nibbles > 7, nibbles - 16, nibbles)


GROUPS = {"none": None, "ends": [2, 2, 5], "lengths": [2, 0, 3]}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("per_group", [False, True])
def test_swiglu_quant(dtype, groups, dynamic, left, per_group):
    """Seven rows, of which the groups have five."""
    torch.manual_seed(0)
    x = torch.randn(7, 24).to(dtype)
    counts = GROUPS[groups]
    shape = ((3, 12) if not per_group else (3,)) if counts else ((1, 12) if not per_group else (1,))
    scales, offsets = torch.rand(shape) * 20 + 5, torch.randn(shape) * 9
    a, b = x.double().chunk(2, -1)
    values = F.silu(a) * b if left else a * F.silu(b)
    owner = torch.tensor([0, 0, 2, 2, 2]) if counts else torch.zeros(7, dtype=torch.int64)
    rows = len(owner)
    spread = [t[owner] if t.dim() == 2 else t[owner, None] for t in (scales, offsets)]
    values = values[:rows] * spread[0]
    index = None if counts is None else torch.tensor(counts, dtype=torch.int32).npu()
    y, scale = torch_npu.npu_swiglu_quant(
        x.npu(), smooth_scales=scales.npu(), offsets=None if dynamic else offsets.npu(), group_index=index,
        activate_left=left, quant_mode=int(dynamic), group_list_type=int(groups == "lengths"),
    )  # fmt: skip
    assert (y.dtype, y.shape, scale.shape) == (torch.int8, (7, 12), (7,))
    if dynamic:
        assert_close(scale[:rows], 127 / values.abs().amax(-1), rtol=1e-4)
        close_to(y[:rows], values * scale[:rows].cpu().double()[:, None])
    else:
        close_to(y[:rows], values + spread[1])
    assert not y[rows:].any()


def test_swiglu_quant_of_zeros():
    y, _ = torch_npu.npu_swiglu_quant(torch.zeros(2, 3, 8).npu(), quant_mode=1)
    assert y.shape == (2, 3, 4)
    assert not y.any()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("size", [1, 17])
@pytest.mark.parametrize("mode", ["static", "dynamic", "plain"])
def test_gelu_quant(dtype, approximate, size, mode):
    torch.manual_seed(0)
    x = torch.randn(2, 5, 17).to(dtype)
    scale, offset = (torch.rand(size) * 20 + 5).to(dtype), torch.randn(size).to(dtype)
    values = F.gelu(x.double(), approximate=approximate)
    if mode != "plain":
        values = values * scale.double()
    y, out_scale = torch_npu.npu_gelu_quant(
        x.npu(), input_scale=None if mode == "plain" else scale.npu(), approximate=approximate,
        input_offset=offset.npu() if mode == "static" else None, quant_mode="static" if mode == "static" else "dynamic",
    )  # fmt: skip
    assert y.dtype == torch.int8
    if mode == "static":
        assert out_scale is None
        close_to(y, values + offset.double())
    else:
        assert_close(out_scale, values.abs().amax(-1) / 127, rtol=1e-4)
        close_to(y, values / out_scale.cpu().double()[..., None])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("shape", "dim"), [((7, 24), -1), ((2, 3, 8, 5), 2), ((6, 4, 5), 1)])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_clipped_swiglu(dtype, shape, dim, interleaved, grouped):
    torch.manual_seed(0)
    x = (torch.randn(shape) * 4).to(dtype)
    place = dim % len(shape)
    rows = x.double().reshape(math.prod(shape[:place]), -1)
    kept = 4 if grouped else len(rows)
    gate, linear = (rows[:, ::2], rows[:, 1::2]) if interleaved else rows.chunk(2, -1)
    gate, linear = gate.clamp(max=7), linear.clamp(-7, 7)
    expected = gate * (1.702 * gate).sigmoid() * (linear + 1)
    expected[kept:] = 0
    y = torch_npu.npu_clipped_swiglu(
        x.npu(), dim=dim, interleaved=interleaved, group_index=torch.tensor([1, 3]).npu() if grouped else None
    )
    halved = list(shape)
    halved[dim] //= 2
    assert list(y.shape) == halved
    assert_close(y, expected.view(halved), terms=4)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shifted", [False, True])
def test_group_quant(dtype, packed, shifted):
    torch.manual_seed(0)
    x, scale = torch.randn(6, 16).to(dtype), torch.randn(4, 16) * (2 if packed else 30)
    offset = torch.tensor([1.5]) if shifted else None
    y = torch_npu.npu_group_quant(
        x.npu(), scale.npu(), torch.tensor([1, 4, 4, 6], dtype=torch.int32).npu(),
        offset=None if offset is None else offset.npu(), dst_dtype=torch.quint4x2 if packed else None,
    )  # fmt: skip
    expected = x.double() * scale.double()[torch.tensor([0, 1, 1, 1, 3, 3])] + (1.5 if shifted else 0)
    if packed:
        assert y.shape == (6, 2)
        close_to(unpacked(y), expected, -8, 7)
    else:
        assert y.dtype == torch.int8
        close_to(y, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(3, 9, 16), (3, 2, 9, 16)])
@pytest.mark.parametrize("zero_points", [None, torch.int32, torch.bfloat16])
def test_quant_scatter(dtype, shape, zero_points):
    torch.manual_seed(0)
    data = torch.randint(-128, 128, shape, dtype=torch.int8)
    updates = torch.randn(2, *shape[1:-2], 4, 16).to(dtype)
    scales = torch.rand(16) / 20 + 0.02
    points = None if zero_points is None else torch.randint(-9, 9, (16,)).to(zero_points)
    starts = torch.tensor([5, 0], dtype=torch.int32)
    values = updates.double() / scales.double() + (0 if points is None else points.double())
    given = [t.npu() for t in (starts, updates, scales)] + [None if points is None else points.npu()]
    target = data.npu()
    y = torch_npu.npu_quant_scatter(target, *given)
    assert torch.equal(target.cpu(), data)
    assert torch_npu.npu_quant_scatter_(target, *given) is target
    assert torch.equal(target, y)
    untouched = torch.ones(shape, dtype=torch.bool)
    for b, start in enumerate(starts.tolist()):
        close_to(y[b].narrow(-2, start, 4), values[b])
        untouched[b].narrow(-2, start, 4).fill_(False)
    assert torch.equal(y.cpu()[untouched], data[untouched])


X = torch.zeros(4, 8)
REFUSED = {
    "swiglu offsets": (lambda x: torch_npu.npu_swiglu_quant(x, smooth_scales=x), ValueError, "one shape"),
    "swiglu int4": (
        lambda x: torch_npu.npu_swiglu_quant(x, quant_mode=1, dst_type=torch.quint4x2), NotImplementedError, "int4"
    ),
    "gelu": (lambda x: torch_npu.npu_gelu_quant(x, quant_mode="static"), ValueError, "needs input_scale"),
    "gelu mode": (lambda x: torch_npu.npu_gelu_quant(x, quant_mode="else"), ValueError, "'static' or 'dynamic'"),
    "clipped": (lambda x: torch_npu.npu_clipped_swiglu(x[:, :7]), ValueError, "even size along dim"),
    "group": (lambda x: torch_npu.npu_group_quant(x, x[:, :4], x[:, 0].int()), ValueError, r"scale \[G, H\]"),
    "group end": (
        lambda x: torch_npu.npu_group_quant(x, x[:1], torch.tensor([3]).npu()), RuntimeError, "ends at 3; x has 4"
    ),
    "scatter": (
        lambda x: torch_npu.npu_quant_scatter(x[None].char(), x[0, :1].int(), x[None].half(), x[0], axis=-1),
        ValueError, "neither the first nor the last",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call(X.npu())
