"""Products of groups of rows and what is done with them, against float64."""

from __future__ import annotations

import pytest
import torch
from tolerance import assert_close
from torch import Tensor

import torch_npu

ENDS = [2, 2, 9]
LENGTHS = [2, 0, 7]
GROUP = torch.tensor([0] * 2 + [2] * 7)


def int8(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("list_type", [0, 1])
@pytest.mark.parametrize("shape", [(3, 5, 4), (15, 4)])
def test_gradients_of_weights_are_added_up(dtype, list_type, shape):
    torch.manual_seed(0)
    x, weight, start = torch.randn(9, 5).to(dtype), torch.randn(9, 4).to(dtype), torch.randn(shape)
    groups = torch.tensor([ENDS, LENGTHS][list_type]).npu()
    products = [x[s].double().T @ weight[s].double() for s in (slice(0, 2), slice(2, 2), slice(2, 9))]
    expected = start.double() + torch.stack(products).view(shape)
    target = start.npu()
    total = torch_npu.npu_grouped_matmul_add(target, x.npu(), weight.npu(), groups, group_list_type=list_type)
    assert_close(total, expected, terms=9)
    assert torch.equal(target.cpu(), start)
    result = torch_npu.npu_grouped_matmul_add_(target, x.npu(), weight.npu(), groups, group_list_type=list_type)
    assert result is target
    assert torch.equal(target, total)


@pytest.mark.parametrize("list_type", [0, 1])
@pytest.mark.parametrize("shared", [False, True])
def test_rows_back_to_their_tokens(list_type, shared):
    torch.manual_seed(0)
    x, weight, scale = int8(9, 16), int8(3, 16, 8), torch.rand(3, 8) / 100
    of_rows, logit, row = torch.rand(9), torch.rand(9), torch.randint(0, 5, (9,))
    product = torch.einsum("mk,mkn->mn", x.double(), weight.double()[GROUP]) * scale.double()[GROUP]
    product = product * (of_rows.double() * logit.double())[:, None]
    expected = torch.zeros(5, 8, dtype=torch.float64).index_add(0, row, product)
    more = torch.randn(3, 8).bfloat16() if shared else None
    if more is not None:
        expected[1:4] += more.double() * 0.5
    y = torch_npu.npu_grouped_matmul_finalize_routing(
        x.npu(), weight.npu(), torch.tensor([ENDS, LENGTHS][list_type]).npu(), scale=scale.npu(),
        pertoken_scale=of_rows.npu(), logit=logit.npu(), row_index=row.npu(), output_bs=5, group_list_type=list_type,
        shared_input=None if more is None else more.npu(), shared_input_weight=0.5, shared_input_offset=1,
    )  # fmt: skip
    assert y.dtype == torch.float32
    assert_close(y, expected, terms=16, atol=1e-4)


def gated(x: Tensor, weight: Tensor, weight_scale: Tensor, x_scale: Tensor) -> Tensor:
    product = torch.einsum("mk,mkn->mn", x.double(), weight.double()[GROUP])
    left, right = (product * weight_scale.double()[GROUP] * x_scale.double()[:, None]).chunk(2, 1)
    return torch.nn.functional.silu(left) * right


@pytest.mark.parametrize("form", ["first", "ends", "lengths"])
@pytest.mark.parametrize("behind", [0, 2])
def test_activation_and_quantization(form, behind):
    """Rows behind the last group come out as zeros."""
    torch.manual_seed(0)
    x, weight, weight_scale, x_scale = int8(9, 16), int8(3, 16, 8), torch.rand(3, 8) / 100, torch.rand(9)
    expected = gated(x, weight, weight_scale, x_scale)
    longer = [torch.cat((t, t[:behind])).npu() for t in (x, x_scale)]
    groups = torch.tensor(LENGTHS if form == "lengths" else ENDS).npu()
    if form == "first":
        y, scale, reserved = torch_npu.npu_grouped_matmul_swiglu_quant(
            longer[0], weight.npu(), groups, weight_scale.npu(), longer[1]
        )
        assert reserved.shape == ()
    else:
        y, scale = torch_npu.npu_grouped_matmul_swiglu_quant_v2(
            longer[0], [weight.npu()], [weight_scale.npu()], longer[1], groups,
            group_list_type=int(form == "lengths"),
        )  # fmt: skip
    assert y.dtype == torch.int8
    assert_close(scale[:9], expected.abs().amax(1) / 127, rtol=1e-5)
    restored = y[:9].cpu().double() * scale[:9].cpu().double()[:, None]
    assert ((restored - expected).abs() <= scale[:9].cpu().double()[:, None] * 0.501).all()
    assert not y[9:].any()
    assert not scale[9:].any()


X, W, GROUPS = torch.zeros(4, 8, dtype=torch.int8), torch.zeros(2, 8, 4, dtype=torch.int8), torch.tensor([1, 4])
REFUSED = {
    "add": (
        lambda: torch_npu.npu_grouped_matmul_add(
            torch.zeros(2, 8, 8).npu(), X.half().npu(), X.half().npu(), GROUPS.npu(), transpose_x=False
        ),
        NotImplementedError,
        "transpose_x must be True",
    ),
    "add shape": (
        lambda: torch_npu.npu_grouped_matmul_add_(
            torch.zeros(2, 8).npu(), X.half().npu(), X.half().npu(), GROUPS.npu()
        ),
        ValueError,
        r"self must be \[G, M, N\]",
    ),
    "add dtype": (
        lambda: torch_npu.npu_grouped_matmul_add_(
            torch.zeros(2, 8, 8).half().npu(), X.half().npu(), X.half().npu(), GROUPS.npu()
        ),
        TypeError,
        "self",
    ),
    "finalize": (
        lambda: torch_npu.npu_grouped_matmul_finalize_routing(X.npu(), W.npu(), GROUPS.npu()),
        NotImplementedError,
        "row_index are needed",
    ),
    "swiglu": (
        lambda: torch_npu.npu_grouped_matmul_swiglu_quant(
            X.npu(), W.npu(), GROUPS.npu(), torch.ones(2, 3).npu(), torch.ones(4).npu()
        ),
        ValueError,
        r"weight_scale must be \[G, N\]",
    ),
    "swiglu list": (
        lambda: torch_npu.npu_grouped_matmul_swiglu_quant_v2(
            X.npu(), [W.npu(), W.npu()], [torch.ones(2, 4).npu()], torch.ones(4).npu(), GROUPS.npu()
        ),
        ValueError,
        "lists of one tensor",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("group_type", [-1, 0])
@pytest.mark.parametrize("split_item", [0, 1, 2, 3])
def test_lists_are_groups_by_themselves(split_item, group_type):
    x = [torch.randn(rows, inner) for rows, inner in ((5, 8), (0, 8), (3, 16))]
    weight, bias = [torch.randn(t.shape[1], 6) for t in x], [torch.randn(6) for _ in x]
    expected = torch.cat([a @ w + b for a, w, b in zip(x, weight, bias, strict=True)])
    lists = ([t.npu() for t in tensors] for tensors in (x, weight, bias))
    given, weights, biases = lists
    y = torch_npu.npu_grouped_matmul(given, weights, bias=biases, split_item=split_item, group_type=group_type)
    assert len(y) == (1 if split_item >= 2 else 3)
    torch.testing.assert_close(torch.cat(y).cpu(), expected)
