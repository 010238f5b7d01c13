"""Products in groups of the inner dimension (torch_npu/composed/grouped_products.py), in float64."""

from __future__ import annotations

import pytest
import torch

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
ENDS, M, N = [3, 3, 70, 135], 5, 6


@DEVICES
@pytest.mark.parametrize("kind", FLOAT8, ids=str)
@pytest.mark.parametrize("scaled", ["tensors", "channels", "microscaled"])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_groups(device, kind, scaled, counted, in_place):
    x1, x2 = torch.randn(135, M), torch.randn(135, N)
    y, ends = torch.randn(4, M, N), torch.tensor(ENDS)
    expected = y.double()
    if scaled == "microscaled":
        (left, scale1), (right, scale2) = (
            torch_npu.npu_grouped_dynamic_mx_quant(x.bfloat16(), ends, dst_type=kind) for x in (x1, x2)
        )
    else:
        left, right = x1.to(kind), x2.to(kind)
        scale1, scale2 = torch.rand(4), torch.rand(4, N if scaled == "channels" else 1)
    first = 0
    for number, end in enumerate(ENDS):
        a, b = left[first:end].double(), right[first:end].double()
        if scaled == "microscaled" and end > first:
            row = first // 64 + number
            for operand, scale in ((a, scale1), (b, scale2)):
                for i in range(end - first):
                    operand[i] *= 2.0 ** (scale[row + i // 64, :, i // 32 % 2].double() - 127)
        product = a.t() @ b
        if scaled != "microscaled":
            product = product * scale1[number].double() * scale2[number].double()
        expected[number] += product
        first = end
    groups = ends.diff(prepend=ends[:1] * 0) if counted else ends
    given = [t.to(device) for t in (left.t(), right, scale2, groups)]
    target = y.to(device)
    function = torch_npu.npu_add_quant_gmm_ if in_place else torch_npu.npu_add_quant_gmm
    found = function(target, *given, x1_scale=scale1.to(device), group_list_type=int(counted))
    assert (found is target) == in_place
    assert_close(found, expected, terms=256, atol=1e-5)


def test_refusals():
    x1, x2, y = torch.zeros(M, 64).to(FLOAT8[0]), torch.zeros(64, N).to(FLOAT8[0]), torch.zeros(1, M, N)
    ends, one = torch.tensor([64]), torch.ones(1)
    with pytest.raises(TypeError, match="float8"):
        torch_npu.npu_add_quant_gmm(y, x1.float(), x2, one, ends, x1_scale=one)
    with pytest.raises(ValueError, match=r"self \[g, m, n\]"):
        torch_npu.npu_add_quant_gmm(y[0], x1, x2, one, ends, x1_scale=one)
    with pytest.raises(ValueError, match="float32 scales"):
        torch_npu.npu_add_quant_gmm(y, x1, x2, torch.ones(1, 2), ends, x1_scale=one)
    with pytest.raises(ValueError, match="powers of two"):
        torch_npu.npu_add_quant_gmm(y, x1, x2, torch.ones(1, N, 2).byte(), ends, x1_scale=torch.ones(2, M, 2).byte())
    with pytest.raises(NotImplementedError, match="x1_dtype"):
        torch_npu.npu_add_quant_gmm(y, x1, x2, one, ends, x1_scale=one, x1_dtype=290)
