"""Attention over paged keys and values, and writing them, under the names of Ascend's transformer library."""

import pytest
import torch
from tolerance import assert_close

import torch_npu

BLOCKS, BLOCK_SIZE, HEADS, KEY_HEADS, SIZE, VALUE_SIZE = 12, 16, 8, 2, 48, 32
SCALE = SIZE**-0.5


def arguments(lengths: list[int], dtype: torch.dtype = torch.float16, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rand = lambda *shape: (torch.rand(*shape, generator=generator) * 2 - 1).to(dtype)  # noqa: E731
    most = -(-max(lengths) // BLOCK_SIZE)
    return {
        "query": rand(len(lengths), HEADS, SIZE),
        "key_cache": rand(BLOCKS, BLOCK_SIZE, KEY_HEADS, SIZE),
        "value_cache": rand(BLOCKS, BLOCK_SIZE, KEY_HEADS, VALUE_SIZE),
        "block_table": torch.randint(0, BLOCKS, (len(lengths), most), generator=generator, dtype=torch.int32),
        "context_lens": torch.tensor(lengths, dtype=torch.int32),
    }


def reference(a: dict[str, torch.Tensor]) -> torch.Tensor:
    """In float64, one sequence after another."""
    results = []
    for query, table, length in zip(a["query"], a["block_table"], a["context_lens"].tolist(), strict=True):
        key = a["key_cache"][table.long()].flatten(0, 1)[:length].double().repeat_interleave(HEADS // KEY_HEADS, 1)
        value = a["value_cache"][table.long()].flatten(0, 1)[:length].double().repeat_interleave(HEADS // KEY_HEADS, 1)
        weights = torch.softmax(SCALE * torch.einsum("hd,lhd->hl", query.double(), key), -1)
        results.append(torch.einsum("hl,lhd->hd", weights, value))
    return torch.stack(results)


def on_npu(a: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: t if name == "context_lens" else t.npu() for name, t in a.items()}


def attend(a: dict[str, torch.Tensor], out: torch.Tensor) -> None:
    torch_npu._npu_paged_attention(**a, num_kv_heads=KEY_HEADS, num_heads=HEADS, scale_value=SCALE, out=out)


def new_output(a: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.empty(len(a["query"]), HEADS, VALUE_SIZE, dtype=a["query"].dtype, device="npu")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("lengths", [[1], [16, 17, 40], [5, 33]])
def test_attention(lengths, dtype):
    a = arguments(lengths, dtype)
    there = on_npu(a)
    out = new_output(there)
    attend(there, out)
    assert_close(out.cpu(), reference(a).to(dtype))


def test_replays_with_other_lengths():
    a = arguments([7, 20])
    there = on_npu(a)
    out = new_output(there)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        attend(there, out)
    for lengths in ([7, 20], [32, 1]):
        a["context_lens"] = torch.tensor(lengths, dtype=torch.int32)
        graph.update(cpu_update_input=[{"context_lens": a["context_lens"]}])
        graph.replay()
        assert_close(out.cpu(), reference(a).to(out.dtype))


def test_what_is_no_cache_is_refused():
    a = on_npu(arguments([3]))
    with pytest.raises(ValueError, match=r"heads, size\], got .*\[12, 16, 96\]"):
        attend({**a, "key_cache": a["key_cache"].flatten(2)}, new_output(a))


def test_new_tokens_go_into_the_cache():
    a = arguments([3])
    key_cache, value_cache = a["key_cache"].npu(), a["value_cache"].npu()
    key, value = torch.rand(4, KEY_HEADS, SIZE).half(), torch.rand(4, KEY_HEADS, VALUE_SIZE).half()
    slots = torch.tensor([5, -1, BLOCK_SIZE, BLOCKS * BLOCK_SIZE - 1], dtype=torch.int32)  # the second is padding
    torch_npu._npu_reshape_and_cache(key.npu(), value.npu(), key_cache, value_cache, slots.npu())
    for cache, before, new in ((key_cache, a["key_cache"], key), (value_cache, a["value_cache"], value)):
        expected = before.clone()
        expected.flatten(0, 1)[slots[slots >= 0].long()] = new[slots >= 0]
        assert torch.equal(cache.cpu(), expected)


def test_new_tokens_go_into_a_packed_cache():
    """Quantized keys of 64 numbers in units of 32, values of 48 in units of 16."""
    key, value = torch.randint(-128, 128, (3, 1, 64), dtype=torch.int8), torch.rand(3, 1, 48).bfloat16()
    caches = [torch.randint(-128, 128, (5, 2, 16, 32), dtype=torch.int8), torch.rand(5, 3, 16, 16).bfloat16()]
    slots = torch.tensor([5, 16, 79], dtype=torch.int32)
    there = [torch_npu.npu_format_cast(cache.npu(), torch_npu.Format.FRACTAL_NZ) for cache in caches]
    torch_npu._npu_reshape_and_cache(key.npu(), value.npu(), *there, slots.npu())
    for cache, before, new in zip(there, caches, (key, value), strict=True):
        assert torch_npu.get_npu_format(cache) is torch_npu.Format.FRACTAL_NZ
        expected = before.clone()
        for token, slot in enumerate(slots.tolist()):
            expected[slot // 16, :, slot % 16] = new[token, 0].view(-1, before.shape[-1])
        assert torch.equal(cache.cpu(), expected)
    with pytest.raises(ValueError, match="expected caches in one layout"):
        torch_npu._npu_reshape_and_cache(key.npu(), value.npu(), there[0], value[None].npu(), slots.npu())


QUANTIZED_LENGTHS = [5, 33, 0, 16]


@pytest.mark.parametrize(("dtype", "number"), [(torch.float16, 1), (torch.bfloat16, 27)], ids=str)
def test_attention_in_int8(dtype, number):
    a = arguments([max(n, 1) for n in QUANTIZED_LENGTHS])
    query, keys, values = (
        torch.randint(-128, 128, a[name].shape, dtype=torch.int8) for name in ("query", "key_cache", "value_cache")
    )
    of_keys, of_values = torch.rand(HEADS) / 500, torch.rand(HEADS) - 0.5
    lengths = torch.tensor(QUANTIZED_LENGTHS, dtype=torch.int32)
    out = torch.empty(len(lengths), HEADS, VALUE_SIZE, dtype=dtype, device="npu")
    given = [t.npu() for t in (query, keys, values)]
    numbers = (KEY_HEADS, HEADS, SCALE, a["block_table"].npu(), lengths, 3, number, of_keys.npu(), of_values.npu())
    torch_npu._npu_paged_attention_quant(*given, *numbers, out)
    for i, length in enumerate(QUANTIZED_LENGTHS):
        k, v = (
            t[a["block_table"][i].long()].flatten(0, 1)[:length].double().repeat_interleave(HEADS // KEY_HEADS, 1)
            for t in (keys, values)
        )
        if length == 0:
            assert not out[i].any()
            continue
        scores = torch.einsum("hd,lhd->hl", query[i].double(), k) * of_keys.double()[:, None] * SCALE
        weights = (scores - scores.amax(1, keepdim=True)).exp()
        expected = torch.einsum("hl,lhd->hd", (weights * 127).round(), v)
        expected = expected * of_values.double()[:, None] / 127 / weights.sum(1)[:, None]
        assert_close(out[i].cpu(), expected, terms=4, atol=0.3)  # a share that is rounded the other way is 128 / 127
    with pytest.raises(TypeError, match="outdata_type 3"):
        torch_npu._npu_paged_attention_quant(*given, *numbers[:6], 3, *numbers[7:], out)
    with pytest.raises(NotImplementedError, match="quant_type must be 3"):
        torch_npu._npu_paged_attention_quant(*given, *numbers[:5], 1, *numbers[6:], out)
    with pytest.raises(ValueError, match=r"k_descale and v_descale \[8\]"):
        torch_npu._npu_paged_attention_quant(*given, *numbers[:8], numbers[8][:2], out)
