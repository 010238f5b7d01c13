"""Mixture of experts and low-rank adapters (torch_npu/composed/experts.py)."""

import pytest
import torch

import torch_npu
from tests.tolerance import assert_close


def test_sorted_tokens():
    tokens, experts = torch.randn(7, 12).npu().requires_grad_(), torch.randint(0, 4, (7, 3)).npu()
    permuted, indices = torch_npu.npu_moe_token_permute(tokens, experts)
    grad = torch.randn(21, 12).npu()
    permuted.backward(grad)
    actual = torch_npu.npu_moe_token_permute_grad_v2(grad, indices, 7, torch.float32, 3)
    assert torch.equal(actual, tokens.grad)
    assert torch_npu.npu_moe_token_permute_grad_v2(grad, indices, 7, torch.float16, 3).dtype == torch.float16


@pytest.mark.parametrize("weighted", [False, True])
def test_tokens_in_their_places(weighted):
    rows, places = torch.randn(14, 12).npu().requires_grad_(), torch.randperm(14).int().npu()
    probs = torch.rand(7, 2).npu().requires_grad_() if weighted else None
    expected = torch_npu.npu_moe_token_unpermute(rows, places, probs)
    actual, kept = torch_npu._npu_moe_token_unpermute(rows, places, probs)
    assert torch.equal(actual, expected)
    assert (kept is None) == (not weighted)
    grad = torch.randn(expected.shape).npu()
    expected.backward(grad)
    given = None if probs is None else probs.detach()
    dtokens, dprobs = torch_npu.npu_moe_token_unpermute_grad_v2(
        grad, places, 14, torch.float32, given, permuted_tokens=kept
    )
    assert torch.equal(dtokens, rows.grad)
    if probs is not None:
        assert torch.equal(dprobs, probs.grad)


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("offset", "size"), [(0, -1), (3, 5)])
def test_adapters(device, dtype, offset, size):
    y, x = torch.randn(6, 9).to(dtype), torch.randn(6, 7).to(dtype)
    columns = 9 if size == -1 else size
    down, up = torch.randn(3, 2, 4, 7).to(dtype), torch.randn(3, 2, columns, 4).to(dtype)
    indices = torch.tensor([2, 0, 3, 1, 1, 3], dtype=torch.int32)  # 3: none
    expected = y.double().clone()
    for row, number in enumerate(indices.tolist()):
        if number < 3:
            added = up[number, 1].double() @ down[number, 1].double() @ x[row].double() * 0.5
            expected[row, offset : offset + columns] += added
    given = [t.to(device) for t in (x, up, indices, down)]
    target = y.to(device, copy=True)
    made = torch_npu.npu_batch_gather_matmul(target, *given, 1, 0.5, offset, size)
    assert torch.equal(target.cpu(), y)
    assert_close(made, expected, terms=28, atol=torch.finfo(dtype).eps * 16)
    assert torch_npu.npu_batch_gather_matmul_(target, *given, 1, 0.5, offset, size) is target
    assert torch.equal(target, made)


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
def test_places_of_experts(mode, ids_dtype):
    table = torch.tensor([[2, 0, 5, 0], [1, 3, 0, 0], [3, 1, 2, 4]], dtype=torch.int32)
    ids = torch.randint(0, 3, (7, 2)).to(ids_dtype)
    scales, threshold = torch.rand(7, 2), torch.tensor([0.1, 0.6])
    mask = torch.arange(7) < 6
    rank, ranks = 4, 6
    found, worth = torch_npu.npu_moe_update_expert(
        ids.npu(), table.npu(), expert_scales=scales.npu(), pruning_threshold=threshold.npu(),
        active_mask=mask.npu(), local_rank_id=rank, world_size=ranks, balance_mode=mode,
    )  # fmt: skip
    for token in range(7):
        for choice in range(2):
            count, *places = table[ids[token, choice]].tolist()
            place = rank // -(-ranks // count) if mode == 0 else token % count
            assert found[token, choice] == places[place]
            kept = bool(scales[token, choice] >= scales[token].sum() * threshold[choice]) and token < 6
            assert bool(worth[token, choice]) == kept
    assert found.dtype == ids_dtype
    alone = torch_npu.npu_moe_update_expert(ids.npu(), table.npu(), balance_mode=1)
    assert alone[1].shape == (0,)


X, W = torch.zeros(2, 4), torch.zeros(1, 1, 4, 4)
REFUSED = {
    "count": (
        lambda: torch_npu.npu_moe_token_permute_grad_v2(X, X[:, 0].int(), 2, torch.float32, 2), "expected 4 indices"
    ),
    "tokens": (
        lambda: torch_npu.npu_moe_token_unpermute_grad_v2(X, X[:, 0].int(), 2, torch.float32, X[:, :1]),
        "permuted_tokens with probs",
    ),
    "adapter": (lambda: torch_npu.npu_batch_gather_matmul(X, X, W, X[:, 0].int()), "weight_a"),
    "places": (lambda: torch_npu.npu_moe_update_expert(X.int(), X.int(), balance_mode=0), "local_rank_id"),
    "threshold": (
        lambda: torch_npu.npu_moe_update_expert(X.int(), X.int(), expert_scales=X, balance_mode=1),
        "expert_scales with pruning_threshold",
    ),
    "columns": (lambda: torch_npu.npu_batch_gather_matmul_(X, X, W, X[:, 0].int(), W, 0, 1.0, 1), r"y \[B, out\]"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("smoothed", [False, True])
@pytest.mark.parametrize("active", [0, 10, 1024])
@pytest.mark.parametrize("counts", [0, 1, 2])
def test_rows_of_experts_are_quantized(dtype, smoothed, active, counts):
    x, experts = torch.randn(7, 12).to(dtype), torch.randint(0, 5, (7, 3)).int()
    smooth = torch.rand(5, 12) + 0.5
    rows, places, tokens, before, scale = torch_npu.npu_moe_init_routing_quant(
        x.npu(), experts.npu(), scale=smooth.npu() if smoothed else None, active_num=active, expert_num=5,
        expert_tokens_num_mode=counts,
    )  # fmt: skip
    order = experts.flatten().sort(stable=True).indices[: active or None]
    wide = x.double()[order // 3] * (smooth.double()[experts.flatten()[order]] if smoothed else 1)
    assert_close(scale, wide.abs().amax(1) / 127)
    assert rows.dtype == torch.int8
    assert (rows.cpu().double() - wide / wide.abs().amax(1, keepdim=True) * 127).abs().max() <= 0.501
    assert places.cpu()[order].tolist() == list(range(order.numel()))
    assert before is None
    histogram = experts.flatten().long().bincount(minlength=5)
    if counts:
        assert tokens.dtype == torch.int32
        assert tokens.tolist() == (histogram.cumsum(0) if counts == 1 else histogram).tolist()
    else:
        assert tokens is None


def test_rows_of_experts_with_a_capacity():
    x, experts = torch.randn(7, 12), torch.randint(0, 5, (7, 3)).int()
    rows, places, tokens, before, scale = torch_npu.npu_moe_init_routing_quant(
        x.npu(), experts.npu(), scale=torch.tensor([30.0]).npu(), offset=torch.tensor([2.0]).npu(), expert_capacity=3,
        expert_num=5, drop_pad_mode=1, expert_tokens_before_capacity_flag=True, quant_mode=0,
    )  # fmt: skip
    assert (rows.shape, tokens, scale) == ((5, 3, 12), None, None)
    assert before.tolist() == experts.flatten().long().bincount(minlength=5).tolist()
    for number, place in enumerate(places.tolist()):
        if place >= 0:
            expected = (x[number // 3] * 30 + 2).clamp(-128, 127)
            assert (rows.cpu().flatten(0, 1)[place] - expected).abs().max() <= 0.6  # float16 steps below 0.1
    assert (places >= 0).sum() == before.clamp(max=3).sum()
    with pytest.raises(ValueError, match="quant_mode"):
        torch_npu.npu_moe_init_routing_quant(x.npu(), experts.npu(), quant_mode=2)
