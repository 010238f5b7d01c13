"""Native sparse attention to keys in pages (torch_npu/composed/paged_sparse_attention.py), in float64."""

from __future__ import annotations

import pytest
import torch

import torch_npu
from tests.composed.test_native_sparse_attention import D2, DEVICES, DTYPES, N2, SCALE, D, N, attention
from tests.tolerance import assert_close


@DEVICES
@DTYPES
@pytest.mark.parametrize("layout", ["TND", "BSND"])
def test_compressed_keys_in_pages_choose_blocks(device, dtype, layout):
    lengths, page, stride, compressed, selected, count = [13, 9, 16], 4, 2, 4, 4, 4
    q, table = torch.randn(3, N, D).to(dtype), torch.randint(0, 6, (3, 4)).int()
    k, v = torch.randn(6, page, N2 * D).to(dtype), torch.randn(6, page, N2 * D2).to(dtype)
    given = q if layout == "TND" else q[:, None]
    out, chosen = torch_npu.npu_nsa_compress_attention_infer(
        given.to(device), k.to(device), v.to(device), SCALE, N, N2, selected, count, page, compressed, stride,
        layout=layout, block_table=table.to(device), actual_cmp_seq_kvlen=lengths,
    )  # fmt: skip
    assert out.dtype == dtype
    assert out.shape == (*given.shape[:-1], D2)
    assert chosen.shape == (*given.shape[:-2], N2, count)
    assert chosen.dtype == torch.int32
    out, chosen = out.view(3, N, D2), chosen.view(3, N2, count).cpu().long()
    for b, length in enumerate(lengths):
        keys, values = (t.double()[table[b].long()].view(16, N2, -1) for t in (k, v))
        blocks = -(-((length - 1) * stride + compressed) // selected)
        for group in range(N2):
            importance = torch.zeros(blocks, dtype=torch.float64)
            for head in range(group * N // N2, (group + 1) * N // N2):
                made = attention(q[b, head].double(), keys[:, group], values[:, group], list(range(length)))
                assert_close(out[b, head], made[0], atol=torch.finfo(dtype).eps * 4)
                for block in range(blocks):
                    for m in range(selected // stride):
                        for n in range(compressed // stride):
                            index = selected // stride * (block + 1) - m - n
                            importance[block] += made[1][index] if 0 <= index < length else 0
            assert chosen[b, group, :3].tolist() == [0, blocks - 2, blocks - 1]
            best = importance[1:-2].max()
            assert_close(importance[chosen[b, group, 3]].float(), best, atol=1e-5)


@DEVICES
@DTYPES
@pytest.mark.parametrize("layout", ["BSND", "BSH", "TND"])
@pytest.mark.parametrize("flat", [False, True])
def test_blocks_of_pages(device, dtype, layout, flat):
    lengths, page, block, count = [5, 11, 2], 4, 3, 2
    table = torch.tensor([[6, 0, -1], [2, 1, 5], [3, -1, -1]]).int()
    indices = torch.tensor([[[1, 0], [0, -1]], [[3, 1], [2, 0]], [[0, -1], [0, -1]]]).int()
    q, k, v = (torch.randn(s).to(dtype) for s in ((3, N, D), (7, page, N2, D), (7, page, N2, D2)))
    shape = {"BSND": (3, 1, N, -1), "BSH": (3, 1, -1), "TND": (3, N, -1)}[layout]
    pages = [(t.flatten(2) if flat else t).to(device) for t in (k, v)]
    out = torch_npu.npu_nsa_select_attention_infer(
        q.view(shape).to(device), *pages, indices.to(device), SCALE, N, N2, block, count, page, layout=layout,
        block_table=table.to(device), actual_seq_qlen=[1, 2, 3], actual_seq_kvlen=lengths,
    )  # fmt: skip
    assert out.dtype == dtype
    expected = torch.zeros(3, N, D2, dtype=torch.float64)
    for b, length in enumerate(lengths):
        keys, values = (t.double()[table[b].long().clamp_min(0)].flatten(0, 1) for t in (k, v))
        for head in range(N):
            group = head // (N // N2)
            places = [block * int(i) + j for i in indices[b, group] if i >= 0 for j in range(block)]
            seen = [place for place in places if place < length]
            expected[b, head] = attention(q[b, head].double(), keys[:, group], values[:, group], seen)[0]
    assert_close(out, expected.view(shape), terms=16)


def test_refusals_of_pages():
    q, k = torch.zeros(3, 2, N, D), torch.zeros(7, 4, N2, D)
    given = (torch.zeros(3, N2, 2).int(), SCALE, N, N2, 3, 2, 4)
    options = {"block_table": torch.zeros(3, 2).int(), "actual_seq_kvlen": [5, 5, 5]}
    with pytest.raises(ValueError, match="one query a sequence"):
        torch_npu.npu_nsa_select_attention_infer(q, k, k, *given, **options)
    with pytest.raises(NotImplementedError, match="atten_mask"):
        torch_npu.npu_nsa_select_attention_infer(q[:, :1], k, k, *given, **options, atten_mask=q)
    with pytest.raises(ValueError, match="block_table"):
        torch_npu.npu_nsa_select_attention_infer(q[:, :1], k, k, *given)


COMPRESSED = {"block_table": torch.zeros(3, 2).int(), "actual_cmp_seq_kvlen": [7, 7, 7]}
REFUSED = {
    "a mask": (NotImplementedError, "atten_mask", {"atten_mask": torch.zeros(1)}, 2),
    "queries": (ValueError, "one query a sequence", {"actual_seq_qlen": [2, 2, 2]}, 2),
    "no pages": (ValueError, "block_table", {"block_table": None}, 2),
    "too few blocks": (ValueError, "9 blocks at least", {}, 9),
    "too few pages": (ValueError, "at most 8 keys", {"actual_cmp_seq_kvlen": [7, 7, 9]}, 2),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_of_compressed_pages(case):
    error, message, options, count = REFUSED[case]
    q, k = torch.zeros(3, N, D), torch.zeros(7, 4, N2 * D)
    with pytest.raises(error, match=message):
        torch_npu.npu_nsa_compress_attention_infer(q, k, k, SCALE, N, N2, 4, count, 4, 4, 2, **COMPRESSED | options)
