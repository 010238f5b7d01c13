"""Compressed, chosen and block-sparse attention (torch_npu/composed), query by query in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
N, N2, D, D2, SCALE = 4, 2, 8, 6, 0.4


def attention(q: Tensor, k: Tensor, v: Tensor, seen: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of one head of one query: result, shares, maximum and sum; a key may be seen twice."""
    scores = k[seen] @ q * SCALE
    weights = (scores - scores.max()).exp()
    shares = weights / weights.sum()
    return shares @ v[seen], shares, scores.max(), weights.sum()


def of_rows(x: Tensor) -> Tensor:
    return x.double().requires_grad_()


@DEVICES
@DTYPES
@pytest.mark.parametrize("masked", [False, True])
def test_compressed_keys_choose_blocks(device, dtype, masked):
    queries, keys, blocks = [0, 3, 5], [0, 6, 11], [0, 4, 7]
    stride, compressed, selected, count = 2, 4, 4, 3
    q, k = torch.randn(5, N, D).to(dtype), torch.randn(11, N2, D).to(dtype)
    v = torch.randn(11, N2, D2).to(dtype)
    topk = torch.eye(3, 4).to(torch.uint8) if masked else None
    mask = torch.triu(torch.ones(3, 6), 1).to(torch.uint8) if masked else None
    out, chosen, largest, total = torch_npu.npu_nsa_compress_attention(
        q.to(device), k.to(device), v.to(device), SCALE, N, compressed, stride, selected, count,
        topk_mask=None if topk is None else topk.to(device), atten_mask=None if mask is None else mask.to(device),
        actual_seq_qlen=queries[1:], actual_cmp_seq_kvlen=keys[1:], actual_sel_seq_kvlen=blocks[1:],
    )  # fmt: skip
    assert out.dtype == dtype
    for s in range(2):
        room = keys[s + 1] - keys[s]
        for row in range(queries[s + 1] - queries[s]):
            at = queries[s] + row
            seen = [t for t in range(room) if not masked or t <= row]
            for group in range(N2):
                importance = torch.zeros(blocks[s + 1] - blocks[s], dtype=torch.float64)
                for head in range(group * N // N2, (group + 1) * N // N2):
                    part = slice(keys[s], keys[s + 1])
                    made = attention(q[at, head].double(), k[part, group].double(), v[part, group].double(), seen)
                    assert_close(out[at, head], made[0], atol=torch.finfo(dtype).eps * 4)
                    assert_close(largest[at, head], made[2].expand(8), terms=D)
                    assert_close(total[at, head], made[3].expand(8), terms=D)
                    for block in range(len(importance)):
                        for m in range(selected // stride):
                            for n in range(compressed // stride):
                                index = selected // stride * (block + 1) - m - n
                                importance[block] += made[1][index] if index in seen else 0
                if masked:
                    importance[: topk.shape[1]][topk[row, : len(importance)].bool()] = torch.inf
                picked = chosen[at, group].cpu().long()
                best = importance.sort(descending=True)[0][:count]
                assert len(set(picked.tolist())) == count
                assert_close(importance[picked].float(), best, atol=1e-5)


def selected(dtype: torch.dtype) -> tuple[list[Tensor], Tensor, list[int], list[int], int]:
    tensors = [torch.randn(5, N, D), torch.randn(20, N2, D), torch.randn(20, N2, D2)]
    indices = torch.tensor([[0, 2, -1], [1, 1, 0], [2, 0, 1]])[torch.randint(0, 3, (5, N2))]
    return [t.to(dtype) for t in tensors], indices.int(), [3, 5], [12, 20], 4


@DEVICES
@DTYPES
@pytest.mark.parametrize("causal", [False, True])
def test_chosen_blocks(device, dtype, causal):
    tensors, indices, ends_q, ends, block = selected(dtype)
    indices[3:] = indices[3:].clamp_max(1)
    indices[..., 0] = 0  # every query sees its sequence's first key
    wide = [of_rows(t) for t in tensors]
    rows, statistics = [], []
    for at in range(5):
        s = int(at >= ends_q[0])
        start, row, room = [0, ends[0]][s], at - [0, ends_q[0]][s], [12, 8][s]
        for head in range(N):
            group = head // (N // N2)
            seen = [b * block + i for b in indices[at, group].tolist() if b >= 0 for i in range(block)]
            seen = [t for t in seen if not causal or t <= row]
            part = slice(start, start + room)
            out, _, largest, total = attention(wide[0][at, head], wide[1][part, group], wide[2][part, group], seen)
            rows.append(out)
            statistics.append((largest, total))
    expected = torch.stack(rows).view(5, N, D2)
    leaves = [t.to(device).requires_grad_() for t in tensors]
    mask = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), 1).to(device) if causal else None
    options = {"atten_mask": mask, "actual_seq_qlen": ends_q, "actual_seq_kvlen": ends}
    out, largest, total = torch_npu.npu_nsa_select_attention(*leaves, indices.to(device), SCALE, N, block, 3, **options)
    assert_close(out.detach(), expected.detach(), atol=torch.finfo(dtype).eps * 4)
    assert_close(largest[..., 0].flatten().detach(), torch.stack([a for a, _ in statistics]).detach(), terms=D)
    assert_close(total[..., 7].flatten().detach(), torch.stack([b for _, b in statistics]).detach(), terms=D)
    grad = torch.randn(expected.shape).to(dtype)
    expected.backward(grad.double())
    out.backward(grad.to(device))
    explicit = torch_npu.npu_nsa_select_attention_grad(
        grad.to(device), *(t.detach() for t in leaves), out.detach(), largest.detach(), total.detach(),
        indices.to(device), SCALE, N, block, 3, **options,
    )  # fmt: skip
    for leaf, gradient, reference in zip(leaves, explicit, wide, strict=True):
        assert_close(gradient, reference.grad, terms=64, atol=torch.finfo(dtype).eps * 32)
        assert_close(leaf.grad, reference.grad, terms=64, atol=torch.finfo(dtype).eps * 32)


@DEVICES
@DTYPES
@pytest.mark.parametrize("layout", ["TND", "BNSD"])
def test_blocks_of_a_mask(device, dtype, layout):
    lengths, lengths_kv, shape = [5, 3], [7, 6], [2, 3]
    mask = torch.randint(0, 2, (2, N, 3, 3)).to(torch.int8)
    mask[0, 0, 0] = 0
    q, k, v = (
        [torch.randn(n, h, D).to(dtype) for n in ns] for ns, h in ((lengths, N), (lengths_kv, N2), (lengths_kv, N2))
    )
    wide = [[of_rows(t) for t in part] for part in (q, k, v)]
    expected, logs = [], []
    for s in range(2):
        out, log = torch.zeros(lengths[s], N, D, dtype=torch.float64), torch.full((lengths[s], N, 1), -torch.inf)
        for row in range(lengths[s]):
            for head in range(N):
                group = head // (N // N2)
                seen = [t for t in range(lengths_kv[s]) if mask[s, head, row // shape[0], t // shape[1]]]
                if seen:
                    made = attention(wide[0][s][row, head], wide[1][s][:, group], wide[2][s][:, group], seen)
                    out[row, head] = made[0]
                    log[row, head] = (made[2] + made[3].log()).detach()
        expected.append(out)
        logs.append(log)

    def arranged(parts: list[Tensor]) -> Tensor:
        if layout == "TND":
            return torch.cat(parts)
        room = max(len(p) for p in parts)
        rows = [torch.nn.functional.pad(p, (0, 0, 0, 0, 0, room - len(p))) for p in parts]
        return torch.stack(rows).transpose(1, 2).contiguous()

    leaves = [arranged(part).to(device).requires_grad_() for part in (q, k, v)]
    options = {"q_input_layout": layout, "kv_input_layout": layout, "num_key_value_heads": N2, "scale_value": SCALE}
    out, log = torch_npu.npu_block_sparse_attention(
        *leaves, mask.to(device), shape, actual_seq_lengths=lengths, actual_seq_lengths_kv=lengths_kv,
        softmax_lse_flag=1, **options,
    )  # fmt: skip
    assert out.dtype == dtype
    assert_close(out.detach(), arranged([t.detach() for t in expected]), atol=torch.finfo(dtype).eps * 4)
    if layout == "TND":
        assert_close(log.detach(), torch.cat(logs).double(), terms=D)
    grad = [torch.randn(t.shape).to(dtype) for t in expected]
    torch.autograd.backward(expected, [g.double() for g in grad])
    given = arranged(grad).to(device)
    out.backward(given)
    explicit = torch_npu.npu_block_sparse_attention_backward(
        given, *(t.detach() for t in leaves), out.detach(), log.detach(), mask.to(device), shape, lengths, lengths_kv,
        layout, layout, N2, SCALE,
    )  # fmt: skip
    for leaf, gradient, parts in zip(leaves, explicit, wide, strict=True):
        reference = arranged([p.grad for p in parts])
        assert_close(gradient, reference, terms=64, atol=torch.finfo(dtype).eps * 32)
        assert_close(leaf.grad, reference, terms=64, atol=torch.finfo(dtype).eps * 32)


Q, K = torch.zeros(4, N, D), torch.zeros(6, N2, D)
INDICES, MASK = torch.zeros(4, N2, 2).int(), torch.ones(1, N, 2, 2).to(torch.int8)
REFUSED = {
    "heads": (ValueError, "query", lambda: torch_npu.npu_nsa_select_attention(Q, K, K, INDICES, 1.0, 3, 2, 2)),
    "ends": (ValueError, "ends of", lambda: torch_npu.npu_nsa_select_attention(Q, K, K, INDICES, 1.0, N, 2, 2)),
    "mask": (
        NotImplementedError, "atten_mask",
        lambda: torch_npu.npu_nsa_select_attention(
            Q, K, K, INDICES, 1.0, N, 2, 2, atten_mask=Q[0], actual_seq_qlen=[4], actual_seq_kvlen=[6]
        ),
    ),
    "stride": (
        ValueError, "compress_stride", lambda: torch_npu.npu_nsa_compress_attention(Q, K, K, 1.0, N, 3, 2, 4, 1)
    ),
    "blocks": (
        ValueError, "blocks at least",
        lambda: torch_npu.npu_nsa_compress_attention(
            Q, K, K, 1.0, N, 4, 2, 4, 9, actual_seq_qlen=[4], actual_cmp_seq_kvlen=[6], actual_sel_seq_kvlen=[3]
        ),
    ),
    "lengths": (
        ValueError, "actual lengths",
        lambda: torch_npu.npu_block_sparse_attention(Q, K, K, MASK, [2, 3], num_key_value_heads=N2),
    ),
    "layout": (
        ValueError, "layouts TND",
        lambda: torch_npu.npu_block_sparse_attention(Q, K, K, MASK, [2, 3], kv_input_layout="BNSD"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    error, message, call = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
