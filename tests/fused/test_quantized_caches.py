"""Attention for inference over keys and values in int8 and int4, and behind a prefix that all sequences share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_attention_operators import LAYOUTS, assert_close, attention, inputs
from torch import Tensor

import torch_npu

BATCH, HEADS, KEYS, SIZE = 2, 2, 13, 24  # heads of keys
# Shapes of scales and offsets, and what they become beside [B, N, S, D].
MODES: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {
    "all": (0, (1,), (1, 1, 1, 1)),
    "channel": (0, (HEADS, 1, SIZE), (1, HEADS, 1, SIZE)),
    "channel flat": (0, (1, HEADS * SIZE), (1, HEADS, 1, SIZE)),
    "token": (1, (BATCH, KEYS), (BATCH, 1, KEYS, 1)),
    "head": (2, (HEADS,), (1, HEADS, 1, 1)),
    "token of a head": (3, (BATCH, HEADS, KEYS), (BATCH, HEADS, KEYS, 1)),
}


def stored(shape: tuple[int, ...] = (BATCH, HEADS, KEYS, SIZE), bits: int = 8) -> list[Tensor]:
    return [torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), shape, dtype=torch.int8) for _ in range(2)]


def in_int32(numbers: Tensor) -> Tensor:
    """int4 numbers, eight in an int32, the first lowest."""
    packed = (numbers.long() & 15).unflatten(-1, (-1, 8)) << torch.arange(0, 32, 4)
    return packed.sum(-1).to(torch.int32)


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    return [(torch.rand(shape) / 50 + 0.01).to(dtype) for _ in range(2)], [
        torch.randint(-9, 9, shape).to(dtype) for _ in range(2)
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", ["BNSD", "BSH", "BSND"])
@pytest.mark.parametrize(("queries", "dtype"), [(1, torch.float16), (3, torch.bfloat16), (12, torch.float16)])
@pytest.mark.parametrize("version", ["", "_v2"])
@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_keys_and_values(
    mode: str, layout: str, queries: int, dtype: torch.dtype, version: str, bits: int
) -> None:
    q = inputs(queries, KEYS, size=SIZE, dtype=dtype)[0]
    caches = stored(bits=bits)
    kind, shape, beside = MODES[mode]
    scales, offsets = numbers(shape, torch.float32 if kind else dtype)
    names = ["scale_key", "scale_value", "offset_key", "offset_value"]
    keywords = [f"dequant_{n}" for n in names]
    if not version:
        keywords = [f"{n.split('_')[1]}_antiquant_{n.split('_')[0]}" for n in names]
    options: dict[str, Any] = {n: t.npu() for n, t in zip(keywords, scales + offsets, strict=True)}
    if version:
        options |= {"num_query_heads": 4, "softmax_scale": 0.3, "key_quant_mode": kind, "value_quant_mode": kind}
        options["actual_seq_kvlen"] = [KEYS, 9]
    else:
        options |= {"num_heads": 4, "scale": 0.3, "key_antiquant_mode": kind, "value_antiquant_mode": kind}
        options["actual_seq_lengths_kv"] = [KEYS, 9]
    arrange = LAYOUTS[layout]
    out, _ = getattr(torch_npu, f"npu_fused_infer_attention_score{version}")(
        *(arrange(t).contiguous().npu() for t in (q, *(caches if bits == 8 else map(in_int32, caches)))),
        num_key_value_heads=HEADS,
        input_layout=layout,
        **options,
    )
    k, v = (
        (t.double() + o.double().view(beside)) * s.double().view(beside)
        for t, s, o in zip(caches, scales, offsets, strict=True)
    )
    hidden = (torch.arange(KEYS) >= torch.tensor([KEYS, 9])[:, None])[:, None, None]
    expected, _ = attention(q.double(), k, v, 0.3, hidden)
    assert_close(out, arrange(expected), terms=64)


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_pages(per_head: bool, bits: int) -> None:
    block, table = 8, torch.tensor([[3, 0], [1, 2]], dtype=torch.int32)
    q = inputs(1, 16, size=SIZE, dtype=torch.float16)[0]
    caches = stored((4, HEADS, block, SIZE), bits)
    scales, offsets = numbers((4, HEADS, block) if per_head else (4, block), torch.float32)
    mode = 5 if per_head else 4
    out, _ = torch_npu.npu_fused_infer_attention_score(
        q.npu(), *(t.npu() for t in (caches if bits == 8 else map(in_int32, caches))), num_heads=4,
        num_key_value_heads=HEADS, input_layout="BNSD", scale=0.3, block_table=table.npu(), block_size=block,
        actual_seq_lengths_kv=[16, 11],
        key_antiquant_scale=scales[0].npu(), value_antiquant_scale=scales[1].npu(),
        key_antiquant_offset=offsets[0].npu(), value_antiquant_offset=offsets[1].npu(),
        key_antiquant_mode=mode, value_antiquant_mode=mode,
    )  # fmt: skip

    def plain(cache: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
        scale, offset = ((t if per_head else t[:, None]).double()[..., None] for t in (scale, offset))
        return ((cache.double() + offset) * scale)[table.long()].transpose(1, 2).flatten(2, 3)

    k, v = (plain(*parts) for parts in zip(caches, scales, offsets, strict=True))
    hidden = (torch.arange(16) >= torch.tensor([16, 11])[:, None])[:, None, None]
    assert_close(out, attention(q.double(), k, v, 0.3, hidden)[0], terms=64)


@pytest.mark.parametrize("op", ["npu_fused_infer_attention_score", "npu_incre_flash_attention"])
@pytest.mark.parametrize("shape", [(2,), (2, HEADS, 1, SIZE), (2, HEADS * SIZE)])
@pytest.mark.parametrize("bits", [8, 4])
def test_scales_of_keys_and_values_in_one_tensor(op: str, shape: tuple[int, ...], bits: int) -> None:
    q = inputs(1, KEYS, size=SIZE, dtype=torch.float16)[0]
    caches, (scale, _), (offset, _) = stored(bits=bits), *numbers(shape, torch.float16)
    scaled = {"scale": 0.3} if op == "npu_fused_infer_attention_score" else {"scale_value": 0.3}
    out = getattr(torch_npu, op)(
        q.npu(), *(t.npu() for t in (caches if bits == 8 else map(in_int32, caches))), num_heads=4,
        num_key_value_heads=HEADS, input_layout="BNSD", antiquant_scale=scale.npu(), antiquant_offset=offset.npu(),
        **scaled,
    )  # fmt: skip
    out = out[0] if isinstance(out, tuple) else out
    beside = (1, 1, 1, 1) if len(shape) == 1 else (1, HEADS, 1, SIZE)
    k, v = (
        (t.double() + offset[i].double().view(beside)) * scale[i].double().view(beside) for i, t in enumerate(caches)
    )
    assert_close(out, attention(q.double(), k, v, 0.3)[0], terms=64)


@pytest.mark.parametrize("layout", ["BNSD", "BSH"])
@pytest.mark.parametrize("queries", [1, 12])
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("mode", [0, 3])
def test_a_shared_prefix(layout: str, queries: int, quantized: bool, mode: int) -> None:
    q, k, v = inputs(queries, KEYS, size=SIZE, dtype=torch.float16)
    first = [torch.randn(1, HEADS, 9, SIZE).half() for _ in range(2)]
    options: dict[str, Any] = {}
    if quantized:
        (k, v), first = stored(), stored((1, HEADS, 9, SIZE))
        options = {
            "key_antiquant_scale": torch.tensor([0.02]).npu(),
            "value_antiquant_scale": torch.tensor([0.03]).npu(),
        }
    if mode:
        options["atten_mask"] = torch.ones(2048, 2048).triu(1).bool().npu()
    arrange = LAYOUTS[layout]
    out, lse = torch_npu.npu_fused_infer_attention_score(
        *(arrange(t).contiguous().npu() for t in (q, k, v)), num_heads=4, num_key_value_heads=HEADS,
        input_layout=layout, scale=0.3, sparse_mode=mode, softmax_lse_flag=True, actual_shared_prefix_len=[7],
        key_shared_prefix=arrange(first[0]).contiguous().npu(),
        value_shared_prefix=arrange(first[1]).contiguous().npu(), **options,
    )  # fmt: skip
    scales = (0.02, 0.03) if quantized else (1.0, 1.0)
    whole = [
        (torch.cat((p[:, :, :7].expand(BATCH, -1, -1, -1), t), 2).double() * s).half().double()
        for p, t, s in zip(first, (k, v), scales, strict=True)
    ]
    hidden = torch.ones(queries, KEYS + 7).triu(KEYS + 7 - queries + 1).bool() if mode else None
    expected, expected_lse = attention(q.double(), *whole, 0.3, hidden)
    assert_close(out, arrange(expected), terms=64)
    assert_close(lse[..., 0].cpu(), expected_lse, terms=64)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"value_antiquant_scale": 1}, "key_antiquant_scale and value_antiquant_scale belong together"),
        ({"key_antiquant_scale": 1, "value_antiquant_scale": 1}, "others must not have them"),
        ({"antiquant_offset": 1}, "an antiquant offset needs its scale"),
        ({"key_antiquant_mode": 6}, "key_antiquant_mode and value_antiquant_mode 0 to 5"),
        ({"key_shared_prefix": 1}, "key_shared_prefix and value_shared_prefix belong together"),
        ({"key_shared_prefix": 1, "value_shared_prefix": 1}, "must be one sequence in key's layout and dtype"),
    ],
)
def test_refusals(arguments: dict[str, Any], text: str) -> None:
    q, k, v = (t.npu() for t in inputs(1, KEYS, size=SIZE))
    arguments = {n: k if a == 1 else a for n, a in arguments.items()}
    with pytest.raises(ValueError, match=text):
        torch_npu.npu_fused_infer_attention_score(
            q, k, v, num_heads=4, num_key_value_heads=HEADS, input_layout="BNSD", **arguments
        )
