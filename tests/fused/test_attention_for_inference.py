"""Properties of npu_prompt_flash_attention and npu_incre_flash_attention: any shape, layout, mask, bias and length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_attention_operators import FLOATS, LAYOUTS, ahead, assert_close, attention, hidden_by, inputs

import torch_npu

SHAPES = {
    "groups": st.integers(1, 3), "key_heads": st.integers(1, 2), "size": st.sampled_from([1, 8, 40, 64]),
    "density": st.sampled_from([0.0, 0.5, 1.0]), "biased": st.booleans(), "dtype": st.sampled_from(FLOATS),
}  # fmt: skip


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 80)), min_size=1, max_size=3),
    layout=st.sampled_from(["BSH", "BSND", "BNSD", "BNSD_BSND"]), mode=st.integers(0, 4), band=st.integers(0, 9),
    **SHAPES,
)  # fmt: skip
def test_any_prompt(
    lengths: list[tuple[int, int]], layout: str, mode: int, band: int, groups: int, key_heads: int, size: int,
    density: float, biased: bool, dtype: torch.dtype,
) -> None:  # fmt: skip
    batch, heads = len(lengths), groups * key_heads
    queries, keys = (max(pair[i] for pair in lengths) for i in (0, 1))
    q, k, v = inputs(queries, keys, heads, key_heads, size, batch, dtype)
    mask = torch.rand(batch, 1, queries, keys) < density
    bias = torch.randn(batch, heads, queries, keys).to(dtype) if biased else None
    options: dict[str, Any] = {"atten_mask": mask.npu()} if mode < 2 else {}
    if bias is not None:
        options["pse_shift"] = bias.npu()
    arrange, result = LAYOUTS[layout.split("_")[0]], LAYOUTS[layout.split("_")[-1]]
    out = torch_npu.npu_prompt_flash_attention(
        *(arrange(t).contiguous().npu() for t in (q, k, v)), num_heads=heads, num_key_value_heads=key_heads,
        input_layout=layout, scale_value=0.25, sparse_mode=mode, pre_tokens=6, next_tokens=band,
        actual_seq_lengths=[pair[0] for pair in lengths], actual_seq_lengths_kv=[pair[1] for pair in lengths],
        **options,
    )  # fmt: skip
    expected = torch.zeros(batch, heads, queries, size, dtype=torch.float64)
    for i, (a, b) in enumerate(lengths):
        hidden = hidden_by(mode, mask[i : i + 1, :, :a, :b], 6, band, [0])
        part = (q[i : i + 1, :, :a].double(), k[i : i + 1, :, :b].double(), v[i : i + 1, :, :b].double())
        added = 0.0 if bias is None else bias[i : i + 1, :, :a, :b].double()
        expected[i, :, :a] = attention(*part, 0.25, hidden, bias=added)[0][0]
    assert_close(out, result(expected), terms=16)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 100), min_size=1, max_size=3), layout=st.sampled_from(["BSH", "BSND", "BNSD"]),
    block=st.sampled_from([0, 1, 8]), **SHAPES,
)  # fmt: skip
def test_any_step(
    lengths: list[int], layout: str, block: int, groups: int, key_heads: int, size: int, density: float, biased: bool,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    """One query a sequence; ``block``: keys in a block of a paged cache, 0 without one."""
    batch, heads = len(lengths), groups * key_heads
    keys = -(-max(lengths) // max(block, 1)) * max(block, 1)
    q, k, v = inputs(1, keys, heads, key_heads, size, batch, dtype)
    hidden = torch.rand(batch, 1, 1, keys) < density
    bias = torch.randn(batch, heads, 1, keys).to(dtype) if biased else None
    options: dict[str, Any] = {} if bias is None else {"pse_shift": bias.npu()}
    caches = [LAYOUTS[layout](t).contiguous() for t in (k, v)]
    if block:
        table = torch.randperm(batch * keys // block).view(batch, -1).int()
        options |= {"block_table": table.npu(), "block_size": block}
        caches = []
        for t in (k, v):
            cache = torch.zeros(table.numel(), block, key_heads * size, dtype=dtype)
            cache[table.flatten().long()] = t.transpose(1, 2).reshape(table.numel(), block, -1)
            caches.append(cache)
    out = torch_npu.npu_incre_flash_attention(
        LAYOUTS[layout](q).contiguous().npu(), *(t.npu() for t in caches), num_heads=heads,
        num_key_value_heads=key_heads, input_layout=layout, scale_value=0.25, actual_seq_lengths=lengths,
        atten_mask=hidden.npu(), **options,
    )  # fmt: skip
    for i, length in enumerate(lengths):
        part = [q[i : i + 1].double(), *(t[i : i + 1, :, :length].double() for t in (k, v))]
        added = 0.0 if bias is None else bias[i : i + 1, ..., :length].double()
        expected, _ = attention(*part, 0.25, hidden[i : i + 1, ..., :length], bias=added)
        assert_close(out[i : i + 1], LAYOUTS[layout](expected), terms=16)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD", "BNSD_BSND"])
@pytest.mark.parametrize(
    "shape", [(8, 8, 1, 130, 64), (8, 2, 1, 77, 40), (12, 2, 3, 65, 17), (2, 1, 8, 9, 128)], ids=str
)
def test_few_queries_in_every_layout(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> None:
    heads, key_heads, queries, keys, size = shape
    q, k, v = inputs(queries, keys, heads, key_heads, size, 2, dtype)
    arrange, result = LAYOUTS[layout.split("_")[0]], LAYOUTS[layout.split("_")[-1]]
    arranged = [arrange(t).contiguous().npu() for t in (q, k, v)]
    for lengths in (None, [keys, keys // 2 + 1]):
        for mode in (0, 3):
            out, lse = torch_npu.npu_fused_infer_attention_score(
                *arranged, num_heads=heads, num_key_value_heads=key_heads, input_layout=layout, scale=0.25,
                sparse_mode=mode, actual_seq_lengths_kv=lengths, softmax_lse_flag=True,
            )  # fmt: skip
            for i, length in enumerate(lengths or [keys, keys]):
                part = (q[i : i + 1].double(), k[i : i + 1, :, :length].double(), v[i : i + 1, :, :length].double())
                hidden = ahead(queries, length, last=True) > 0 if mode == 3 else None
                expected, expected_lse = attention(*part, 0.25, hidden)
                assert_close(out[i : i + 1], result(expected), terms=16)
                assert_close(lse[i, ..., 0], expected_lse[0], terms=16)
