"""Mixture of experts: routing by a map, of several ranks, its older form, and gradients of gates, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from operator_case import FLOATS
from tolerance import assert_close
from torch import Tensor
from torch.utils._pytree import tree_map

import torch_npu

TOKENS, EXPERTS, WIDTH, COPIES = 7, 5, 12, 2


def on_npu(values: Any) -> Any:
    return tree_map(lambda x: x.npu() if isinstance(x, Tensor) else x, values)


def leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_()


@pytest.fixture
def routing_map() -> Tensor:
    """As many experts for each token; some experts have more tokens than others."""
    torch.manual_seed(0)
    scores = torch.rand(TOKENS, EXPERTS) + torch.arange(EXPERTS) / 10
    return torch.zeros(TOKENS, EXPERTS, dtype=torch.bool).scatter(1, scores.topk(COPIES).indices, True)


def rows_of(drop_and_pad: bool) -> int:
    return EXPERTS * 3 if drop_and_pad else TOKENS * COPIES


def permute(tokens: Tensor, routing_map: Tensor, probs: Tensor, drop_and_pad: bool) -> tuple[Tensor, Tensor, Tensor]:
    if drop_and_pad:
        order = routing_map.int().T.argsort(dim=1, descending=True, stable=True)[:, :3]
        return tokens[order.flatten()], probs.T.gather(1, order).flatten(), order.flatten()
    _, token = routing_map.T.nonzero(as_tuple=True)
    return tokens[token], probs.T[routing_map.T], token.argsort(stable=True)


def unpermute(rows: Tensor, indices: Tensor, routing_map: Tensor, probs: Tensor | None, drop_and_pad: bool) -> Tensor:
    if drop_and_pad:
        if probs is not None:
            rows = rows * probs.T.gather(1, indices.view(EXPERTS, 3)).view(-1, 1)
        return torch.zeros(TOKENS, WIDTH, dtype=rows.dtype).index_add(0, indices, rows)
    if probs is not None:
        rows = rows * probs.T[routing_map.T].unsqueeze(1)
    return rows[indices].view(TOKENS, COPIES, WIDTH).sum(1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("drop_and_pad", [False, True])
@pytest.mark.parametrize("map_dtype", [torch.bool, torch.int8])
def test_tokens_to_experts(routing_map, dtype, drop_and_pad, map_dtype):
    tokens, probs = torch.randn(TOKENS, WIDTH).to(dtype), torch.rand(TOKENS, EXPERTS)
    options = {"num_out_tokens": rows_of(drop_and_pad), "drop_and_pad": drop_and_pad}
    device_map = routing_map.to(map_dtype).npu()
    permuted, permuted_probs, indices = torch_npu.npu_moe_token_permute_with_routing_map(
        tokens.npu(), device_map, probs=probs.npu(), **options
    )
    expected = permute(tokens, routing_map, probs, drop_and_pad)
    for actual, wanted in zip((permuted, permuted_probs, indices), expected, strict=True):
        assert torch.equal(actual.cpu(), wanted.to(actual.dtype))
    assert indices.dtype == torch.int32
    alone, nothing, again = torch_npu.npu_moe_token_permute_with_routing_map(tokens.npu(), device_map, **options)
    assert nothing is None
    assert torch.equal(alone, permuted)
    assert torch.equal(again, indices)


@pytest.mark.parametrize("drop_and_pad", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_of_tokens_to_experts(routing_map, drop_and_pad, weighted):
    tokens, probs = torch.randn(TOKENS, WIDTH), torch.rand(TOKENS, EXPERTS)
    reference, device = [[leaf(t.double()) for t in (tokens, probs)], [leaf(t.npu()) for t in (tokens, probs)]]
    expected = permute(reference[0], routing_map, reference[1], drop_and_pad)
    actual = torch_npu.npu_moe_token_permute_with_routing_map(
        device[0], routing_map.npu(), probs=device[1] if weighted else None, num_out_tokens=rows_of(drop_and_pad),
        drop_and_pad=drop_and_pad,
    )  # fmt: skip
    count = 2 if weighted else 1
    cotangents = [torch.randn(t.shape) for t in expected[:count]]
    torch.autograd.backward(expected[:count], [c.double() for c in cotangents])
    torch.autograd.backward(actual[:count], [c.npu() for c in cotangents])
    for a, e in zip(device[:count], reference[:count], strict=True):
        assert_close(a.grad, e.grad, terms=COPIES)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("drop_and_pad", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_experts_to_tokens(routing_map, dtype, drop_and_pad, weighted):
    rows = torch.randn(rows_of(drop_and_pad), WIDTH).to(dtype)
    probs = torch.rand(TOKENS, EXPERTS).to(dtype)
    indices = permute(torch.zeros(TOKENS, 1), routing_map, probs, drop_and_pad)[2]
    reference, device = [[leaf(t.double()) for t in (rows, probs)], [leaf(t.npu()) for t in (rows, probs)]]
    expected = unpermute(reference[0], indices, routing_map, reference[1] if weighted else None, drop_and_pad)
    actual = torch_npu.npu_moe_token_unpermute_with_routing_map(
        device[0], indices.int().npu(), [TOKENS, WIDTH], probs=device[1] if weighted else None,
        routing_map=routing_map.npu(), drop_and_pad=drop_and_pad,
    )  # fmt: skip
    assert_close(actual, expected, terms=EXPERTS, atol=torch.finfo(dtype).eps * 8)
    cotangent = torch.randn(expected.shape).to(dtype)
    expected.backward(cotangent.double())
    actual.backward(cotangent.npu())
    assert_close(device[0].grad, reference[0].grad)
    if weighted:
        assert_close(device[1].grad, reference[1].grad, terms=WIDTH, atol=torch.finfo(dtype).eps * 8)


def test_there_and_back(routing_map):
    tokens = torch.randn(TOKENS, WIDTH)
    permuted, _, indices = torch_npu.npu_moe_token_permute_with_routing_map(
        tokens.npu(), routing_map.npu(), num_out_tokens=TOKENS * COPIES
    )
    restored, row, token, probs = torch_npu._npu_moe_token_unpermute_with_routing_map(
        permuted, indices, [TOKENS, WIDTH], routing_map=routing_map.npu()
    )
    assert_close(restored, tokens.double() * COPIES)
    assert probs is None
    assert torch.equal(row, indices)
    assert token.tolist() == [i // COPIES for i in range(TOKENS * COPIES)]


def test_no_tokens():
    tokens, routing_map = torch.zeros(0, WIDTH).npu(), torch.zeros(0, EXPERTS, dtype=torch.bool).npu()
    permuted, _, indices = torch_npu.npu_moe_token_permute_with_routing_map(tokens, routing_map, num_out_tokens=0)
    assert permuted.shape == (0, WIDTH)
    restored = torch_npu.npu_moe_token_unpermute_with_routing_map(
        permuted, indices, [0, WIDTH], routing_map=routing_map
    )
    assert restored.shape == (0, WIDTH)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scaled", [False, True])
def test_rows_of_several_ranks(dtype, scaled):
    torch.manual_seed(0)
    counts = torch.tensor([[2, 0, 3], [1, 4, 0], [0, 1, 2]], dtype=torch.int32)
    tokens = torch.randint(-9, 9, (13, 4)).to(dtype)
    scales = torch.rand(13)
    owner = torch.arange(3).repeat(3).repeat_interleave(counts.flatten().long())  # the expert of each row
    order = owner.argsort(stable=True)
    permuted, permuted_scales, idx, sums = torch_npu.npu_moe_re_routing(
        tokens.npu(), counts.npu(), per_token_scales=scales.npu() if scaled else None
    )
    assert torch.equal(permuted.cpu(), tokens[order])
    assert torch.equal(idx.cpu(), order.int())
    assert torch.equal(sums.cpu(), counts.sum(0).int())
    assert permuted_scales.shape == (13,)
    if scaled:
        assert torch.equal(permuted_scales.cpu(), scales[order])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("active", [0, 3, 99])
def test_older_routing(dtype, active):
    torch.manual_seed(0)
    x, experts = torch.randn(TOKENS, WIDTH).to(dtype), torch.randint(0, 4, (TOKENS, 3), dtype=torch.int32)
    rows = torch.arange(TOKENS * 3, dtype=torch.int32).view(3, TOKENS).T.contiguous()
    expanded, row_idx, expert_idx = torch_npu.npu_moe_init_routing(x.npu(), rows.npu(), experts.npu(), active)
    sorted_experts, order = experts.flatten().sort(stable=True)
    source = rows.flatten()[order]
    kept = min(active, TOKENS) * 3
    assert torch.equal(expanded.cpu(), x[source[:kept] % TOKENS])
    assert torch.equal(row_idx.cpu(), source.argsort().int())
    assert torch.equal(expert_idx.cpu(), sorted_experts)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("renorm", [0, 1])
def test_gating_by_softmax(dtype, renorm):
    torch.manual_seed(0)
    x, finished = torch.randn(2, 3, 9).to(dtype), torch.tensor([[True, False, False], [False, True, False]])
    weights, chosen, softmax = torch_npu.npu_moe_gating_top_k_softmax_v2(
        x.npu(), k=4, finished=finished.npu(), renorm=renorm, output_softmax=True
    )
    values, expected = x.double().topk(4)
    shares = values.softmax(-1) if renorm else x.double().softmax(-1).gather(-1, expected)
    assert_close(weights, shares)
    assert torch.equal(chosen.cpu(), expected.masked_fill(finished[..., None], 9).int())
    assert softmax.shape == ((0,) if renorm else x.shape)
    if not renorm:
        assert_close(softmax, x.double().softmax(-1))


@pytest.mark.parametrize("out_flag", [False, True])
@pytest.mark.parametrize(("norm_type", "renorm"), [(0, 0), (0, 1), (1, 0)])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradient_of_the_gate(dtype, norm_type, renorm, out_flag):
    torch.manual_seed(0)
    x = torch.randn(6, 16).to(dtype)
    device, reference = leaf(x.npu()), leaf(x.double())
    y, chosen, _ = torch_npu.npu_moe_gating_top_k(
        device, 4, bias=torch.randn(16).to(dtype).npu(), k_group=2, group_count=4, norm_type=norm_type, renorm=renorm,
        out_flag=out_flag, routed_scaling_factor=2.5,
    )  # fmt: skip
    scores = reference.sigmoid() if norm_type else reference.softmax(-1)
    expected = scores.gather(1, chosen.cpu().long())
    if norm_type or renorm:
        expected = expected / expected.sum(-1, keepdim=True)
    expected = expected * 2.5
    assert_close(y, expected)
    cotangent = torch.randn(6, 4).to(dtype)
    y.backward(cotangent.npu())
    expected.backward(cotangent.double())
    assert_close(device.grad, reference.grad, terms=4, atol=torch.finfo(dtype).eps * 4)


def test_experts_from_a_table():
    torch.manual_seed(0)
    x, ids = torch.randn(5, 8), torch.tensor([2, 0, 2, 1, 0])
    table = torch.tensor([[0, 7], [3, 4], [6, 1]])
    y, chosen, _ = torch_npu.npu_moe_gating_top_k(x.npu(), 2, input_ids=ids.npu(), tid2eid=table.npu(), norm_type=1)
    weights = x.double().sigmoid().gather(1, table[ids])
    assert torch.equal(chosen.cpu(), table[ids].int())
    assert_close(y, weights / weights.sum(1, keepdim=True))


X, MAP = torch.zeros(4, 8), torch.ones(4, 2, dtype=torch.bool)
REFUSED = {
    "permute": (lambda x, m: torch_npu.npu_moe_token_permute_with_routing_map(x, m[:3]), ValueError, r"\[N, experts\]"),
    "permute probs": (
        lambda x, m: torch_npu.npu_moe_token_permute_with_routing_map(x, m, probs=x), ValueError, "probs must be"
    ),
    "permute dtype": (
        lambda x, m: torch_npu.npu_moe_token_permute_with_routing_map(x, m.float()), TypeError, "routing_map"
    ),
    "permute count": (
        lambda x, m: torch_npu.npu_moe_token_permute_with_routing_map(x, m, num_out_tokens=4), RuntimeError,
        "marks 8 copies of tokens; numOutTokens gives 4",
    ),
    "unpermute": (
        lambda x, m: torch_npu.npu_moe_token_unpermute_with_routing_map(x, m[:, 0].int(), [4, 8]), ValueError,
        "without drop_and_pad routing_map is needed",
    ),
    "re-routing": (
        lambda x, m: torch_npu.npu_moe_re_routing(x.half(), m.int(), idx_type=1), NotImplementedError, "idx_type 0"
    ),
    "re-routing count": (
        lambda x, m: torch_npu.npu_moe_re_routing(x.half(), m.int()), RuntimeError, "counts 8 tokens; there are 4"
    ),
    "init": (lambda x, m: torch_npu.npu_moe_init_routing(x, m.int(), m.int(), -1), ValueError, "not be negative"),
    "softmax": (lambda x, m: torch_npu.npu_moe_gating_top_k_softmax_v2(x, k=9), ValueError, "between 1 and"),
    "renorm": (lambda x, m: torch_npu.npu_moe_gating_top_k_softmax_v2(x, renorm=2), ValueError, "must be 0 or 1"),
    "table": (lambda x, m: torch_npu.npu_moe_gating_top_k(x, 2, tid2eid=m.int()), ValueError, "belong together"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call(*on_npu((X, MAP)))
