"""Operators of torch.ops.npu that communicate: what each rank runs, see program.py."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from program import CASES, case, main, of, raises
from tolerance import assert_close
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

HALVES = (torch.float16, torch.bfloat16)
H = 6


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
    columns = (columns.view(torch.int32) & -8192).view(torch.float32)  # it keeps 19 bits
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


@case
def quantized_products(rank: int, n: int) -> None:
    name, ops = named(rank), torch.ops.npu
    for kind in (torch.int8, torch.float8_e4m3fn):
        x1 = [int8(i, 3, 64).clamp(-8, 8).to(kind) for i in range(n)]
        x2, bias = [int8(9 + i, 64, 4).clamp(-8, 8).to(kind) for i in range(n)], int8(20, 4).float()
        rows, columns = [small(20 + i, 3).abs() / 64 for i in range(n)], small(30, 4).abs() / 64
        products = [
            (a.double() @ x2[0].double() + bias) * s.double()[:, None] * columns for a, s in zip(x1, rows, strict=True)
        ]
        actual, gathered, amax = ops.npu_all_gather_quant_mm(
            x1[rank].npu(), x2[0].npu(), name, n, bias=bias.npu(), x1_scale=rows[rank].npu(), x2_scale=columns.npu(),
            y_dtype=torch.bfloat16,
        )  # fmt: skip
        assert torch.equal(gathered.cpu().float(), torch.cat(x1).float())
        assert amax.numel() == 0
        check(actual, torch.cat(products), torch.bfloat16)
        one = [small(40 + i, 1).abs() for i in range(n)]
        actual, none, _ = ops.npu_all_gather_quant_mm(
            x1[rank].npu(), x2[0].npu(), name, n, x1_scale=one[rank].npu(), x2_scale=columns[:1].npu(),
            y_dtype=torch.float32, gather_output=False,
        )  # fmt: skip
        assert none.numel() == 0
        products = [a.double() @ x2[0].double() * s * columns[:1] for a, s in zip(x1, one, strict=True)]
        check(actual, torch.cat(products), torch.float32)
        big = [int8(50 + i, 2 * n, 64).clamp(-8, 8).to(kind) for i in range(n)]
        scales = [small(60 + i, 2 * n).abs() / 64 for i in range(n)]
        total = sum(
            a.double() @ b.double() * s.double()[:, None] * columns for a, b, s in zip(big, x2, scales, strict=True)
        )
        actual, _ = ops.npu_quant_mm_reduce_scatter(
            big[rank].npu(), x2[rank].npu(), name, n, x1_scale=scales[rank].npu(), x2_scale=columns.npu(),
            y_dtype=torch.float32,
        )  # fmt: skip
        check(actual, total[2 * rank : 2 * rank + 2], torch.float32)
        wide = [int8(70 + i, 64, 2 * n).clamp(-8, 8).to(kind) for i in range(n)]
        factors = small(80, 2 * n).abs() / 64
        actual = ops.npu_quant_matmul_all_to_all(
            x1[rank].npu(), wide[rank].npu(), name, n, None, rows[rank].npu(), factors.npu(), x1_quant_mode=3,
            x2_quant_mode=2, common_quant_mode=0, all2all_axes=[-1, -2],
        )  # fmt: skip
        parts = [
            a.double() @ b.double() * s.double()[:, None] * factors for a, b, s in zip(x1, wide, rows, strict=True)
        ]
        check(actual, torch.cat([p[:, 2 * rank : 2 * rank + 2] for p in parts]), torch.float32)
    x = [small(i, 2 * n, 32, dtype=torch.bfloat16) for i in range(n)]
    weight = int8(9, 32 * n, 4).clamp(-8, 8).to(torch.float8_e4m3fn)
    columns = small(30, 4).abs() / 64
    actual, gathered = ops.npu_all_to_all_quant_matmul(
        x[rank].npu(), weight.npu(), name, n, x2_scale=columns.npu(), x1_quant_mode=7, x2_quant_mode=2,
        x1_quant_dtype=torch.float8_e4m3fn,
    )  # fmt: skip
    rows = torch.cat([a[2 * rank : 2 * rank + 2] for a in x], 1)
    assert torch.equal(gathered.cpu(), rows)
    scale = rows.float().abs().amax(1, keepdim=True) / 448
    numbers = (rows.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    check(actual, numbers.double() @ weight.double() * scale.double() * columns, torch.float32)
    powers = [torch.randint(124, 130, (3, 1, 2), generator=torch.Generator().manual_seed(i)).byte() for i in range(n)]
    other = torch.randint(124, 130, (1, 4, 2), generator=torch.Generator().manual_seed(9)).byte()
    actual, *_ = ops.npu_all_gather_quant_mm(
        x1[rank].npu(), x2[0].npu(), name, n, x1_scale=powers[rank].npu(), x2_scale=other.npu(), y_dtype=torch.float32
    )
    left = [
        a.double() * 2.0 ** (p.double() - 127).flatten(1).repeat_interleave(32, 1)
        for a, p in zip(x1, powers, strict=True)
    ]
    right = x2[0].double() * 2.0 ** (other.double() - 127).transpose(1, 2).flatten(0, 1).repeat_interleave(32, 0)
    check(actual, torch.cat(left) @ right, torch.float32)
    raises(ValueError, "y_dtype with", lambda: ops.npu_all_gather_quant_mm(x1[0].npu(), x2[0].npu(), name, n))
    raises(
        NotImplementedError, "quant modes must be 3",
        lambda: ops.npu_quant_matmul_all_to_all(x1[0].npu(), x2[0].npu(), name, n),
    )  # fmt: skip
    results = ops.npu_quant_mm_reduce_scatter(x[rank].npu(), x[rank].npu().t().contiguous(), name, n)
    operands = [x[rank].npu(), x[rank].npu().t().contiguous()]
    same_shapes(results, lambda: ops.npu_quant_mm_reduce_scatter(*arguments_like(operands), name, n))


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


OPERATORS = [name for name, function in CASES.items() if function.__module__ == __name__]

if __name__ == "__main__":
    main()
