"""Operators of torch.ops.npu that communicate: what each rank runs, see program.py."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.distributed as dist
from program import CASES, case, main, of, raises
from tolerance import assert_close
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

HALVES = (torch.float16, torch.bfloat16)
H, K = 6, 2


def named(rank: int) -> str:
    group = dist.distributed_c10d._get_default_group()
    return group._get_backend(torch.device("npu")).get_hccl_comm_name(rank)


def small(rank: int, *sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (of(rank, *sizes) / 8).to(dtype)


def int8(rank: int, *sizes: int) -> Tensor:
    return of(rank, *sizes).round().clamp(-20, 20).to(torch.int8)


def check(actual: Tensor, expected: Tensor, dtype: torch.dtype, terms: int = 64) -> None:
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    assert_close(actual, expected, terms=terms, atol=torch.finfo(dtype).eps * 16)


def same_shapes(results: object, call: Callable[[], object]) -> None:
    with FakeTensorMode():
        fake = call()
    pairs = zip(results, fake, strict=True) if isinstance(results, tuple) else [(results, fake)]
    for real, made in pairs:
        assert (real is None) == (made is None)
        assert real is None or (real.shape, real.dtype) == (made.shape, made.dtype)


@case
def products_that_are_summed(rank: int, n: int) -> None:
    name = named(rank)
    for dtype in (torch.float32, *HALVES):
        for sizes in ((5, 7), (2, 3, 7)):
            x1 = [small(i, *sizes, dtype=dtype) for i in range(n)]
            x2 = [small(10 + i, 7, 4, dtype=dtype) for i in range(n)]
            x3, bias = small(20, *sizes[:-1], 4, dtype=dtype), small(21, 4, dtype=dtype)
            actual = torch.ops.npu.npu_mm_all_reduce_base(
                x1[rank].npu(), x2[rank].npu(), name, bias=bias.npu(), x3=x3.npu()
            )
            expected = sum(a.double() @ b.double() + bias.double() + x3.double() for a, b in zip(x1, x2, strict=True))
            check(actual, expected, dtype)
    arguments = [torch.empty(2, 3, 7, device="npu"), torch.empty(7, 4, device="npu")]
    same_shapes(actual.float(), lambda: torch.ops.npu.npu_mm_all_reduce_base(*arguments_like(arguments), name))


def arguments_like(tensors: list[Tensor]) -> list[Tensor]:
    return [torch.empty(t.shape, dtype=t.dtype, device="npu") for t in tensors]


@case
def quantized_products_that_are_summed(rank: int, n: int) -> None:
    name = named(rank)
    x1, x2 = [int8(i, 5, 16) for i in range(n)], [int8(10 + i, 16, 4) for i in range(n)]
    bias, rows, columns = int8(20, 4).int(), small(21, 5).abs() / 64, small(22, 4).abs() / 64
    for dtype in HALVES:
        scale = columns.to(torch.bfloat16) if dtype == torch.bfloat16 else columns
        actual = torch.ops.npu.npu_mm_all_reduce_base(
            x1[rank].npu(), x2[rank].npu(), name, bias=bias.npu(), dequant_scale=scale.npu(), pertoken_scale=rows.npu()
        )
        products = [
            (a.double() @ b.double() + bias) * scale.double() * rows[:, None] for a, b in zip(x1, x2, strict=True)
        ]
        check(actual, sum(products), dtype)
    weight, offset, scale = [int8(10 + i, 16, 4) for i in range(n)], small(23, 4).half(), columns.half()
    x1 = [small(i, 5, 16).half() for i in range(n)]
    actual = torch.ops.npu.npu_mm_all_reduce_base(
        x1[rank].npu(), weight[rank].npu(), name, antiquant_scale=scale.npu(), antiquant_offset=offset.npu()
    )
    wide = [(w.double() + offset.double()) * scale.double() for w in weight]
    check(actual, sum(a.double() @ w for a, w in zip(x1, wide, strict=True)), torch.float16, terms=256)


@case
def products_of_gathered_rows(rank: int, n: int) -> None:
    name = named(rank)
    operands = [small(rank, 3, 7).npu(), small(10, 7, 4).npu()]
    results = torch.ops.npu.npu_all_gather_base_mm(*operands, name, n)
    same_shapes(results, lambda: torch.ops.npu.npu_all_gather_base_mm(*arguments_like(operands), name, n))
    for dtype in (torch.float32, *HALVES):
        x1, x2 = [small(i, 3, 7, dtype=dtype) for i in range(n)], small(10, 7, 4, dtype=dtype)
        actual, rows = torch.ops.npu.npu_all_gather_base_mm(x1[rank].npu(), x2.npu(), name, n)
        assert torch.equal(rows.cpu(), torch.cat(x1))
        check(actual, torch.cat(x1).double() @ x2.double(), dtype)
        results = torch.ops.npu.npu_all_gather_base_mm(x1[rank].npu(), x2.npu(), name, n, gather_output=False)
        assert results[1].numel() == 0
    x1, x2 = [int8(i, 3, 16) for i in range(n)], int8(10, 16, 4)
    scales, columns = [small(20 + i, 3, 1).abs() / 64 for i in range(n)], small(30, 1, 4).abs() / 64
    options = {"x1_scale": scales[rank].npu(), "x2_scale": columns.npu(), "output_dtype": torch.float16}
    actual, _ = torch.ops.npu.npu_all_gather_base_mm(x1[rank].npu(), x2.npu(), name, n, comm_mode="aiv", **options)
    product = torch.cat(x1).double() @ x2.double()
    check(actual, product * torch.cat(scales) * columns, torch.float16)


@case
def products_that_are_scattered(rank: int, n: int) -> None:
    name = named(rank)
    for dtype in (torch.float32, *HALVES):
        x1, x2 = (
            [small(i, 3 * n, 7, dtype=dtype) for i in range(n)],
            [small(9 + i, 7, 4, dtype=dtype) for i in range(n)],
        )
        actual = torch.ops.npu.npu_mm_reduce_scatter_base(x1[rank].npu(), x2[rank].npu(), name, n)
        total = sum(a.double() @ b.double() for a, b in zip(x1, x2, strict=True))
        check(actual, total[3 * rank : 3 * rank + 3], dtype)
    x1, x2 = [int8(i, 3 * n, 16) for i in range(n)], [int8(10 + i, 16, 4) for i in range(n)]
    columns = small(30, 4).abs() / 64
    fixed = torch.ops.npu.npu_trans_quant_param(columns.npu())
    actual = torch.ops.npu.npu_mm_reduce_scatter_base(x1[rank].npu(), x2[rank].npu(), name, n, x2_scale=fixed)
    total = sum(a.double() @ b.double() * columns for a, b in zip(x1, x2, strict=True))
    check(actual, total[3 * rank : 3 * rank + 3], torch.float16, terms=512)
    x = torch.zeros(n + 1, 7, device="npu")
    raises(
        ValueError,
        "share evenly",
        lambda: torch.ops.npu.npu_mm_reduce_scatter_base(x, x2[rank].npu()[:7].float(), name, n),
    )


@case
def products_between_exchanges(rank: int, n: int) -> None:
    name = named(rank)
    for dtype in (torch.float32, *HALVES):
        x1, x2 = (
            [small(i, 5, 7, dtype=dtype) for i in range(n)],
            [small(9 + i, 7, 4 * n, dtype=dtype) for i in range(n)],
        )
        bias = small(20, 4 * n)
        actual = torch.ops.npu.npu_matmul_all_to_all(x1[rank].npu(), x2[rank].npu(), name, n, bias.npu(), [-1, -2])
        bias = bias.to(dtype).double()
        columns = [(a.double() @ b.double() + bias)[:, 4 * rank : 4 * rank + 4] for a, b in zip(x1, x2, strict=True)]
        check(actual, torch.cat(columns), dtype)
        x1, x2 = [small(i, 3 * n, 7, dtype=dtype) for i in range(n)], small(9, 7 * n, 4, dtype=dtype)
        actual, rows = torch.ops.npu.npu_all_to_all_matmul(x1[rank].npu(), x2.npu(), name, n)
        gathered = torch.cat([a[3 * rank : 3 * rank + 3] for a in x1], 1)
        assert torch.equal(rows.cpu(), gathered)
        check(actual, gathered.double() @ x2.double(), dtype)


@case
def products_of_exchanged_rows(rank: int, n: int) -> None:
    name, experts = named(rank), 3
    # counts[i][j]: rows that rank i has for expert j of all.
    counts = torch.randint(0, 4, (n, n * experts), generator=torch.Generator().manual_seed(5))
    counts[:, 1] = 0
    mine = slice(experts * rank, experts * (rank + 1))
    sent, received = counts[rank].tolist(), counts[:, mine].flatten().tolist()
    for dtype in HALVES:
        x = [small(i, int(counts[i].sum()), H, dtype=dtype) for i in range(n)]
        weight, shared = small(20 + rank, experts, H, 4, dtype=dtype), small(30, 5, H, dtype=dtype)
        parts = [x[i].split(counts[i].tolist()) for i in range(n)]
        by_expert = [torch.cat([parts[i][j] for i in range(n)]) for j in range(n * experts)][mine]
        expected = torch.cat([t.double() @ w.double() for t, w in zip(by_expert, weight, strict=True)])
        product, other, permuted = torch.ops.npu.npu_alltoallv_gmm(
            x[rank].npu(), weight.transpose(1, 2).contiguous().npu(), name, n, sent, received, mm_x=shared.npu(),
            mm_weight=shared.npu(), trans_gmm_weight=True, trans_mm_weight=True, permute_out_flag=True,
        )  # fmt: skip
        assert torch.equal(permuted.cpu(), torch.cat(by_expert))
        check(product, expected, dtype)
        check(other, shared.double() @ shared.double().T, dtype)
        weights = [small(40 + i, experts, H, 4, dtype=dtype) for i in range(n)]
        back, none = torch.ops.npu.npu_gmm_alltoallv(permuted, weights[rank].npu(), name, n, received, sent)
        assert none is None
        owners = torch.arange(n * experts).repeat_interleave(counts[rank])
        every = torch.cat(weights).double()
        check(back, torch.einsum("tk,tkn->tn", x[rank].double(), every[owners]), dtype)
    short = [9] * (n * experts)
    raises(
        ValueError,
        "counts whose sum",
        lambda: torch.ops.npu.npu_gmm_alltoallv(permuted, weight.npu(), name, n, short, sent),
    )


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


@case
def what_cannot_communicate_is_refused(rank: int, n: int) -> None:
    name, x, w = named(rank), torch.zeros(4, 4, device="npu"), torch.zeros(4, 4, device="npu")
    ops = torch.ops.npu
    raises(ValueError, "the name that get_hccl_comm_name", lambda: ops.npu_mm_all_reduce_base(x, w, "none"))
    raises(ValueError, "the size of group", lambda: ops.npu_mm_reduce_scatter_base(x, w, name, n + 1))
    raises(ValueError, "x2 [k, n]", lambda: ops.npu_mm_all_reduce_base(x, w[:3], name))
    raises(NotImplementedError, "reduce_op='max'", lambda: ops.npu_mm_all_reduce_base(x, w, name, reduce_op="max"))
    raises(NotImplementedError, "gather_index=1", lambda: ops.npu_all_gather_base_mm(x, w, name, n, gather_index=1))
    raises(ValueError, "a scale of x2", lambda: ops.npu_mm_reduce_scatter_base(x.char(), w.char(), name, n))
    raises(ValueError, "with int8 only", lambda: ops.npu_all_gather_base_mm(x, w, name, n, x2_scale=w[0]))
    raises(ValueError, "all2all_axes", lambda: ops.npu_matmul_all_to_all(x, w, name, n, None, [0, 1]))
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
