"""Matrix products, norms and softmax of sizes for which cann_host has kernels of its own, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tolerance import assert_close, tolerance
from torch import Tensor
from torch.nn import functional as F

import torch_npu

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Rows by inner by columns: around the block of 4 rows and the vectors of 4, 8 and 16 numbers.
SIZES = [
    (1, 1, 1), (1, 2, 2), (1, 64, 192), (1, 65, 67), (2, 16, 64), (3, 7, 5), (4, 33, 17), (5, 1, 9), (7, 100, 3),
    (8, 128, 128), (10, 8, 128), (128, 8, 64), (1, 256, 1024), (4, 300, 700), (64, 64, 65),
]  # fmt: skip


def values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def laid_out(matrix: Tensor, layout: str) -> Tensor:
    """The same numbers on npu, in another order in memory."""
    matrix = matrix.npu()
    if layout == "transposed":
        return matrix.mT.contiguous().mT
    if layout == "with gaps":
        wide = torch.full((*matrix.shape[:-1], matrix.shape[-1] + 3), float("nan"), dtype=matrix.dtype, device="npu")
        wide[..., : matrix.shape[-1]] = matrix
        return wide[..., : matrix.shape[-1]]
    if layout == "every second":
        return matrix.repeat_interleave(2, -1)[..., ::2]
    return matrix


def check(call: Callable[..., Tensor], *arguments: Tensor, terms: int, npu: list[Tensor] | None = None) -> None:
    torch_npu.clear_fallback_report()
    result = call(*(npu or [a.npu() for a in arguments]))
    assert not torch_npu.fallback_report()
    expected = call(*(a.double() for a in arguments))
    assert result.dtype == arguments[0].dtype
    allowed = tolerance(result.dtype, terms)
    torch.testing.assert_close(
        result.cpu().double(), expected, rtol=allowed.relative, atol=allowed.absolute, equal_nan=True
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "with gaps", "every second"])
def test_products(dtype: torch.dtype, sizes: tuple[int, int, int], layout: str) -> None:
    rows, inner, columns = sizes
    a, b, bias = values(rows, inner, dtype=dtype), values(inner, columns, dtype=dtype), values(columns, dtype=dtype)
    on_npu = laid_out(a, layout), laid_out(b, layout)
    check(torch.mm, a, b, terms=inner, npu=[*on_npu])
    check(lambda a, b, bias: torch.addmm(bias, a, b), a, b, bias, terms=inner, npu=[*on_npu, bias.npu()])
    check(torch.mm, a, b, terms=inner, npu=[a.npu(), on_npu[1]])
    check(torch.mm, a, b, terms=inner, npu=[on_npu[0], b.npu()])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "with gaps", "every second"])
@pytest.mark.parametrize("sizes", [(4, 1, 16, 64), (3, 5, 7, 9), (12, 1, 64, 16), (2, 1, 1, 1)], ids=str)
def test_batches_of_products(dtype: torch.dtype, layout: str, sizes: tuple[int, int, int, int]) -> None:
    batches, rows, inner, columns = sizes
    a, b = values(batches, rows, inner, dtype=dtype), values(batches, inner, columns, dtype=dtype)
    check(torch.bmm, a, b, terms=inner, npu=[laid_out(a, layout), laid_out(b, layout)])
    check(torch.bmm, a, b, terms=inner, npu=[a.npu(), laid_out(b, layout)])


def test_products_without_terms_and_of_nothing() -> None:
    assert torch.equal(torch.mm(torch.ones(2, 0).npu(), torch.ones(0, 3).npu()).cpu(), torch.zeros(2, 3))
    bias = torch.arange(3.0)
    assert torch.equal(torch.addmm(bias.npu(), torch.ones(2, 0).npu(), torch.ones(0, 3).npu()).cpu(), bias.expand(2, 3))
    assert torch.mm(torch.ones(0, 2).npu(), torch.ones(2, 3).npu()).shape == (0, 3)


def test_products_let_nan_and_infinity_through() -> None:
    a, b = values(5, 33), values(33, 19)
    a[1, 32], a[2, 0], b[4, 18] = float("nan"), float("inf"), float("-inf")
    check(torch.mm, a, b, terms=33)
    check(torch.mm, a, b, terms=33, npu=[a.npu(), laid_out(b, "transposed")])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 2, 15, 16, 17, 64, 100, 1000])
def test_softmax(dtype: torch.dtype, columns: int) -> None:
    x = values(7, columns, dtype=dtype) * 5
    check(lambda x: torch.softmax(x, -1), x, terms=columns)
    x[1, :] = float("-inf")  # all hidden: NaN
    x[2, 0] = float("-inf")
    x[3, columns - 1] = float("nan")
    x[4, 0] = float("inf")
    check(lambda x: torch.softmax(x, -1), x, terms=columns)


def test_softmax_of_large_numbers() -> None:
    x = torch.tensor([[1e30, 1e30, -1e30], [-3e38, 3e38, 0], [88.8, -104, 0]])
    check(lambda x: torch.softmax(x, -1), x, terms=3)


@pytest.mark.parametrize("columns", [1, 3, 16, 37, 768])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(columns: int, affine: bool) -> None:
    x = values(5, columns) * 3 + 10
    parameters = (values(columns), values(columns)) if affine else ()
    check(lambda x, *p: F.layer_norm(x, (columns,), *p), x, *parameters, terms=10 * columns)


def test_layer_norm_leaves_its_statistics() -> None:
    x = values(4, 3, 37)
    y, mean, rstd = torch.native_layer_norm(x.npu(), (3, 37), None, None, 1e-5)
    expected = torch.native_layer_norm(x, (3, 37), None, None, 1e-5)
    for actual, wanted in zip((y, mean, rstd), expected, strict=True):
        torch.testing.assert_close(actual.cpu(), wanted)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_index_copy(dim: int, dtype: torch.dtype) -> None:
    x, source = torch.zeros(4, 5, 6, dtype=dtype), torch.ones(4, 5, 6, dtype=dtype).narrow(dim, 0, 2).contiguous()
    index = torch.tensor([3, 0])
    assert torch.equal(x.npu().index_copy_(dim, index.npu(), source.npu()).cpu(), x.index_copy_(dim, index, source))


def test_index_copy_refuses_what_lies_outside() -> None:
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        torch.zeros(4, 5).npu().index_copy_(0, torch.tensor([4]).npu(), torch.ones(1, 5).npu())


def test_joining_small_tensors() -> None:
    for dtype in (*DTYPES, torch.float64, torch.int64, torch.int8, torch.bool):
        for shapes, dim in (
            (((3,), (1,), (0,), (5,)), 0),
            (((2, 3), (2, 1), (2, 4)), 1),
            (((2, 3), (1, 3)), -2),
            (((2, 0, 3), (2, 2, 3)), 1),
            (((0,), (2, 3)), 0),  # PyTorch ignores such a tensor
        ):
            parts = [values(*s).mul(100).to(dtype) for s in shapes]
            assert torch.equal(torch.cat([p.npu() for p in parts], dim).cpu(), torch.cat(parts, dim))
        a = values(4, 6).mul(100).to(dtype)
        assert torch.equal(torch.cat([a.npu().t(), a.npu()[:, ::2].t()]).cpu(), torch.cat([a.t(), a[:, ::2].t()]))
    mixed = [torch.arange(3), torch.tensor([0.5])]
    assert torch.equal(torch.cat([m.npu() for m in mixed]).cpu(), torch.cat(mixed))


def test_rows_of_a_table() -> None:
    for dtype in (*DTYPES, torch.float64):
        table = values(7, 5, dtype=dtype)
        for index in (torch.tensor(6), torch.tensor([0, 3, 3]), torch.tensor([[1, 2], [6, 0]]), torch.zeros(0).long()):
            for kind in (torch.int64, torch.int32):
                assert torch.equal(F.embedding(index.to(kind).npu(), table.npu()).cpu(), F.embedding(index, table))
        assert torch.equal(F.embedding(torch.tensor([4]).npu(), table.t().npu()).cpu(), table.t()[[4]])
    for wrong in (7, -1):
        with pytest.raises((IndexError, RuntimeError), match="out of range"):
            F.embedding(torch.tensor([0, wrong]).npu(), table.npu())


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_of_few_queries(dtype: torch.dtype) -> None:
    for heads, key_heads, queries, keys, size in (
        (1, 1, 1, 1, 1),
        (4, 2, 3, 7, 5),
        (2, 2, 8, 8, 16),
        (8, 1, 4, 130, 64),
    ):
        q, k, v = (
            values(2, h, n, size, dtype=dtype) for h, n in ((heads, queries), (key_heads, keys), (key_heads, keys))
        )
        options = {"enable_gqa": heads != key_heads, "is_causal": queries == keys}
        strided = [laid_out(t.transpose(1, 2).contiguous(), "contiguous").transpose(1, 2) for t in (q, k, v)]
        for npu in (None, strided):
            check(lambda *a, o=options: F.scaled_dot_product_attention(*a, **o), q, k, v, terms=keys + size, npu=npu)


def test_log_sum_exp_of_few_queries() -> None:
    q, k, v = values(2, 3, 4, 8), values(2, 3, 9, 8), values(2, 3, 9, 8)
    _, log_sum_exp, *_ = torch.ops.aten._scaled_dot_product_fused_attention_overrideable(q.npu(), k.npu(), v.npu())
    expected = (q.double() @ k.double().mT * 8**-0.5).logsumexp(-1)
    assert_close(log_sum_exp, expected)
