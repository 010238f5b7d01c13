"""Tensors of the shapes and dtypes that fused attention's results have, with nothing in them yet.

Servers make them before a graph is captured, and pass them to the operators' forms with ``out``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse, refuse_options

# Layout of query, and letters of the result's dimensions
_LAYOUTS = {
    "BSH": ("BSH", "BSH"), "BSND": ("BSND", "BSND"), "BNSD": ("BNSD", "BNSD"), "TND": ("TND", "TND"),
    "NTD": ("NTD", "NTD"), "BNSD_BSND": ("BNSD", "BSND"), "BSH_BNSD": ("BSH", "BNSD"), "BSND_BNSD": ("BSND", "BNSD"),
    "NTD_TND": ("NTD", "TND"), "TND_NTD": ("TND", "NTD"), "BSH_NBSD": ("BSH", "NBSD"), "BSND_NBSD": ("BSND", "NBSD"),
    "BNSD_NBSD": ("BNSD", "NBSD"),
}  # fmt: skip
_FLASH_LAYOUTS = ("BSH", "SBH", "BNSD", "BSND", "TND")


def _sizes(layout: str, x: Tensor, heads: int) -> dict[str, int]:
    """The size of each letter of a layout, also of N and D where it has H."""
    sizes = dict(zip(layout, x.shape, strict=True))
    if "H" in sizes:
        sizes |= {"N": heads, "D": sizes["H"] // heads}
    return sizes


def _inference_outputs(
    operator: str,
    query: Tensor,
    value: Tensor,
    layout: str,
    paged: bool,
    heads: int,
    kv_heads: int,
    with_lse: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    if layout not in _LAYOUTS or heads < 1:
        refuse(operator, f"an input_layout of {list(_LAYOUTS)} and a positive number of heads", [layout, heads])
    of_query, of_result = _LAYOUTS[layout]
    if query.dim() != len(of_query) or (value.dim() != query.dim() and not (paged and value.dim() in (3, 4))):
        refuse(operator, f"query {of_query}, and value like it or in pages", [list(query.shape), list(value.shape)])
    sizes = _sizes(of_query, query, heads)
    flat = value.dim() == 3 and (paged or of_query == "BSH")
    sizes["D"] = value.shape[-1] // (kv_heads or heads) if flat else value.shape[-1]
    sizes["H"] = heads * sizes["D"]
    out = query.new_empty([sizes[letter] for letter in of_result], dtype=dtype)
    letters = "TN" if "T" in sizes else "BNS"
    shape = [*(sizes[letter] for letter in letters), 1] if with_lse else [0]
    return out, query.new_empty(shape, dtype=torch.float32)


def _result_dtype(query: Tensor, rope: Tensor | None, quantized: bool) -> torch.dtype:
    if quantized:
        return torch.int8
    if query.dtype in (torch.int8, torch.float8_e4m3fn):
        return torch.float16 if rope is None else rope.dtype
    return query.dtype


@composed(
    "_npu_fused_infer_attention_score_infer_output(Tensor query, Tensor value, *, str input_layout='BSH', "
    "Tensor? quant_scale2=None, Tensor? block_table=None, int num_heads=1, int num_key_value_heads=0, "
    "bool softmax_lse_flag=False, Tensor? query_rope=None) -> (Tensor, Tensor)"
)
def fused_infer_attention_score_infer_output(
    query: Tensor,
    value: Tensor,
    *,
    input_layout: str = "BSH",
    quant_scale2: Tensor | None = None,
    block_table: Tensor | None = None,
    num_heads: int = 1,
    num_key_value_heads: int = 0,
    softmax_lse_flag: bool = False,
    query_rope: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Empty tensors for the results of npu_fused_infer_attention_score; the second has no elements without its flag."""
    name = "_npu_fused_infer_attention_score_infer_output"
    dtype = _result_dtype(query, query_rope, quant_scale2 is not None)
    where = (input_layout, block_table is not None, num_heads, num_key_value_heads)
    return _inference_outputs(name, query, value, *where, softmax_lse_flag, dtype)


@composed(
    "_npu_fused_infer_attention_score_v2_infer_output(Tensor query, Tensor value, *, int? query_dtype=None, "
    "int? value_dtype=None, str input_layout='BSH', Tensor? quant_scale_out=None, Tensor? block_table=None, "
    "int num_query_heads=1, int num_key_value_heads=0, bool return_softmax_lse=False, Tensor? query_rope=None, "
    "int? out_dtype=None) -> (Tensor, Tensor)"
)
def fused_infer_attention_score_v2_infer_output(
    query: Tensor,
    value: Tensor,
    *,
    query_dtype: int | None = None,
    value_dtype: int | None = None,
    input_layout: str = "BSH",
    quant_scale_out: Tensor | None = None,
    block_table: Tensor | None = None,
    num_query_heads: int = 1,
    num_key_value_heads: int = 0,
    return_softmax_lse: bool = False,
    query_rope: Tensor | None = None,
    out_dtype: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Empty tensors for the results of npu_fused_infer_attention_score_v2."""
    name = "_npu_fused_infer_attention_score_v2_infer_output"
    given = {"query_dtype": query_dtype, "value_dtype": value_dtype, "out_dtype": out_dtype}
    refuse_options(name, {argument: number for argument, number in given.items() if number is not None})
    dtype = _result_dtype(query, query_rope, quant_scale_out is not None)
    where = (input_layout, block_table is not None, num_query_heads, num_key_value_heads)
    return _inference_outputs(name, query, value, *where, return_softmax_lse, dtype)


@composed(
    "_npu_fusion_attention_v3_infer_output(Tensor query, Tensor key, Tensor value, int head_num, str input_layout) -> "
    "(Tensor, Tensor, Tensor)"
)
def fusion_attention_v3_infer_output(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors for the results of npu_fusion_attention_v3: attention, and maxima and sums of its softmax."""
    name = "_npu_fusion_attention_v3_infer_output"
    layout = input_layout.upper()
    if layout not in _FLASH_LAYOUTS or head_num < 1 or any(t.dim() != len(layout) for t in (query, key, value)):
        shapes = [list(t.shape) for t in (query, key, value)]
        refuse(name, f"an input_layout of {_FLASH_LAYOUTS} and inputs of it", [layout, head_num, *shapes])
    sizes = _sizes(layout, query, head_num)
    shape = list(query.shape)
    if "H" in sizes:
        kv_heads = key.shape[-1] // sizes["D"]
        shape[-1] = head_num * (value.shape[-1] // kv_heads)
    else:
        shape[-1] = value.shape[-1]
    kept = [sizes["T"], sizes["N"], 8] if layout == "TND" else [sizes["B"], head_num, sizes["S"], 8]
    largest, total = (query.new_empty(kept, dtype=torch.float32) for _ in range(2))
    return query.new_empty(shape), largest, total


@composed(
    "_npu_fusion_attention_grad_v3_infer_output(Tensor query, Tensor key, Tensor value, Tensor? pse=None, "
    "Tensor? sink=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def fusion_attention_grad_v3_infer_output(
    query: Tensor, key: Tensor, value: Tensor, pse: Tensor | None = None, sink: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Empty tensors for the results of npu_fusion_attention_grad_v3: like query, key, value, pse and (float32) sink.

    Without pse or sink theirs has no elements.
    """
    by_inputs = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (query, key, value)]
    by_pse = query.new_empty(0) if pse is None else torch.empty_like(pse, memory_format=torch.contiguous_format)
    by_sink = key.new_empty([0] if sink is None else list(sink.shape), dtype=torch.float32)
    return *by_inputs, by_pse, by_sink
