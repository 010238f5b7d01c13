"""Operators of Ascend's transformer library under torch.ops.atb, and attention of its other forms, in float64."""

from __future__ import annotations

import pytest
import torch
from tolerance import assert_close
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_npu

BLOCKS, BLOCK, HEADS, KEY_HEADS, SIZE, ROPE = 9, 16, 4, 2, 24, 8
SCALE = SIZE**-0.5
LENGTHS = [5, 33, 16]
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def rand(*shape: int, dtype: torch.dtype) -> Tensor:
    return (torch.rand(*shape) * 2 - 1).to(dtype)


def pages(dtype: torch.dtype, *sizes: int, heads: int = KEY_HEADS) -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(3)
    table = torch.randint(0, BLOCKS, (len(LENGTHS), 3), dtype=torch.int32)
    return [rand(BLOCKS, BLOCK, heads, size, dtype=dtype) for size in sizes], table


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float, added: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
    """Of queries [T, N, D] to keys [L, N2, D] and log(sum(exp(scores))) [T, N]."""
    k, v = (t.double().repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = torch.einsum("tnd,lnd->ntl", q.double(), k) * scale + added
    return torch.einsum("ntl,lnd->tnd", scores.softmax(-1), v), scores.logsumexp(-1).t()


def of_sequence(cache: Tensor, table: Tensor, number: int, length: int) -> Tensor:
    return cache[table[number].long()].flatten(0, 1)[:length]


@DTYPES
@pytest.mark.parametrize("biased", [False, True])
def test_paged_attention(dtype, biased):
    (keys, values), table = pages(dtype, SIZE, SIZE - 8)
    q = rand(len(LENGTHS), HEADS, SIZE, dtype=dtype)
    bias = rand(len(LENGTHS), HEADS, 1, max(LENGTHS), dtype=dtype) if biased else None
    given = q.npu(), keys.npu(), table.npu(), LENGTHS
    options = {
        "value_cache": values.npu(), "num_kv_heads": KEY_HEADS, "num_heads": HEADS, "scale_value": SCALE,
        "mask": None if bias is None else bias.npu(), "mask_type": 2 if biased else 0,
    }  # fmt: skip
    out = torch.empty(*q.shape[:2], SIZE - 8, dtype=dtype, device="npu")
    workspace = torch_npu.atb._npu_paged_attention_v2_get_workspace(*given, **options, out=out)
    assert torch_npu.atb._npu_paged_attention_v2(*given, **options, workspace=workspace, out=out) is out
    for number, length in enumerate(LENGTHS):
        k, v = (of_sequence(t, table, number, length) for t in (keys, values))
        added = 0.0 if bias is None else bias[number, :, :, :length].double()
        expected, _ = attention(q[number : number + 1], k, v, SCALE, added)
        assert_close(out[number : number + 1].cpu(), expected, terms=8)


@DTYPES
@pytest.mark.parametrize("form", ["plain", "out", "lse", "lse_out"])
def test_latent_attention(dtype, form):
    (latent, rotated), table = pages(dtype, SIZE, ROPE, heads=1)
    q, turned = rand(len(LENGTHS), HEADS, SIZE, dtype=dtype), rand(len(LENGTHS), HEADS, ROPE, dtype=dtype)
    tensors = [t.npu() for t in (q, turned, latent, rotated, table)]
    given = (*tensors, LENGTHS, HEADS, SCALE, 1)
    wanted = torch.empty_like(tensors[0]), torch.empty(*q.shape[:2], 1, dtype=dtype, device="npu")
    call = torch_npu.atb.npu_multi_head_latent_attention
    if form == "plain":
        out, lse = call(*given), None
    elif form == "out":
        out, lse = call(*given, output=wanted[0]), None
    elif form == "lse":
        out, lse = call(*given, True, calc_type="calc_type_ring")
    else:
        workspace = torch_npu.atb._npu_multi_head_latent_attention_get_workspace(*given, True)
        out, lse = call(*given, True, workspace=workspace, output=wanted[0], lse=wanted[1])
    assert out.dtype == dtype
    for number, length in enumerate(LENGTHS):
        k, r = (of_sequence(t, table, number, length) for t in (latent, rotated))
        query = torch.cat((q, turned), -1)[number : number + 1]
        expected, logs = attention(query, torch.cat((k, r), -1), k, SCALE)
        assert_close(out[number : number + 1].cpu(), expected, terms=8)
        if lse is not None:
            assert_close(lse[number].cpu(), logs[0, :, None].to(dtype), terms=8)


def test_latent_attention_replays_with_other_lengths():
    (latent, rotated), table = pages(torch.float16, SIZE, ROPE, heads=1)
    q, turned = rand(3, HEADS, SIZE, dtype=torch.float16), rand(3, HEADS, ROPE, dtype=torch.float16)
    tensors = [t.npu() for t in (q, turned, latent, rotated, table)]
    out, lse = torch.empty_like(tensors[0]), torch.empty(3, HEADS, 1, dtype=torch.float16, device="npu")
    call = torch_npu.atb.npu_multi_head_latent_attention
    workspace = torch_npu.atb._npu_multi_head_latent_attention_get_workspace(*tensors, [40] * 3, HEADS, SCALE, 1, True)
    graph, handle, stream = torch.npu.NPUGraph(), None, torch.npu.Stream()

    def run(lengths: list[int]) -> None:
        call(*tensors, lengths, HEADS, SCALE, 1, True, workspace=workspace, output=out, lse=lse)

    with torch.npu.graph(graph):
        torch.npu.graph_task_group_begin(torch.npu.current_stream())
        run([4, 4, 4])
        handle = torch.npu.graph_task_group_end(torch.npu.current_stream())
    with torch.npu.stream(stream):
        torch.npu.graph_task_update_begin(stream, handle)
        run(LENGTHS)
        torch.npu.graph_task_update_end(stream)
    graph.replay()
    torch.npu.synchronize()
    expected = call(*tensors, LENGTHS, HEADS, SCALE, 1, True)
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])


@DTYPES
def test_values_are_part_of_the_keys(dtype):
    (keys,), table = pages(dtype, SIZE)
    q, out = rand(3, HEADS, SIZE, dtype=dtype), torch.empty(3, HEADS, 10, dtype=dtype, device="npu")
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    torch_npu._npu_paged_attention_mla(q.npu(), keys.npu(), KEY_HEADS, HEADS, SCALE, table.npu(), lengths, 10, out)
    for number, length in enumerate(LENGTHS):
        k = of_sequence(keys, table, number, length)
        expected, _ = attention(q[number : number + 1], k, k[..., :10], SCALE)
        assert_close(out[number : number + 1].cpu(), expected, terms=8)


@DTYPES
def test_several_queries_of_each_sequence(dtype):
    (keys, values), table = pages(dtype, SIZE, SIZE)
    queries = [3, 1, 16]
    q = rand(sum(queries), HEADS, SIZE, dtype=dtype)
    rows = [torch.ones(n, max(LENGTHS)).triu(length - n + 1) for n, length in zip(queries, LENGTHS, strict=True)]
    mask = torch.cat(rows) * -10000
    out = torch.empty_like(q, device="npu")
    numbers = (torch.tensor(n, dtype=torch.int32) for n in (LENGTHS, queries))
    lengths, counts = numbers
    given = (q.npu(), keys.npu(), values.npu(), table.npu(), lengths, mask.to(dtype).npu())
    torch_npu._npu_paged_attention_splitfuse(*given, counts, KEY_HEADS, HEADS, SCALE, out)
    first = 0
    for number, (count, length) in enumerate(zip(queries, LENGTHS, strict=True)):
        k, v = (of_sequence(t, table, number, length) for t in (keys, values))
        added = mask[first : first + count, :length].double()
        expected, _ = attention(q[first : first + count], k, v, SCALE, added)
        assert_close(out[first : first + count].cpu(), expected, terms=16, atol=torch.finfo(dtype).eps)
        first += count
    with pytest.raises(ValueError, match="a row of mask"):
        torch_npu._npu_paged_attention_splitfuse(*given, counts + 1, KEY_HEADS, HEADS, SCALE, out)


@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("starts", [None, [0, 16, 0]])
def test_tokens_are_read_from_pages(cumulative, starts):
    (keys, values), table = pages(torch.float16, SIZE, ROPE)
    lengths = [5, 20, 0]
    context = torch.tensor([0, *torch.tensor(lengths).cumsum(0)] if cumulative else lengths, dtype=torch.int32)
    offset = None if starts is None else torch.tensor(starts, dtype=torch.int32)
    given = [t.npu() for t in (keys, values, table, context)]
    options = {"seq_starts": None if offset is None else offset.npu(), "cumsum": cumulative}
    results = torch_npu.atb.npu_paged_cache_load(*given, **options)
    into = [torch.empty_like(t) for t in results]
    torch_npu.atb.npu_paged_cache_load(*given, **options, key=into[0], value=into[1])
    for result, other, cache in zip(results, into, (keys, values), strict=True):
        expected = []
        for number, length in enumerate(lengths):
            block = 0 if starts is None else starts[number] // BLOCK
            expected.append(cache[table[number, block:].long()].flatten(0, 1)[:length])
        assert torch.equal(result.cpu(), torch.cat(expected))
        assert torch.equal(other, result)


def distances(queries: int, keys: int, slopes: Tensor | None, root: bool = False) -> Tensor:
    """What is added to scores [heads, queries, keys] by slopes, in float64; later keys are not seen."""
    far = (torch.arange(keys)[keys - queries :, None] - torch.arange(keys)).double()
    later = far < 0
    far = far.clamp_min(0)
    numbers = 0 if slopes is None else slopes.double()[:, None, None] * (far.sqrt() if root else far)
    return (torch.zeros(HEADS, queries, keys).double() + numbers).masked_fill(later, -torch.inf)


@DTYPES
@pytest.mark.parametrize("mask_type", [1, 2, 4, 5])
@pytest.mark.parametrize("flat", [False, True])
def test_prompts_with_a_bias(dtype, mask_type, flat):
    lengths, tokens = [7, 1, 12], 20
    q, k = rand(tokens, HEADS, SIZE, dtype=dtype), rand(tokens, KEY_HEADS, SIZE, dtype=dtype)
    v, slopes = rand(tokens, KEY_HEADS, SIZE - 8, dtype=dtype), -torch.rand(HEADS)
    shapes = {1: (12, 12), 2: (3, HEADS, 12, 12)}
    mask = rand(*shapes.get(mask_type, (256, 256)), dtype=dtype)
    out = torch.empty(tokens, HEADS, SIZE - 8, dtype=dtype, device="npu")
    given = [(t.flatten(1) if flat else t).npu() for t in (q, k, v)]
    torch_npu.atb._npu_flash_attention_v2(
        *given, lengths, mask=mask.npu(), slopes=slopes.npu(), mask_type=mask_type, scale_value=SCALE, num_heads=HEADS,
        num_kv_heads=KEY_HEADS, out=out.flatten(1) if flat else out,
    )  # fmt: skip
    first = 0
    for number, length in enumerate(lengths):
        some = slice(first, first + length)
        if mask_type < 3:
            added = (mask if mask_type == 1 else mask[number])[..., :length, :length].double()
        else:
            added = distances(length, length, slopes, mask_type == 5)
        assert_close(out[some].cpu(), attention(q[some], k[some], v[some], SCALE, added)[0], terms=8)
        first += length


@DTYPES
@pytest.mark.parametrize("mask_type", [3, 4, 5])
@pytest.mark.parametrize("flat", [False, True])
def test_prompts_behind_pages(dtype, mask_type, flat):
    (keys, values), table = pages(dtype, SIZE, SIZE)
    queries, slopes = [3, 33, 1], -torch.rand(HEADS)
    q = rand(sum(queries), HEADS, SIZE, dtype=dtype)
    caches = [(t.flatten(2) if flat else t).npu() for t in (keys, values)]
    out = torch.empty_like(q, device="npu")
    torch_npu.atb._npu_flash_attention_prefix_v2(
        q.npu(), *caches, table.npu(), torch.zeros(256, 256).npu(), queries, LENGTHS, slopes=slopes.npu(),
        mask_type=mask_type, num_kv_heads=KEY_HEADS, num_heads=HEADS, scale_value=SCALE, out=out,
    )  # fmt: skip
    first = 0
    for number, (count, length) in enumerate(zip(queries, LENGTHS, strict=True)):
        some = slice(first, first + count)
        k, v = (of_sequence(t, table, number, length) for t in (keys, values))
        added = distances(count, length, None if mask_type == 3 else slopes, mask_type == 5)
        assert_close(out[some].cpu(), attention(q[some], k, v, SCALE, added)[0], terms=8)
        first += count


def test_refusals_of_biases():
    q = rand(4, HEADS, SIZE, dtype=torch.float16).npu()
    call = torch_npu.atb._npu_flash_attention_v2
    options = {"num_heads": HEADS, "num_kv_heads": HEADS, "out": q}
    with pytest.raises(ValueError, match="mask_type 2 needs a mask"):
        call(q, q, q, [4], **options)
    with pytest.raises(ValueError, match=r"needs slopes \[4\]"):
        call(q, q, q, [4], mask_type=4, **options)
    with pytest.raises(NotImplementedError, match="mask_type 6"):
        call(q, q, q, [4], mask_type=6, **options)
    with pytest.raises(ValueError, match="expected 5 tokens"):
        call(q, q, q, [5], **options)
    with pytest.raises(ValueError, match="as many seq_len"):
        torch_npu.atb._npu_flash_attention_prefix_v2(q, q, q, torch.zeros(2, 1).int().npu(), q, [4], [4], **options)


def test_shapes_in_traces():
    with FakeTensorMode():
        q, rope = torch.empty(3, HEADS, SIZE, device="npu"), torch.empty(3, HEADS, ROPE, device="npu")
        pages = [torch.empty(BLOCKS, BLOCK, 1, size, device="npu") for size in (SIZE, ROPE)]
        table = torch.empty(3, 2, dtype=torch.int32, device="npu")
        out, lse = torch_npu.atb.npu_multi_head_latent_attention(q, rope, *pages, table, LENGTHS, HEADS, SCALE, 1, True)
    assert (out.shape, lse.shape) == (q.shape, (3, HEADS, 1))


def test_refusals():
    (keys, values), table = (lambda t: ([c.npu() for c in t[0]], t[1].npu()))(pages(torch.float16, SIZE, ROPE))
    q = rand(3, HEADS, SIZE, dtype=torch.float16).npu()
    call = torch_npu.atb._npu_paged_attention_v2
    with pytest.raises(ValueError, match="expected value_cache, and mask_type 0"):
        call(q, keys, table, LENGTHS, num_heads=HEADS, out=q)
    with pytest.raises(ValueError, match="a length for each sequence"):
        call(q, keys, table, [1], value_cache=keys, num_heads=HEADS, num_kv_heads=KEY_HEADS, out=q)
    with pytest.raises(NotImplementedError, match="qseqlen, cache_mode"):
        torch_npu.atb.npu_multi_head_latent_attention(
            q, q, keys, values, table, LENGTHS, HEADS, SCALE, 1, qseqlen=[2, 2, 2], cache_mode="int8_nzcache"
        )
    with pytest.raises(ValueError, match="caches"):
        torch_npu.atb.npu_paged_cache_load(keys[0], values, table, table[:, 0])
    with pytest.raises(AttributeError, match="no attribute 'npu_nothing'"):
        torch_npu.atb.npu_nothing  # noqa: B018
