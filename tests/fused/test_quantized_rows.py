"""Products of rows that are quantized on the way, against float64."""

import pytest
import torch
from tolerance import assert_close

import torch_npu


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", [True, False])
@pytest.mark.parametrize("bias", [None, torch.int32, torch.float32, torch.float16])
@pytest.mark.parametrize("rows", [0, 5])
def test_dequant_bias(dtype, scale_dtype, activation, bias, rows):
    torch.manual_seed(0)
    x = torch.randint(-500, 500, (rows, 7), dtype=torch.int32)
    scale, of_rows = torch.rand(7).to(scale_dtype), torch.rand(rows)
    added = None if bias is None else (torch.randn(7) * 50).to(bias)
    values = x.double() + (added if bias == torch.int32 else 0)
    values = values * scale.double() * (of_rows.double()[:, None] if activation else 1)
    if bias not in (None, torch.int32):
        values = values + added.double()
    y = torch_npu.npu_dequant_bias(
        x.npu(),
        scale.npu(),
        of_rows.npu() if activation else None,
        None if added is None else added.npu(),
        output_dtype=dtype,
    )
    assert y.dtype == (dtype or torch.float16)
    assert_close(y, values, atol=1e-3)


def quantized(x: torch.Tensor, scale: torch.Tensor | None, smooth: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """In float32, as rounding is a choice."""
    values = x.float() * (smooth.float() if smooth is not None else 1)
    scales = values.abs().amax(1, keepdim=True) / 127 if scale is None else scale.float().view(-1, 1)
    return (values / scales).round().clamp(-128, 127).double(), scales.double()


MODES = {
    "dynamic": lambda rows: ("pertoken", None),
    "rows": lambda rows: ("pertoken", torch.rand(rows) / 30 + 0.01),
    "tensor": lambda rows: ("pertensor", torch.tensor([0.02])),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("rows", [1, 17])
def test_quant_matmul_dequant(mode, smooth, rows):
    torch.manual_seed(0)
    quant_mode, scale = MODES[mode](rows)
    x, weight = torch.randn(rows, 16).half(), torch.randint(-128, 128, (32, 16), dtype=torch.int8)
    factors, smoothing = torch.rand(32) / 100, torch.rand(16).half() + 0.5 if smooth else None
    numbers, scales = quantized(x, scale, smoothing)
    expected = numbers @ weight.double().t() * factors.double() * scales
    options = {"x_scale": scale, "smooth_scale": smoothing}
    options = {key: value if value is None else value.npu() for key, value in options.items()}
    y = torch_npu.npu_quant_matmul_dequant(x.npu(), weight.npu(), factors.npu(), quant_mode=quant_mode, **options)
    assert y.dtype == torch.float16
    assert_close(y, expected)
    if mode == "tensor":
        bits = (factors * scale).view(torch.int32).long()
        options["x_scale"] = options["x_scale"].half()
        wrapped = torch_npu.npu_quant_matmul_dequant(
            x.npu(), weight.npu(), bits.npu(), quant_mode=quant_mode, **options
        )
        numbers, _ = quantized(x, scale.half(), smoothing)
        assert_close(wrapped, numbers @ weight.double().t() * factors.double() * scale.double())


@pytest.mark.parametrize("mode", MODES)
def test_quant_grouped_matmul_dequant(mode):
    torch.manual_seed(0)
    quant_mode, scale = MODES[mode](11)
    x, weight = torch.randn(11, 16).half(), torch.randint(-128, 128, (3, 32, 16), dtype=torch.int8)
    factors, ends = torch.rand(3, 32) / 100, [4, 4, 11]
    numbers, scales = quantized(x, scale, None)
    groups = torch.tensor([0] * 4 + [2] * 7)
    expected = torch.einsum("mk,mnk->mn", numbers, weight.double()[groups]) * factors.double()[groups] * scales
    y = torch_npu.npu_quant_grouped_matmul_dequant(
        x.npu(),
        weight.npu(),
        factors.npu(),
        torch.tensor(ends).npu(),
        x_scale=None if scale is None else scale.npu(),
        quant_mode=quant_mode,
    )
    assert_close(y, expected)


def test_refusals():
    x, weight, scale = torch.zeros(2, 16).half().npu(), torch.zeros(4, 16, dtype=torch.int8).npu(), torch.ones(4).npu()
    product = torch_npu.npu_quant_matmul_dequant
    with pytest.raises(ValueError, match="without x_scale quant_mode must be 'pertoken'"):
        product(x, weight, scale, quant_mode="pertensor")
    with pytest.raises(ValueError, match=r"quantized_weight \[n, k\]"):
        product(x, weight[:, :8], scale)
    with pytest.raises(NotImplementedError, match="bias and x_offset"):
        product(x, weight, scale, bias=scale)
    with pytest.raises(ValueError, match=r"bias must be \[N\]"):
        torch_npu.npu_dequant_bias(torch.zeros(2, 3, dtype=torch.int32).npu(), torch.ones(3).npu(), None, scale)
