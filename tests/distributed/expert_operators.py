"""Experts that are spread over ranks: what each rank runs, see program.py."""

from __future__ import annotations

from itertools import pairwise

import torch
from operators import H, arguments_like, check, named, same_shapes, small
from program import CASES, case, main, of, raises
from tolerance import assert_close
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_npu

K = 2


def routed(n: int, experts: int, tokens: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Tokens, chosen experts and their weights of each rank."""
    x = [small(i, tokens, H, dtype=torch.bfloat16) for i in range(n)]
    ids = [of(10 + i, tokens, experts).argsort(1)[:, :K].int() for i in range(n)]
    return x, ids, [small(20 + i, tokens, K).abs() for i in range(n)]


def arrived(
    x: list[Tensor], ids: list[Tensor], first: int, here: int, active: list[Tensor]
) -> tuple[list[Tensor], Tensor]:
    """Rows of each expert of a rank, rank by rank, and where the rows of each rank end."""
    rows, lengths = [], []
    for expert in range(first, first + here):
        for tokens, chosen, alive in zip(x, ids, active, strict=True):
            rows.append(tokens[((chosen == expert) & alive).any(1)])
            lengths.append(len(rows[-1]))
    return rows, torch.tensor(lengths).cumsum(0)


@case
def tokens_go_to_experts_and_back(rank: int, n: int) -> None:
    name, here, tokens = named(rank), 3, 5
    experts = here * n
    x, ids, weights = routed(n, experts, tokens)
    every = [torch.ones_like(i, dtype=torch.bool) for i in ids]
    rows, ends = arrived(x, ids, rank * here, here, every)
    where = (name, n, rank, experts)
    expand_x, _, idx, numbers, counts, _, scales = torch.ops.npu.npu_moe_distribute_dispatch(
        x[rank].npu(), ids[rank].npu(), *where, expert_scales=weights[rank].npu()
    )
    total = int(ends[-1])
    assert expand_x.shape == (n * tokens * K, H)
    assert torch.equal(expand_x[:total].cpu(), torch.cat(rows))
    assert not expand_x[total:].any()
    assert torch.equal(counts.cpu(), ends.int())
    assert numbers.tolist() == ends.view(here, n)[:, -1].diff(prepend=torch.zeros(1)).tolist()
    flat = ids[rank].flatten().tolist()
    assert idx.tolist() == [flat[:i].count(e) for i, e in enumerate(flat)]
    assert scales.shape == (n * tokens * K,)
    made = expand_x * 2
    y = torch.ops.npu.npu_moe_distribute_combine(made, ids[rank].npu(), idx, counts, weights[rank].npu(), *where)
    check(y, x[rank].double() * 2 * weights[rank].double().sum(1, keepdim=True), torch.bfloat16, terms=K)
    ends_of, *_ = torch.ops.npu.npu_moe_distribute_dispatch(
        x[rank].npu(), ids[rank].npu(), *where, expert_token_nums_type=0
    )[3:]
    assert ends_of.tolist() == numbers.cumsum(0).tolist()
    operands = [x[rank].npu(), ids[rank].npu()]
    results = torch.ops.npu.npu_moe_distribute_dispatch(*operands, *where)
    same_shapes(results, lambda: torch.ops.npu.npu_moe_distribute_dispatch(*arguments_like(operands), *where))
    results = torch.ops.npu.npu_moe_distribute_dispatch_v2(*operands, *where)
    same_shapes(results, lambda: torch.ops.npu.npu_moe_distribute_dispatch_v2(*arguments_like(operands), *where))


@case
def quantized_tokens_and_special_experts(rank: int, n: int) -> None:
    name, here, tokens = named(rank), 2, 4
    experts, special = here * n, 3
    x, ids, weights = routed(n, experts + special, tokens)
    active = [torch.ones(tokens, K, dtype=torch.bool) for _ in range(n)]
    for mask in active:
        mask[-1] = False
    smooth = small(50, experts, H).abs()
    where = (name, n, rank, experts)
    numbers = {"zero_expert_num": 1, "copy_expert_num": 1, "const_expert_num": 1}
    mask = active[rank][:, 0].npu()
    expand_x, scales, assist, _, counts, *_ = torch.ops.npu.npu_moe_distribute_dispatch_v2(
        x[rank].npu(), ids[rank].npu(), *where, scales=smooth.npu(), x_active_mask=mask, quant_mode=2, **numbers
    )
    rows, ends = arrived(x, ids, rank * here, here, active)
    assert torch.equal(counts.cpu(), ends.int())
    assert expand_x.dtype == torch.int8
    bounds = [0, *ends.tolist()]
    for number, (start, end) in enumerate(pairwise(bounds)):
        wide = rows[number].float() * smooth[rank * here + number // n]
        scale = wide.abs().amax(1) / 127
        assert_close(scales[start:end], scale)
        assert not ((expand_x[start:end].cpu() - (wide / scale[:, None]).round()).abs() > 1).any()
    made = torch.zeros_like(x[0]).npu().new_ones(expand_x.shape)
    mixes = [small(60 + i, 1, H, dtype=torch.bfloat16) for i in range(3)]
    y = torch.ops.npu.npu_moe_distribute_combine_v2(
        made, ids[rank].npu(), assist, counts, weights[rank].npu(), *where, x_active_mask=mask, ori_x=x[rank].npu(),
        const_expert_alpha_1=mixes[0].npu(), const_expert_alpha_2=mixes[1].npu(),
        const_expert_v=mixes[2].npu(), **numbers,
    )  # fmt: skip
    expected = torch.zeros(tokens, H, dtype=torch.float64)
    for token in range(tokens - 1):
        for choice in range(K):
            expert, own = int(ids[rank][token, choice]), x[rank][token].double()
            mixed = mixes[0][0].double() * own + mixes[1][0].double() * mixes[2][0].double()
            parts = [torch.zeros_like(own), own, mixed]
            part = torch.ones_like(own) if expert < experts else parts[expert - experts]
            expected[token] += part * weights[rank][token, choice].double()
    check(y, expected, torch.bfloat16, terms=K)
    residual, gamma = small(70, tokens, 1, H, dtype=torch.bfloat16), small(71, H, dtype=torch.bfloat16)
    normed, inverse, total = torch.ops.npu.npu_moe_distribute_combine_add_rms_norm(
        made, ids[rank].npu(), assist, counts, weights[rank].npu(), residual.npu(), gamma.npu(), *where,
        x_active_mask=mask, ori_x=x[rank].npu(), const_expert_alpha_1=mixes[0].npu(),
        const_expert_alpha_2=mixes[1].npu(), const_expert_v=mixes[2].npu(), **numbers,
    )  # fmt: skip
    wide = expected[:, None] + residual.double()
    rms = (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    check(total, wide, torch.bfloat16, terms=K)
    check(inverse, rms, torch.float32, terms=H)
    check(normed, wide * rms * gamma.double(), torch.bfloat16, terms=H)


@case
def shared_experts_have_ranks_of_their_own(rank: int, n: int) -> None:
    name, tokens, experts = named(rank), 3, 2 * (n - 1)
    x, ids, weights = routed(n, experts, tokens)
    where = (name, n, rank, experts)
    options = {"shared_expert_rank_num": 1}
    expand_x, _, idx, numbers, counts, *_ = torch.ops.npu.npu_moe_distribute_dispatch(
        x[rank].npu(), ids[rank].npu(), *where, **options
    )
    if rank == 0:
        assert torch.equal(expand_x.cpu(), torch.cat(x))
        assert numbers.tolist() == [n * tokens]
    else:
        every = [torch.ones_like(i, dtype=torch.bool) for i in ids]
        rows, ends = arrived(x, ids, 2 * (rank - 1), 2, every)
        assert torch.equal(expand_x[: int(ends[-1])].cpu(), torch.cat(rows))
    made = expand_x * (3 if rank == 0 else 1)
    y = torch.ops.npu.npu_moe_distribute_combine(
        made, ids[rank].npu(), idx, counts, weights[rank].npu(), *where, **options
    )
    check(y, x[rank].double() * (3 + weights[rank].double().sum(1, keepdim=True)), torch.bfloat16, terms=K)


@case
def recorded_experts_replay_with_other_choices(rank: int, n: int) -> None:
    name, here, tokens = named(rank), 2, 4
    x, ids, weights = (t[rank].npu() for t in routed(n, here * n, tokens))
    where = (name, n, rank, here * n)

    def run() -> Tensor:
        rows, _, idx, _, counts, *_ = torch.ops.npu.npu_moe_distribute_dispatch(x, ids, *where)
        return torch.ops.npu.npu_moe_distribute_combine(rows * (rank + 1), ids, idx, counts, weights, *where)

    run()
    torch.npu.synchronize()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = run()
    for seed in (30, 40):
        other = of(seed + rank, tokens, here * n).argsort(1)[:, :K].int()
        ids.copy_(other)
        graph.replay()
        owners = other // here + 1
        expected = x.cpu().double() * (weights.cpu() * owners).double().sum(1, keepdim=True)
        check(y, expected, torch.bfloat16, terms=K)


def codes(seed: int, limit: int, *sizes: int) -> Tensor:
    return torch.randint(0, limit, sizes, generator=torch.Generator().manual_seed(seed)).byte()


FLOAT4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
KINDS = ("hifloat8", "float8_e4m3fn", "float4_e2m1fn_x2")


def quantized(kind: str, seed: int, *sizes: int, along: int = -1) -> tuple[Tensor, Tensor, Tensor]:
    """A tensor as operators take it, its scale or powers of two, and what they stand for."""
    c = codes(seed, 16, *sizes)
    if kind == "hifloat8":  # codes 8 to 23 are 1 to 1.875 and 2 to 3.75
        return c + 8, torch.tensor([0.5]), 0.5 * 2.0 ** (c.double() // 8) * (1 + c.double() % 8 / 8)
    stored = (c.float() - 8).to(torch.float8_e4m3fn) if kind == "float8_e4m3fn" else c[..., ::2] | c[..., 1::2] << 4
    numbers = stored.double() if kind == "float8_e4m3fn" else FLOAT4[c.long()]
    blocks = -(-sizes[along] // 64)
    powers = codes(seed + 1, 5, *sizes[:along], blocks, *(sizes[along:][1:]), 2) + 125
    wide = 2.0 ** (powers.double() - 127)
    flat = wide.flatten(-2) if along == -1 else wide.transpose(-1, -2).flatten(-3, -2)
    return stored, powers, numbers * flat.repeat_interleave(32, along).narrow(along, 0, sizes[along])


@case
def quantized_products_of_exchanged_rows(rank: int, n: int) -> None:
    name, experts, k, ops = named(rank), 2, 70, torch.ops.npu
    counts = torch.randint(0, 4, (n, n * experts), generator=torch.Generator().manual_seed(5))
    counts[:, 1] = 0
    mine = slice(experts * rank, experts * (rank + 1))
    sent, received = counts[rank].tolist(), counts[:, mine].flatten().tolist()

    def sorted_here(of_ranks: list[Tensor]) -> list[Tensor]:
        """The rows of each of this rank's experts."""
        parts = [t.split(counts[i].tolist()) for i, t in enumerate(of_ranks)]
        return [torch.cat([parts[i][j] for i in range(n)]) for j in range(n * experts)[mine]]

    for kind in KINDS:
        options: dict[str, object] = {}
        for part in ("gmm_x", "gmm_weight", "mm_x", "mm_weight"):
            options |= {f"{part}_quant_mode": 1 if kind == "hifloat8" else 6, f"{part}_dtype": getattr(torch_npu, kind)}
        x = [quantized(kind, 2 * i, int(counts[i].sum()), k) for i in range(n)]
        weights = [quantized(kind, 40 + 2 * i, experts, k, 4, along=-2) for i in range(n)]
        left, right = quantized(kind, 80, 3, k), quantized(kind, 82, k, 4, along=-2)
        operands = [t.npu() for t in (x[rank][0], weights[rank][0], x[rank][1], weights[rank][1])]
        shared = {
            "mm_x": left[0].npu(), "mm_weight": right[0].npu(), "mm_x_scale": left[1].npu(),
            "mm_weight_scale": right[1].npu(), "mm_y_dtype": torch.float32,
        }  # fmt: skip
        counted = (name, n, sent, received, torch.float16)
        results = ops.npu_alltoallv_quant_gmm(*operands, *counted, permute_out_flag=True, **options, **shared)
        rows = sorted_here([t[2] for t in x])
        check(results[0], torch.cat([t @ w for t, w in zip(rows, weights[rank][2], strict=True)]), torch.float16)
        check(results[1], left[2] @ right[2], torch.float32)
        permuted = torch.cat(sorted_here([t[0].view(torch.uint8) for t in x]))
        assert torch.equal(results[2].view(torch.uint8).cpu(), permuted)
        with FakeTensorMode(allow_non_fake_inputs=True):
            made = ops.npu_alltoallv_quant_gmm(
                *arguments_like(operands), *counted, permute_out_flag=True, **options, **shared
            )
        assert [(t.shape, t.dtype) for t in made] == [(t.shape, t.dtype) for t in results]
        scale = x[0][1] if kind == "hifloat8" else torch.cat(sorted_here([t[1] for t in x]))
        back, none = ops.npu_quant_gmm_alltoallv(
            results[2], operands[1], scale.npu(), operands[3], name, n, received, sent, torch.float32, **options
        )
        assert none is None
        owners = torch.arange(n * experts).repeat_interleave(counts[rank])
        every = torch.cat([w[2] for w in weights])
        check(back, torch.einsum("tk,tkn->tn", x[rank][2], every[owners]), torch.float32)
        turned = operands[1].transpose(1, 2).contiguous().transpose(1, 2)
        if kind != "float4_e2m1fn_x2":  # where what lies beside each other says what is packed
            again = ops.npu_alltoallv_quant_gmm(operands[0], turned, *operands[2:], *counted, **options)
            assert torch.equal(again[0], results[0])
    call = ops.npu_alltoallv_quant_gmm
    raises(NotImplementedError, "gmm_weight must be hifloat8", lambda: call(*operands, *counted))
    raises(ValueError, "gmm_weight_scale", lambda: call(*operands[:3], operands[2], *counted, **options))
    raises(ValueError, "together", lambda: call(*operands, *counted, **options, mm_x=left[0].npu()))
    raises(
        NotImplementedError, "comm_quant_mode=1",
        lambda: ops.npu_quant_gmm_alltoallv(*operands, *counted, **options, comm_quant_mode=1),
    )  # fmt: skip


@case
def experts_that_do_not_fit_are_refused(rank: int, n: int) -> None:
    name, x, ops = named(rank), torch.zeros(4, 4, device="npu"), torch.ops.npu
    ids = torch.zeros(4, 1, dtype=torch.int32, device="npu")
    dispatch = ops.npu_moe_distribute_dispatch
    raises(ValueError, "share evenly", lambda: dispatch(x, ids, name, n, rank, n + 1))
    raises(ValueError, "ep_rank_id", lambda: dispatch(x, ids, name, n, n, n))
    raises(NotImplementedError, "quant_mode must be", lambda: dispatch(x, ids, name, n, rank, n, quant_mode=3))
    raises(NotImplementedError, "tp_world_size=2", lambda: dispatch(x, ids, name, n, rank, n, tp_world_size=2))
    y = ops._npu_distribute_barrier(x, name, n)
    assert torch.equal(x, y)
    assert y.data_ptr() != x.data_ptr()


OPERATORS = [name for name, function in CASES.items() if function.__module__ == __name__]

if __name__ == "__main__":
    main()
