"""Empty results of fused attention (torch_npu/composed/inference_outputs.py), next to those of the operators."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torch_npu

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
B, N, GROUPS, S, D = 2, 4, 2, 5, 16


def arranged(layout: str, heads: int, width: int = D) -> Tensor:
    shapes = {
        "BSH": (B, S, heads * width), "SBH": (S, B, heads * width), "BSND": (B, S, heads, width),
        "BNSD": (B, heads, S, width), "TND": (B * S, heads, width),
    }  # fmt: skip
    return torch.randn(shapes[layout], dtype=torch.float16).npu()


def alike(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    assert [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in expected]


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD", "BNSD_BSND", "TND"])
@pytest.mark.parametrize("second", [False, True])
def test_inference(layout, second):
    query = arranged(layout.partition("_")[0], N)
    key, value = (arranged(layout.partition("_")[0], GROUPS) for _ in range(2))
    heads = "num_query_heads" if second else "num_heads"
    lse = "return_softmax_lse" if second else "softmax_lse_flag"
    options = {heads: N, "num_key_value_heads": GROUPS, "input_layout": layout, lse: True}
    lengths: dict[str, list[int]] = {}
    if layout == "TND":
        names = ("actual_seq_qlen", "actual_seq_kvlen") if second else ("actual_seq_lengths", "actual_seq_lengths_kv")
        lengths = {name: [S, 2 * S] for name in names}
    name = "npu_fused_infer_attention_score" + ("_v2" if second else "")
    expected = getattr(torch.ops.npu, name)(query, key, value, **options, **lengths)
    infer = getattr(torch.ops.npu, f"_{name}_infer_output")
    alike(infer(query, value, **options), expected)
    assert infer(query, value, **options | {lse: False})[1].shape == (0,)


def test_inference_of_pages_and_numbers_of_8_bits():
    query, pages = arranged("BSH", N), torch.empty(7, 8, GROUPS * D, dtype=torch.float16).npu()
    infer = torch.ops.npu._npu_fused_infer_attention_score_infer_output
    options = {"block_table": torch.zeros(B, 2).int().npu(), "num_heads": N, "num_key_value_heads": GROUPS}
    assert infer(query, pages, **options)[0].shape == (B, S, N * D)
    assert infer(query, pages, **options, quant_scale2=torch.ones(1).npu())[0].dtype == torch.int8
    assert infer(query.to(torch.int8), pages, **options)[0].dtype == torch.float16
    rope = torch.empty(B, S, N * 4, dtype=torch.bfloat16).npu()
    assert infer(query.to(torch.int8), pages, **options, query_rope=rope)[0].dtype == torch.bfloat16
    turned = infer(query, arranged("BSH", N), input_layout="BSH_NBSD", num_heads=N)[0]
    assert turned.shape == (N, B, S, D)


@pytest.mark.parametrize("layout", ["BSH", "SBH", "BSND", "BNSD", "TND"])
def test_training(layout):
    inputs = arranged(layout, N), arranged(layout, GROUPS), arranged(layout, GROUPS)
    ends = [S, 2 * S]
    lengths = {"actual_seq_qlen": ends, "actual_seq_kvlen": ends} if layout == "TND" else {}
    expected = torch_npu.npu_fusion_attention(*inputs, N, layout, **lengths)
    found = torch.ops.npu._npu_fusion_attention_v3_infer_output(*inputs, N, layout)
    alike(found, expected[:3])
    wide = torch.ops.npu._npu_fusion_attention_v3_infer_output(*inputs[:2], arranged(layout, GROUPS, 8), N, layout)
    assert wide[0].shape[-1] == expected[0].shape[-1] // 2


@DEVICES
def test_gradients(device):
    q, k, v, pse = (torch.empty(B, n, S, D, device=device, dtype=torch.bfloat16) for n in (N, GROUPS, GROUPS, N))
    infer = torch.ops.npu._npu_fusion_attention_grad_v3_infer_output
    sink = torch.empty(N, device=device, dtype=torch.float32)
    alike(infer(q, k, v, pse, sink), (q, k, v, pse, sink))
    assert [t.numel() for t in infer(q, k, v)[3:]] == [0, 0]


def test_refusals():
    x = arranged("BSH", N)
    with pytest.raises(ValueError, match="input_layout"):
        torch.ops.npu._npu_fused_infer_attention_score_infer_output(x, x, input_layout="HSB")
    with pytest.raises(ValueError, match="value like it"):
        torch.ops.npu._npu_fused_infer_attention_score_infer_output(x, x[0])
    with pytest.raises(NotImplementedError, match="out_dtype"):
        torch.ops.npu._npu_fused_infer_attention_score_v2_infer_output(x, x, out_dtype=1)
    with pytest.raises(ValueError, match="inputs of it"):
        torch.ops.npu._npu_fusion_attention_v3_infer_output(x, x, x, N, "BNSD")
