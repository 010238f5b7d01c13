"""Attention over chosen keys, and keys summed by blocks (torch_npu/composed), query by query in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
HEADS, WIDTH, ROPE, SCALE = 2, 8, 4, 0.3
LENGTHS, KEYS = [3, 1, 2], [9, 4, 6]


def attention(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Of one query [N, D]."""
    scores = q.double() @ k.double().T * SCALE
    both = scores if sinks is None else torch.cat((scores, sinks.double()[:, None]), 1)
    largest = both.amax(1)
    total = (both - largest[:, None]).exp().sum(1)
    return (scores - largest[:, None]).exp() @ v.double() / total[:, None], largest, total


def sample(block: int, dtype: torch.dtype) -> dict[str, list[Tensor]]:
    """Queries, keys, values and indices of each sequence; some indices end with -1."""
    data: dict[str, list[Tensor]] = {"q": [], "k": [], "v": [], "i": []}
    for queries, keys in zip(LENGTHS, KEYS, strict=True):
        data["q"].append(torch.randn(queries, HEADS, WIDTH + ROPE).to(dtype))
        data["k"].append(torch.randn(keys, WIDTH + ROPE).to(dtype))
        data["v"].append(data["k"][-1][:, :WIDTH])
        blocks = -(-keys // block)
        chosen = torch.stack([torch.randperm(blocks)[: min(3, blocks)] for _ in range(queries)])
        chosen = torch.nn.functional.pad(chosen, (0, 4 - chosen.shape[1]), value=-1)
        chosen[:, 0] = 0  # the first key is seen by all
        chosen[:, 1:] = chosen[:, 1:].where(chosen[:, 1:] != 0, -1)
        data["i"].append(chosen.int())
    return data


def reference(data: dict[str, list[Tensor]], block: int, causal: bool, sinks: Tensor | None) -> list[list[Tensor]]:
    found = []
    for q, k, v, indices in zip(*data.values(), strict=True):
        for row in range(len(q)):
            limit = len(k) - len(q) + row + 1 if causal else len(k)
            seen: list[int] = []
            for index in indices[row].tolist():
                if index < 0:
                    break
                seen += [t for t in range(index * block, (index + 1) * block) if t < min(limit, len(k))]
            found.append(attention(q[row], k[seen], v[seen], sinks))
    return [list(parts) for parts in zip(*found, strict=True)]


def padded(parts: list[Tensor], size: int, value: float = 0) -> Tensor:
    out = parts[0].new_full((len(parts), size, *parts[0].shape[1:]), value)
    for i, part in enumerate(parts):
        out[i, : len(part)] = part
    return out


def paged(keys: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Pages of 4 keys in another order, and which ones each sequence has."""
    order = torch.randperm(9)
    table = torch.full((3, 3), -1, dtype=torch.int32)
    cache = torch.randn(9, 4, 1, keys[0].shape[1]).to(keys[0].dtype)
    for i, k in enumerate(keys):
        for j in range(-(-len(k) // 4)):
            page = k[4 * j : 4 * j + 4]
            table[i, j] = order[3 * i + j]
            cache[table[i, j], : len(page), 0] = page
    return cache, table


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layouts", ["BSND BSND", "TND TND", "BSND PA_BSND", "TND PA_BSND"])
@pytest.mark.parametrize("block", [1, 2])
@pytest.mark.parametrize("mode", [0, 3])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_chosen_keys(device, dtype, layouts, block, mode, with_sinks):
    data, sinks = sample(block, dtype), torch.randn(HEADS) if with_sinks else None
    out, largest, total = reference(data, block, mode == 3, sinks)
    layout_query, layout_kv = layouts.split()
    tnd = layout_query == "TND"
    rows = torch.tensor([3 * i + j for i, n in enumerate(LENGTHS) for j in range(n)])
    query = torch.cat(data["q"]) if tnd else padded(data["q"], 3)
    indices = (torch.cat(data["i"]) if tnd else padded(data["i"], 3, -1)).unsqueeze(-2)
    ends = [torch.tensor(n).cumsum(0) if tnd else torch.tensor(n) for n in (LENGTHS, KEYS)]
    table = None
    if layout_kv == "PA_BSND":
        keys, table = paged(data["k"])
        ends[1] = torch.tensor(KEYS)
    else:
        keys = torch.cat(data["k"])[:, None] if tnd else padded(data["k"], 9)[:, :, None]
    parts = [query[..., :WIDTH], keys[..., :WIDTH], keys[..., :WIDTH], indices]
    options = {
        "block_table": table, "query_rope": query[..., WIDTH:], "key_rope": keys[..., WIDTH:], "sinks": sinks,
        "actual_seq_lengths_query": ends[0].int(), "actual_seq_lengths_kv": ends[1].int(),
    }  # fmt: skip
    actual = torch_npu.npu_sparse_flash_attention(
        *(t.to(device) for t in parts), SCALE, sparse_block_size=block, layout_query=layout_query,
        layout_kv=layout_kv, sparse_mode=mode, attention_mode=2, return_softmax_lse=True,
        **{n: None if t is None else t.to(device) for n, t in options.items()},
    )  # fmt: skip
    flat = [actual[0] if tnd else actual[0].flatten(0, 1)[rows]]
    flat += [t[0] if tnd else t.squeeze(1).flatten(0, 1)[rows] for t in actual[1:]]
    assert actual[0].dtype == dtype
    assert_close(flat[0], torch.stack(out), atol=torch.finfo(dtype).eps * 8)
    for a, e in zip(flat[1:], (largest, total), strict=True):
        assert_close(a, torch.stack(e), terms=9)
    if not tnd:
        rest = [r for r in range(9) if r not in rows.tolist()]
        assert not actual[0].flatten(0, 1)[rest].any()


def test_gradient_of_chosen_keys():
    q, k = torch.randn(1, 3, 2, 8, dtype=torch.float64), torch.randn(1, 5, 1, 8, dtype=torch.float64)
    indices = torch.tensor([[0, 3], [2, 1], [4, 0]]).view(1, 3, 1, 2).int()
    leaves = [t.float().npu().requires_grad_() for t in (q, k)]
    out = torch_npu.npu_sparse_flash_attention(
        leaves[0], leaves[1], leaves[1], indices.npu(), SCALE, sparse_mode=0, attention_mode=2
    )[0]
    reference = [t.requires_grad_() for t in (q, k)]
    rows = []
    for row in range(3):
        seen = k[0, indices[0, row, 0].long(), 0]
        rows.append((q[0, row] @ seen.T * SCALE).softmax(-1) @ seen)
    grad = torch.randn(1, 3, 2, 8)
    torch.stack(rows)[None].backward(grad.double())
    out.backward(grad.npu())
    for leaf, expected in zip(leaves, reference, strict=True):
        assert_close(leaf.grad, expected.grad, terms=16)


@pytest.mark.parametrize("layout", ["BSND", "TND"])
@pytest.mark.parametrize("block", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_explicit_gradient(layout, block, dtype):
    data = sample(block, dtype)
    tnd = layout == "TND"
    q, k, i = (
        torch.cat(data[n]) if tnd else padded(data[n], s, v) for n, s, v in (("q", 3, 0), ("k", 9, 0), ("i", 3, -1))
    )
    k, i = k.unsqueeze(-2), i.unsqueeze(-2)
    ends = [(torch.tensor(n).cumsum(0) if tnd else torch.tensor(n)).int().npu() for n in (LENGTHS, KEYS)]
    parts = [
        q[..., :WIDTH],
        k[..., :WIDTH],
        torch.randn(k[..., :WIDTH].shape).to(dtype),
        q[..., WIDTH:],
        k[..., WIDTH:],
    ]
    leaves = [t.contiguous().npu().requires_grad_() for t in parts]
    out, largest, total = torch_npu.npu_sparse_flash_attention(
        *leaves[:3], i.npu(), SCALE, query_rope=leaves[3], key_rope=leaves[4], sparse_block_size=block,
        actual_seq_lengths_query=ends[0], actual_seq_lengths_kv=ends[1], layout_query=layout, layout_kv=layout,
        attention_mode=2, return_softmax_lse=True,
    )  # fmt: skip
    grad = torch.randn(out.shape).to(dtype).npu()
    out.backward(grad)
    plain = [t.detach() for t in leaves]
    explicit = torch_npu.npu_sparse_flash_attention_grad(
        *plain[:3], i.npu(), grad, out.detach(), largest.detach(), total.detach(), SCALE, block, *plain[3:], *ends,
        layout, attention_mode=2,
    )  # fmt: skip
    for leaf, gradient in zip(leaves, explicit, strict=True):
        assert gradient.dtype == dtype
        assert_close(gradient, leaf.grad, terms=64, atol=torch.finfo(dtype).eps * 64)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_quantized_keys(dtype):
    tile, rope = 4, 2
    query = torch.randn(2, 3, HEADS, 8 + rope).bfloat16()
    numbers = torch.randint(-20, 20, (2, 6, 1, 8)).to(dtype)
    scales, turned = torch.rand(2, 6, 1, 2), torch.randn(2, 6, 1, rope).bfloat16()
    cache = torch.cat([t.contiguous().view(torch.int8) for t in (numbers, turned, scales)], -1).view(dtype).npu()
    wide = (numbers.float().unflatten(-1, (2, tile)) * scales.unsqueeze(-1)).flatten(-2)
    indices = torch.stack([torch.randperm(6)[:4] for _ in range(6)]).view(2, 3, 1, 4).int().npu()
    actual = torch_npu.npu_kv_quant_sparse_flash_attention(
        query.npu(),
        cache,
        cache,
        indices,
        SCALE,
        2,
        2,
        sparse_mode=0,
        attention_mode=2,
        tile_size=tile,
        rope_head_dim=rope,
    )
    expected = torch_npu.npu_sparse_flash_attention(
        query[..., :8].float().npu(), wide.npu(), wide.npu(), indices, SCALE, query_rope=query[..., 8:].float().npu(),
        key_rope=turned.float().npu(), sparse_mode=0, attention_mode=2,
    )[0]  # fmt: skip
    assert actual.dtype == torch.bfloat16
    assert_close(actual, expected.double(), terms=6)
    with pytest.raises(ValueError, match="key of 20 bytes"):
        torch_npu.npu_kv_quant_sparse_flash_attention(
            query.npu(), cache[..., 1:], cache[..., 1:], indices, SCALE, 2, 2, tile_size=tile, rope_head_dim=rope
        )
    with pytest.raises(NotImplementedError, match="quant modes"):
        torch_npu.npu_kv_quant_sparse_flash_attention(query.npu(), cache, cache, indices, SCALE, 1, 2)


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("ends", [None, [7, 9, 20], [20]])
def test_compression(device, dtype, ends):
    x, weight = torch.randn(20, 3, 4).to(dtype), torch.randn(4, 3).to(dtype)
    reference = [t.double().requires_grad_() for t in (x, weight)]
    blocks, begin = [], 0
    for end in ends or [20]:
        for start in range(begin, end - 3, 2):
            blocks.append((reference[0][start : start + 4] * reference[1][..., None]).sum(0))
        begin = end
    expected = torch.stack(blocks)
    leaves = [t.to(device).requires_grad_() for t in (x, weight)]
    actual = torch_npu.npu_nsa_compress(*leaves, 4, 2, actual_seq_len=ends)
    assert_close(actual, expected.detach(), terms=4, atol=torch.finfo(dtype).eps * 8)
    grad = torch.randn(expected.shape).to(dtype)
    expected.backward(grad.double())
    actual.backward(grad.to(device))
    explicit = torch_npu.npu_nsa_compress_grad(
        grad.to(device), *(t.detach() for t in leaves), 4, 2, actual_seq_len=ends
    )
    for leaf, tensor, result in zip(reference, leaves, explicit, strict=True):
        for gradient in (tensor.grad, result):
            assert_close(gradient, leaf.grad, terms=64, atol=torch.finfo(dtype).eps * 32)


Q, K, I4 = torch.zeros(2, 3, 2, 8), torch.zeros(2, 5, 1, 8), torch.zeros(2, 3, 1, 4).int()
REFUSED = {
    "layout": (lambda f: f(Q, K, K, I4, 1.0, attention_mode=2, layout_kv="TND"), "layout_query BSND or TND"),
    "mode": (lambda f: f(Q, K, K, I4, 1.0), "attention_mode 2"),
    "heads": (lambda f: f(Q, Q, Q, I4, 1.0, attention_mode=2), "with one head"),
    "indices": (lambda f: f(Q, K, K, I4[:, :2], 1.0, attention_mode=2), "sparse_indices"),
    "rope": (lambda f: f(Q, K, K, I4, 1.0, attention_mode=2, query_rope=Q), "query_rope with key_rope"),
    "table": (lambda f: f(Q, K, K, I4, 1.0, attention_mode=2, layout_kv="PA_BSND"), "block_table with"),
    "ends": (
        lambda f: f(Q[0], K[0], K[0], I4[0], 1.0, attention_mode=2, layout_query="TND", layout_kv="TND"),
        "actual_seq_lengths for",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call(torch_npu.npu_sparse_flash_attention)


def test_refused_blocks():
    with pytest.raises(ValueError, match="weight"):
        torch_npu.npu_nsa_compress(Q[0], Q[0, 0], 3, 1)
    with pytest.raises(ValueError, match="grow up to 3"):
        torch_npu.npu_nsa_compress(Q[0], Q[0, 0, :, :2], 2, 1, actual_seq_len=[2, 5])
