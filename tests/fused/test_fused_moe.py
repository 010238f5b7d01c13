"""Mixture of experts and quantization against plain references."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from operator_case import FLOATS, Case, check, check_gradients
from tolerance import assert_close
from torch import Tensor

import torch_npu

F64 = torch.float64


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=F64)


def permute(tokens: Tensor, indices: Tensor, limit: int | None = None) -> tuple[Tensor, Tensor]:
    copies = 1 if indices.dim() == 1 else indices.shape[1]
    order = indices.flatten().argsort(stable=True)
    kept = order[:limit] if limit else order
    return tokens[kept // copies], order.argsort().int()


def unpermute(rows: Tensor, places: Tensor, probs: Tensor | None = None) -> Tensor:
    copies = 1 if probs is None else probs.shape[1]
    picked = rows[places.long()].view(-1, copies, rows.shape[1])
    return (picked if probs is None else picked * probs[..., None]).sum(1)


def gating_softmax(x: Tensor, finished: Tensor | None, k: int) -> tuple[Tensor, Tensor, Tensor]:
    weights, chosen = x.softmax(-1).sort(dim=-1, descending=True, stable=True)
    chosen = chosen[:, :k]
    if finished is not None:
        chosen = chosen.masked_fill(finished[:, None], x.shape[1])
    rows = torch.arange(x.shape[0] * k).view(k, x.shape[0]).T
    return weights[:, :k], chosen.int(), rows.int()


def gating(x: Tensor, k: int, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    scores = x.sigmoid() if options.get("norm_type") else x.softmax(-1)
    groups = (scores + options["bias"]).unflatten(-1, (options["group_count"], -1))
    strength = groups.sort(dim=-1, descending=True).values[..., :2].sum(-1)
    kept = strength.sort(dim=-1, descending=True, stable=True).indices[:, : options["k_group"]]
    hidden = torch.ones_like(strength, dtype=torch.bool).scatter(1, kept, False)
    ranked = groups.masked_fill(hidden[..., None], -torch.inf).flatten(1)
    chosen = ranked.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    weights = scores.gather(1, chosen)
    weights = weights / weights.sum(-1, keepdim=True) * options["routed_scaling_factor"]
    return weights, chosen.int(), scores


def choices() -> Tensor:
    return torch.randint(0, 4, (7, 3), generator=torch.Generator().manual_seed(0))


CASES = [
    Case("npu_moe_token_permute", "all", lambda: (randn(7, 12), choices()), permute, gradients=(0,), terms=3),
    Case("npu_moe_token_permute", "limit", lambda: (randn(7, 12), choices(), 10), permute, gradients=(0,), terms=3),
    Case("npu_moe_token_permute", "one", lambda: (randn(7, 12), choices()[:, 0]), permute, gradients=(0,)),
    Case("npu_moe_token_unpermute", "probs",
         lambda: (randn(21, 12), torch.randperm(21).int(), torch.rand(7, 3, dtype=F64)), unpermute, gradients=(0, 2),
         terms=3, gradient_terms=12, scale=4),
    Case("npu_moe_token_unpermute", "plain", lambda: (randn(7, 12), torch.randperm(7).int()), unpermute,
         gradients=(0,)),
    Case("npu_moe_gating_top_k_softmax", "finished", lambda: (randn(6, 9), torch.arange(6) % 3 == 0, 4), gating_softmax,
         dtypes=(torch.float32,)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", CASES[:5], ids=str)
def test_values(case: Case, dtype: torch.dtype) -> None:
    check(case, dtype)


@pytest.mark.parametrize("case", [c for c in CASES if c.gradients], ids=str)
def test_gradients(case: Case) -> None:
    check_gradients(case, torch.float32)


def test_gating_by_softmax() -> None:
    check(CASES[5], torch.float32)


def test_gating_by_groups() -> None:
    torch.manual_seed(0)
    x, bias = torch.randn(6, 16), torch.randn(16)
    options = {"k_group": 2, "group_count": 4, "norm_type": 1, "routed_scaling_factor": 2.5}
    actual = torch_npu.npu_moe_gating_top_k(x.npu(), 4, bias=bias.npu(), group_select_mode=1, out_flag=True, **options)
    expected = gating(x, 4, bias=bias, **options)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b, atol=1e-6, rtol=1e-5)


def test_experts_end_where_they_should() -> None:
    experts = torch.tensor([0, 0, 2, 2, 2, 5], dtype=torch.int32)
    ends = torch_npu.npu_moe_compute_expert_tokens(experts.npu(), 6)
    assert ends.tolist() == [2, 2, 5, 5, 5, 6]


@pytest.mark.parametrize("active", [[], [1, 3]])
def test_routing_there_and_back(active: list[int]) -> None:
    torch.manual_seed(0)
    x, experts = torch.randn(7, 12), choices().int()
    expanded, row_idx, counts, _ = torch_npu.npu_moe_init_routing_v2(
        x.npu(), experts.npu(), expert_num=4, active_num=0, expert_tokens_num_type=1, expert_tokens_num_flag=True,
        active_expert_range=active or [0, 4],
    )  # fmt: skip
    first, last = active or (0, 4)
    flat = experts.flatten()
    kept = torch.nonzero((flat >= first) & (flat < last)).flatten()
    order = kept[flat[kept].argsort(stable=True)]
    torch.testing.assert_close(expanded.cpu()[: len(order)], x[order // 3])
    assert counts.tolist() == [int((flat == e).sum()) for e in range(first, last)]
    places = torch.full((21,), -1)
    places[order] = torch.arange(len(order))
    assert row_idx.tolist() == places.tolist()
    scales = torch.rand(7, 3)
    result = torch_npu.npu_moe_finalize_routing(
        expanded, x.npu(), None, None, scales.npu(), row_idx, None, drop_pad_mode=2
    )
    share = (scales * ((experts >= first) & (experts < last))).sum(1, keepdim=True)
    torch.testing.assert_close(result.cpu(), x + x * share, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("quant_mode", [-1, 0, 1])
def test_routing_with_a_capacity(quant_mode: int) -> None:
    """Two rows an expert: more are dropped, missing ones are zero."""
    torch.manual_seed(0)
    x, experts, capacity = torch.randn(7, 12), choices().int(), 2
    scale = {-1: torch.rand(7), 0: torch.tensor([20.0]), 1: torch.rand(4, 12) + 0.5}[quant_mode]
    offset = torch.tensor([3.0]).npu() if quant_mode == 0 else None
    expanded, row_idx, counts, scales = torch_npu.npu_moe_init_routing_v2(
        x.npu(), experts.npu(), scale=scale.npu(), offset=offset, expert_num=4, expert_capacity=capacity,
        drop_pad_mode=1, expert_tokens_num_type=1, expert_tokens_num_flag=True, quant_mode=quant_mode,
    )  # fmt: skip
    flat = experts.flatten()
    assert counts.tolist() == flat.bincount(minlength=4).tolist()
    places = torch.full((21,), -1)
    for e in range(4):
        for i, copy in enumerate(torch.nonzero(flat == e).flatten()[:capacity].tolist()):
            place = e * capacity + i
            places[copy] = place
            row = x[copy // 3]
            if quant_mode == -1:
                assert torch.equal(expanded[e, i].cpu(), row)
                assert scales[place].item() == scale[copy // 3].item()
            elif quant_mode == 0:
                assert torch.equal(expanded[e, i].cpu(), (row * scale + 3).round().clamp(-128, 127).char())
            else:
                smooth = row * scale[e]
                torch.testing.assert_close(scales[place].cpu(), smooth.abs().max() / 127)
                assert (expanded[e, i].cpu() * scales[place].cpu() - smooth).abs().max() <= scales[place].item() * 0.51
    assert row_idx.tolist() == places.tolist()
    held = torch.zeros(8, dtype=torch.bool)
    held[places[places >= 0]] = True
    assert not expanded.flatten(0, 1).cpu()[~held].any()


def test_routing_counts_by_expert() -> None:
    x, experts = torch.randn(3, 4), torch.tensor([[1, 3], [3, 1], [3, 3]], dtype=torch.int32)
    *_, counts, _ = torch_npu.npu_moe_init_routing_v2(
        x.npu(), experts.npu(), expert_num=5, expert_tokens_num_type=2, expert_tokens_num_flag=True
    )
    assert counts.tolist() == [[1, 2], [3, 4], [0, 0], [0, 0], [0, 0]]


def test_grouped_matmul_of_the_inner_dimension() -> None:
    """Gradients of weights: groups of tokens are summed up."""
    torch.manual_seed(0)
    x, y, ends = torch.randn(9, 5), torch.randn(9, 4), [2, 2, 9]
    options = {"split_item": 3, "group_type": 2}
    (actual,) = torch_npu.npu_grouped_matmul([x.npu().t()], [y.npu()], group_list=torch.tensor(ends).npu(), **options)
    expected = torch.stack((x[:2].T @ y[:2], torch.zeros(5, 4), x[2:].T @ y[2:]))
    torch.testing.assert_close(actual.cpu(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", range(6))
def test_grouped_matmul_in_int8(activation: int) -> None:
    torch.manual_seed(0)
    x, weight = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((9, 16), (3, 16, 8)))
    scale, token = torch.rand(3, 8) / 1000, torch.rand(9)
    groups = torch.tensor([[2, 4], [0, 5]])  # number and length
    (actual,) = torch_npu.npu_grouped_matmul(
        [x.npu()], [weight.npu()], scale=[scale.npu()], per_token_scale=[token.npu()], group_list=groups.npu(),
        group_list_type=2, group_type=0, split_item=3, act_type=activation, output_dtype=torch.bfloat16,
    )  # fmt: skip
    parts = [(slice(0, 4), 2), (slice(4, 9), 0)]
    exact = torch.cat([(x[s].long() @ weight[g].long()) * scale[g] * token[s, None] for s, g in parts]).double()
    gelu = torch.nn.functional.gelu
    expected = [
        exact, exact.relu(), gelu(exact, approximate="tanh"), gelu(exact), exact * (1.702 * exact).sigmoid(),
        torch.nn.functional.silu(exact),
    ][activation]  # fmt: skip
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("group", [0, 8])
def test_grouped_matmul_with_quantized_weights(packed: bool, group: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(9, 16), torch.randint(-8, 8, (3, 16, 8), dtype=torch.int32)
    shape = (3, 16 // group, 8) if group else (3, 8)
    scale, offset = (torch.rand(shape) + 0.1 for _ in range(2))
    stored = torch_npu.npu_convert_weight_to_int4pack(weight.npu()) if packed else weight.char().npu()
    ends = torch.tensor([2, 2, 9])
    (actual,) = torch_npu.npu_grouped_matmul(
        [x.npu()], [stored], antiquant_scale=[scale.npu()], antiquant_offset=[offset.npu()], group_list=ends.npu(),
        group_type=0, split_item=3,
    )  # fmt: skip
    spread = [t.repeat_interleave(group, 1) if group else t[:, None] for t in (scale, offset)]
    wide = (weight + spread[1]) * spread[0]
    expected = torch.cat((x[:2] @ wide[0], x[2:] @ wide[2]))
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-3)


def test_grouped_matmul_of_rows_and_lists() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(9, 5), torch.randn(3, 5, 4)
    ends = torch.tensor([2, 2, 9])
    options = {"split_item": 3, "group_type": 0}
    (actual,) = torch_npu.npu_grouped_matmul([x.npu()], [weight.npu()], group_list=ends.npu(), **options)
    expected = torch.cat((x[:2] @ weight[0], x[2:] @ weight[2]))
    torch.testing.assert_close(actual.cpu(), expected, atol=1e-5, rtol=1e-5)
    counts = torch.tensor([2, 0, 7])
    (again,) = torch_npu.npu_grouped_matmul(
        [x.npu()], [weight.npu()], group_list=counts.npu(), group_list_type=1, **options
    )
    torch.testing.assert_close(again, actual)
    lists = torch_npu.npu_grouped_matmul(
        [x.npu(), x[:3].npu()], [weight[0].npu(), weight[1].npu()], bias=[torch.ones(4).npu(), torch.zeros(4).npu()]
    )
    torch.testing.assert_close(lists[0].cpu(), x @ weight[0] + 1, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lists[1].cpu(), x[:3] @ weight[1], atol=1e-5, rtol=1e-5)


# ---- Quantization


def unpack(numbers: Tensor) -> Tensor:
    nibbles = (numbers[..., None] >> torch.arange(0, 32, 4)) & 15
    return torch.where(nibbles < 8, nibbles, nibbles - 16).flatten(-2)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_quantize(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, scale, zero = torch.randn(5, 16).to(dtype), torch.rand(16) + 0.1, torch.randint(-3, 3, (16,))
    wide = x.float()
    divided = torch_npu.npu_quantize(x.npu(), scale.npu(), zero.float().npu(), torch.qint8, 1)
    assert torch.equal(divided.cpu(), ((wide / scale).round() + zero).clamp(-128, 127).to(torch.int8))
    multiplied = torch_npu.npu_quantize(x.npu(), scale.npu(), None, torch.qint8, -1, False)
    assert torch.equal(multiplied.cpu(), (wide * scale).round().clamp(-128, 127).to(torch.int8))
    packed = torch_npu.npu_quantize(x.npu(), scale.npu(), None, torch.quint4x2, -1, False)
    assert torch.equal(unpack(packed.cpu()), (wide * scale).round().clamp(-8, 7).long())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dynamic_quantization(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, smooth = torch.randn(3, 5, 16).to(dtype), (torch.rand(16) + 0.5).to(dtype)
    y, scale = torch_npu.npu_dynamic_quant(x.npu(), smooth_scales=smooth.npu())
    wide = x.float() * smooth.float()
    assert (y.dtype, scale.shape, scale.dtype) == (torch.int8, (3, 5), torch.float32)
    torch.testing.assert_close(scale.cpu(), wide.abs().amax(-1) / 127)
    assert (y.cpu() * scale.cpu()[..., None] - wide).abs().max() <= scale.max().item() * 0.51
    y, scale, offset = torch_npu.npu_dynamic_quant_asymmetric(x.npu())
    restored = (y.cpu() - offset.cpu()[..., None]) * scale.cpu()[..., None]
    assert (restored - x.float()).abs().max() <= scale.max().item() * 0.51
    packed, scale = torch_npu.npu_dynamic_quant(x.npu(), dst_type=torch.quint4x2)
    assert packed.shape == (3, 5, 2)
    assert (unpack(packed.cpu()) * scale.cpu()[..., None] - x.float()).abs().max() <= scale.max().item() * 0.51


def test_products_of_quantized_matrices() -> None:
    torch.manual_seed(0)
    x1, x2 = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((6, 40), (40, 24)))
    scale, token = torch.rand(24) + 0.1, torch.rand(6)
    exact = x1.long() @ x2.long()
    y = torch_npu.npu_quant_matmul(
        x1.npu(), x2.npu(), scale.npu(), pertoken_scale=token.npu(), output_dtype=torch.bfloat16
    )
    torch.testing.assert_close(y.cpu(), (exact * scale * token[:, None]).bfloat16(), rtol=1e-2, atol=1e-2)
    wrapped = torch_npu.npu_trans_quant_param(scale.npu())
    assert wrapped.dtype == torch.int64
    half = torch_npu.npu_quant_matmul(x1.npu(), x2.npu(), wrapped, output_dtype=torch.float16)
    torch.testing.assert_close(half.cpu().float(), (exact * scale).half().float(), rtol=2e-3, atol=1)
    bias = torch.randint(-99, 99, (24,), dtype=torch.int32)
    sums = torch_npu.npu_quant_matmul(x1.npu(), x2.npu(), scale.npu(), bias=bias.npu(), output_dtype=torch.int32)
    assert torch.equal(sums.cpu().long(), exact + bias)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("inner", [64, 72])
def test_products_of_int4_in_groups(inner: int, transposed: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x1, x2 = (torch.randint(-8, 8, s, dtype=torch.int32) for s in ((6, inner), (inner, 24)))
    groups = -(-inner // 32)
    scale, token = torch.rand(groups, 24) + 0.1, torch.rand(6)
    offset = torch.randint(-3, 4, (groups, 24)).half()
    pack = torch_npu.npu_convert_weight_to_int4pack
    weight = pack(x2.t().contiguous().npu()).t() if transposed else pack(x2.npu())
    given = {"offset": offset.npu(), "output_dtype": dtype}
    wide = [t.double().repeat_interleave(32, 0)[:inner] for t in (scale, offset)]
    expected = x1.double() @ ((x2 - wide[1]) * wide[0]) * token.double()[:, None]
    for factors in (token, token[:, None]):
        y = torch_npu.npu_quant_matmul(
            pack(x1.npu()), weight, scale.npu(), pertoken_scale=factors.npu(), group_sizes=[1, 1, 32], **given
        )
        assert_close(y.cpu(), expected, terms=inner)
    with pytest.raises(ValueError, match=r"group_sizes and a scale .* belong together"):
        torch_npu.npu_quant_matmul(pack(x1.npu()), weight, scale.npu(), pertoken_scale=token.npu(), **given)
    with pytest.raises(RuntimeError, match=r"groups of 0, 2 and 32 .* takes \[1, 1, g\]"):
        torch_npu.npu_quant_matmul(
            pack(x1.npu()), weight, scale.npu(), pertoken_scale=token.npu(), group_sizes=[0, 2, 32], **given
        )


@pytest.mark.parametrize("one", [False, True])
def test_products_in_int8_with_an_offset(one: bool) -> None:
    torch.manual_seed(0)
    x1, x2 = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((2, 6, 40), (40, 24)))
    scale, offset = torch.rand(24) / 500, torch.randn(1 if one else 24) * 20
    bias = torch.randint(-9999, 9999, (24,), dtype=torch.int32)
    y = torch_npu.npu_quant_matmul(x1.npu(), x2.npu(), scale.npu(), offset=offset.npu(), bias=bias.npu())
    expected = ((x1.long() @ x2.long() + bias) * scale.double() + offset.double()).round().clamp(-128, 127)
    assert y.dtype == torch.int8
    assert (y.cpu().double() - expected).abs().max() <= 1  # where float32 rounds the other way
    with pytest.raises(NotImplementedError, match="belongs to a result in int8"):
        torch_npu.npu_quant_matmul(x1.npu(), x2.npu(), scale.npu(), offset=offset.npu(), output_dtype=torch.float16)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("wrapped", [False, True])
def test_products_with_quantized_weights_and_results(rows: int, wrapped: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(rows, 32).half()
    weight = torch.randint(-128, 128, (16, 32), dtype=torch.int8)
    scale, bias = (torch.rand(16) / 10).half(), torch.randn(16).half()
    quant, offset = torch.rand(16) + 0.5, torch.randint(-9, 9, (16,)).float()
    given = {"quant_scale": quant.npu(), "quant_offset": offset.npu()}
    if wrapped:
        given = {"quant_scale": torch_npu.npu_trans_quant_param(quant.npu(), offset.npu())}
    y = torch_npu.npu_weight_quant_batchmatmul(x.npu(), weight.npu().t(), scale.npu(), bias=bias.npu(), **given)
    product = x.double() @ (weight.double().T * scale.double()) + bias.double()
    expected = (product * quant.double() + offset.double()).round().clamp(-128, 127)
    assert y.dtype == torch.int8
    assert (y.cpu().double() - expected).abs().max() <= 1
    with pytest.raises(ValueError, match="quant_offset needs quant_scale"):
        torch_npu.npu_weight_quant_batchmatmul(x.npu(), weight.npu().t(), scale.npu(), quant_offset=offset.npu())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("group", [0, 8])
def test_products_with_quantized_weights(packed: bool, group: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 32).bfloat16()
    weight = torch.randint(-8, 8, (32, 16), dtype=torch.int32)
    rows = 32 // group if group else 1
    scale, offset = ((torch.rand(rows, 16) + 0.1).bfloat16() for _ in range(2))
    stored = torch_npu.npu_convert_weight_to_int4pack(weight.npu()) if packed else weight.to(torch.int8).npu()
    y = torch_npu.npu_weight_quant_batchmatmul(x.npu(), stored, scale.npu(), offset.npu(), antiquant_group_size=group)
    spread = (t.double().repeat_interleave(32 // rows, 0) for t in (scale, offset))
    wide_scale, wide_offset = spread
    expected = x.double() @ ((weight.double() + wide_offset) * wide_scale)
    torch.testing.assert_close(y.cpu().double(), expected, rtol=1e-2, atol=0.1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("rows", [1, 4, 5])
def test_products_with_a_transposed_int8_weight(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(rows, 70).to(dtype)
    weight = torch.randint(-128, 128, (37, 70), dtype=torch.int8)
    scale, offset = ((torch.rand(37) + 0.1).to(dtype) for _ in range(2))
    y = torch_npu.npu_weight_quant_batchmatmul(x.npu(), weight.npu().t(), scale.npu(), offset.npu())
    expected = x.double() @ ((weight.double() + offset.double()[:, None]) * scale.double()[:, None]).T
    unit = torch.finfo(dtype).eps * expected.abs().max().item()
    torch.testing.assert_close(y.cpu().double(), expected, rtol=0, atol=4 * unit)


def test_anti_quantization() -> None:
    numbers = torch.randint(-8, 8, (3, 16), dtype=torch.int32)
    scale, offset = torch.rand(16) + 0.5, torch.rand(16)
    packed = torch_npu.npu_convert_weight_to_int4pack(numbers.npu())
    expected = ((numbers + offset) * scale).half()
    for stored in (packed, numbers.to(torch.int8).npu()):
        y = torch_npu.npu_anti_quant(stored, scale.npu(), offset=offset.npu())
        torch.testing.assert_close(y.cpu(), expected, rtol=1e-3, atol=1e-3)


def test_dequantized_swiglu() -> None:
    torch.manual_seed(0)
    x = torch.randint(-1000, 1000, (5, 32), dtype=torch.int32)
    weight, token = torch.rand(32) / 100, torch.rand(5)
    y, scale = torch_npu.npu_dequant_swiglu_quant(
        x.npu(), weight_scale=weight.npu(), activation_scale=token.npu(), activate_left=True, quant_mode=1
    )
    left, right = (x * weight * token[:, None]).chunk(2, -1)
    expected = torch.nn.functional.silu(left) * right
    torch.testing.assert_close(scale.cpu(), expected.abs().amax(-1) / 127)
    assert (y.cpu() * scale.cpu()[:, None] - expected).abs().max() <= scale.max().item() * 0.51


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("dynamic", [0, 1])
def test_dequantized_swiglu_by_groups(dynamic: int, mode: int) -> None:
    """Each group of rows has scales of its own; the last row belongs to none."""
    torch.manual_seed(0)
    x, rows = torch.randint(-1000, 1000, (6, 32), dtype=torch.int32), [2, 0, 3]
    weight, token = torch.rand(3, 32) / 100, torch.rand(6, 1)
    smooth = torch.rand(3, 16) + 0.5
    y, scale = torch_npu.npu_dequant_swiglu_quant(
        x.npu(), weight_scale=weight.npu(), activation_scale=token.npu(), quant_scale=smooth.npu(), quant_mode=dynamic,
        group_index=torch.tensor(rows).npu(), activate_left=True, swiglu_mode=mode,
    )  # fmt: skip
    group = torch.arange(3).repeat_interleave(torch.tensor(rows))
    values = (x[:5] * weight[group] * token[:5]).double()
    gate, linear = (values[:, ::2], values[:, 1::2]) if mode == 1 else values.chunk(2, -1)
    if mode == 0:
        gated = torch.nn.functional.silu(gate) * linear
    else:
        gate = gate.clamp_max(7.0)
        gated = gate * (1.702 * gate).sigmoid() * (linear.clamp(-7.0, 7.0) + 1)
    assert not y[5].any()
    if dynamic:
        expected = gated * smooth[group]
        torch.testing.assert_close(scale[:5].cpu().double(), expected.abs().amax(-1) / 127, rtol=1e-5, atol=1e-7)
        assert (y[:5].cpu() * scale[:5].cpu()[:, None] - expected).abs().max() <= scale.max().item() * 0.51
    else:
        expected = (gated / smooth[group]).clamp(-128, 127)
        assert (y[:5].cpu() - expected).abs().max() <= 0.51


def test_dynamic_quantization_by_groups() -> None:
    torch.manual_seed(0)
    x, smooth, ends = torch.randn(6, 16), torch.rand(3, 16) + 0.5, torch.tensor([2, 2, 6], dtype=torch.int32)
    y, scale = torch_npu.npu_dynamic_quant(x.npu(), smooth_scales=smooth.npu(), group_index=ends.npu())
    wide = x * smooth[torch.tensor([0, 0, 2, 2, 2, 2])]
    torch.testing.assert_close(scale.cpu(), wide.abs().amax(-1) / 127)
    assert (y.cpu() * scale.cpu()[:, None] - wide).abs().max() <= scale.max().item() * 0.51


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: torch_npu.npu_quantize(x, x[0], None, torch.float32), TypeError, "dtype must be int8"),
        (lambda x: torch_npu.npu_dynamic_quant(x, quant_mode="perblock"), NotImplementedError, "quant_mode=perblock"),
        (lambda x: torch_npu.npu_moe_gating_top_k_softmax(x, None, 9), ValueError, "k must lie between 1 and"),
        (lambda x: torch_npu.npu_moe_token_permute(x, x[:2, 0].long()), ValueError, r"indices must be \[N\]"),
        (lambda x: torch_npu.npu_grouped_matmul([x], [x.t()], group_type=1), ValueError, "group_type is 1"),
        (lambda x: torch_npu.npu_grouped_matmul([x], [x.t().char()]), ValueError, "antiquant_scale belongs to"),
        (lambda x: torch_npu.npu_grouped_matmul([x], [x.t()], scale=[x]), ValueError, "belong to x in int8"),
        (
            lambda x: torch_npu.npu_moe_init_routing_v2(x, x[:, :2].int(), expert_num=2, drop_pad_mode=1),
            ValueError,
            "drop_pad_mode 1 needs a positive expert_capacity",
        ),
        (lambda x: torch_npu.npu_grouped_matmul([x], [x.t()], group_type=0), ValueError, "needs group_list"),
        (lambda x: torch_npu.npu_weight_quant_batchmatmul(x, x, x), TypeError, "weight is float32"),
    ],
)
def test_refusals(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(torch.randn(4, 8).npu())
