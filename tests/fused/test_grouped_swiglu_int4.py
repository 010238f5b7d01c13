"""npu_grouped_matmul_swiglu_quant and its second form: int4 numbers, matrices in blocks, packed matrices."""

from __future__ import annotations

import pytest
import torch
from tolerance import assert_close
from torch import Tensor

import torch_npu

G, M, K, N = 3, 9, 64, 128
ENDS = torch.tensor([4, 4, 7])  # the second group is empty, two rows are of none
GROUP = torch.tensor([0] * 4 + [2] * 3)


def integers(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, dtype=torch.int32)


def int4(numbers: Tensor) -> Tensor:
    """Eight numbers of the last dimension in an int32."""
    return torch_npu.npu_convert_weight_to_int4pack(numbers.npu())


def bits(scale: Tensor) -> Tensor:
    """The bits of float32 in the lower half of int64."""
    return scale.contiguous().view(torch.int32).to(torch.int64).bitwise_and(0xFFFFFFFF)


def blocks(matrices: Tensor, columns: int) -> Tensor:
    """[G, N / c, K / 16, 16, c] of [G, K, N]."""
    return matrices.unflatten(2, (-1, columns)).unflatten(1, (-1, 16)).permute(0, 3, 1, 2, 4).contiguous()


def scaled(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Rows by their matrices, with a scale for each column, or for each part of the inner dimension of it."""
    parts = scale.double().view(G, -1, N).repeat_interleave(K // (scale.numel() // G // N), 1)
    return torch.einsum("mk,mkn->mn", x[: len(GROUP)].double(), (weight.double() * parts)[GROUP])


def check(y: Tensor, scale: Tensor, product: Tensor, x_scale: Tensor, smooth: Tensor | None = None) -> None:
    left, right = (product * x_scale.double()[: len(GROUP), None]).chunk(2, 1)
    expected = torch.nn.functional.silu(left) * right
    if smooth is not None:
        expected = expected * smooth.double()[GROUP]
    rows = len(GROUP)
    assert y.dtype == torch.int8
    assert y.shape == (M, N // 2)
    assert_close(scale[:rows], expected.abs().amax(1) / 127, rtol=1e-4)
    unit = scale[:rows].cpu().double()[:, None]
    assert ((y[:rows].cpu() * unit - expected).abs() <= unit * 0.51).all()
    assert not y[rows:].any()
    assert not scale[rows:].any()


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("form", ["first", "second", "blocks", "packed", "packed blocks"])
def test_int8_rows_by_int4_matrices(form: str, parts: int) -> None:
    torch.manual_seed(0)
    x, weight = integers(-128, 128, M, K).to(torch.int8), integers(-8, 8, G, K, N)
    scale = torch.rand(G, parts, N) / 100 if parts > 1 else torch.rand(G, N) / 100
    x_scale, assist = torch.rand(M), torch.randn(G, N)
    packed = int4(weight)
    if form == "blocks":
        packed = blocks(packed, 8)
    elif form.startswith("packed"):
        packed = torch_npu.npu_format_cast(packed, 29)
        if form == "packed blocks":
            packed = packed.view(G, N // 64, K // 16, 16, 8)
    given = (bits(scale).npu(), x_scale.npu())
    if form == "first":
        y, out_scale, _ = torch_npu.npu_grouped_matmul_swiglu_quant(
            x.npu(), packed, ENDS.npu(), *given, bias=assist.npu()
        )  # fmt: skip
    else:
        y, out_scale = torch_npu.npu_grouped_matmul_swiglu_quant_v2(
            x.npu(), [packed], [given[0]], given[1], ENDS.npu(), weight_assist_matrix=[assist.npu()],
            dequant_mode=int(parts > 1), dequant_dtype=torch.float32,
        )  # fmt: skip
    check(y, out_scale, scaled(x.int() - 8, weight, scale) + assist[GROUP], x_scale)


def test_the_assistant_matrix_makes_up_for_eight() -> None:
    torch.manual_seed(0)
    x, weight, scale = integers(-128, 128, M, K).to(torch.int8), integers(-8, 8, G, K, N), torch.rand(G, N) / 100
    assist = (8 * weight.sum(1) * scale).float()
    y, out_scale = torch_npu.npu_grouped_matmul_swiglu_quant_v2(
        x.npu(), [int4(weight)], [bits(scale).npu()], torch.ones(M).npu(), ENDS.npu(),
        weight_assist_matrix=[assist.npu()],
    )  # fmt: skip
    check(y, out_scale, scaled(x, weight, scale), torch.ones(M))


@pytest.mark.parametrize("smooth", [None, (G, N // 2), (G,)], ids=str)
@pytest.mark.parametrize("in_blocks", [False, True])
def test_int4_by_int4(in_blocks: bool, smooth: tuple[int, ...] | None) -> None:
    torch.manual_seed(0)
    x, weight, scale, x_scale = integers(-8, 8, M, K), integers(-8, 8, G, K, N), torch.rand(G, N) / 100, torch.rand(M)
    factor = None if smooth is None else torch.randn(smooth)
    packed = blocks(int4(weight), 8) if in_blocks else int4(weight)
    y, out_scale = torch_npu.npu_grouped_matmul_swiglu_quant_v2(
        int4(x), [packed], [bits(scale).npu()], x_scale.npu(), ENDS.npu(),
        smooth_scale=None if factor is None else factor.npu(),
    )  # fmt: skip
    check(y, out_scale, scaled(x, weight, scale), x_scale, factor if smooth != (G,) else factor[:, None])


@pytest.mark.parametrize("form", ["blocks", "packed", "packed blocks"])
def test_int8_matrices_in_blocks(form: str) -> None:
    torch.manual_seed(0)
    x, weight = (integers(-128, 128, *shape).to(torch.int8) for shape in ((M, K), (G, K, N)))
    scale, x_scale = torch.rand(G, N) / 1000, torch.rand(M)
    given = blocks(weight, 32).npu() if form == "blocks" else torch_npu.npu_format_cast(weight.npu(), 29)
    if form == "packed blocks":
        given = given.view(G, N // 32, K // 16, 16, 32)
    y, out_scale, _ = torch_npu.npu_grouped_matmul_swiglu_quant(
        x.npu(), given, ENDS.npu(), scale.npu(), x_scale.npu()
    )  # fmt: skip
    check(y, out_scale, scaled(x, weight, scale), x_scale)


X, W = torch.zeros(M, K, dtype=torch.int8), torch.zeros(G, K, N // 8, dtype=torch.int32)
ASSIST, SCALE = torch.zeros(G, N), torch.zeros(G, N)


@pytest.mark.parametrize(
    ("x", "options", "error", "message"),
    [
        (X, {}, NotImplementedError, "weight_assist_matrix, a list of one"),
        (X, {"weight_assist_matrix": [ASSIST], "smooth_scale": ASSIST}, NotImplementedError, "smooth_scale must be"),
        (X, {"weight_assist_matrix": [ASSIST], "dequant_mode": 1}, NotImplementedError, "dequant_mode must be 0"),
        (X, {"weight_assist_matrix": [ASSIST], "quant_mode": 1}, NotImplementedError, "quant_mode 0"),
        (X[:, :16].int(), {}, ValueError, "x must be"),
    ],
)
def test_refusals(x: Tensor, options: dict, error: type[Exception], message: str) -> None:
    on_device = {
        name: [t.npu() for t in value]
        if isinstance(value, list)
        else value.npu()
        if isinstance(value, Tensor)
        else value
        for name, value in options.items()
    }
    with pytest.raises(error, match=message):
        torch_npu.npu_grouped_matmul_swiglu_quant_v2(
            x.npu(), [W.npu()], [SCALE.npu()], torch.zeros(M).npu(), ENDS.npu(), **on_device
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_plain_product_of_int8_by_int4_in_groups(dtype: torch.dtype) -> None:
    """npu_quant_matmul adds up the product of x - 8, too; offset makes up for it."""
    torch.manual_seed(0)
    x, weight, scale = integers(-128, 128, 5, K).to(torch.int8), integers(-8, 8, K, N), torch.rand(2, N) / 100
    rows, wide = torch.rand(5, 1), weight.double() * scale.double().repeat_interleave(K // 2, 0)
    y = torch_npu.npu_quant_matmul(
        x.npu(), int4(weight), bits(scale).npu(), offset=(8 * wide.sum(0)).float().npu(), pertoken_scale=rows.npu(),
        output_dtype=dtype, group_sizes=[0, 0, K // 2],
    )  # fmt: skip
    assert_close(y, (x.double() @ wide) * rows.double(), terms=K, atol=1e-2)
