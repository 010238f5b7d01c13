"""Names of dtypes that the vendor's operators take as numbers."""

import pytest
import torch

import torch_npu


def test_numbers_are_above_those_of_cann():
    assert (torch_npu.float32, torch_npu.int4, torch_npu.hifloat8, torch_npu.float8_e4m3fn) == (256, 285, 290, 292)
    assert torch_npu.float4_e2m1fn_x2 == 296


def test_operators_take_them_for_dtypes():
    x = torch.randn(4, 256, device="npu").bfloat16()
    of_torch = torch_npu.npu_dynamic_block_quant(x, dst_type=torch.float8_e5m2)
    of_vendor = torch_npu.npu_dynamic_block_quant(x, dst_type=torch_npu.float8_e5m2)
    assert of_torch[0].dtype == of_vendor[0].dtype == torch.float8_e5m2
    assert torch.equal(of_torch[0].view(torch.uint8), of_vendor[0].view(torch.uint8))
    with pytest.raises(NotImplementedError, match=r"dst_type must be one of .* got 290"):
        torch_npu.npu_dynamic_block_quant(x, dst_type=torch_npu.hifloat8)
