"""Reductions, scans, sorting and searching on npu against the CPU."""

import pytest
import torch
from against_cpu import compare, layouts, sample
from tolerance import assert_close

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
DTYPES = [*FLOATS, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums(dtype):
    for kind, x in layouts(dtype).items():
        compare(torch.sum, x, what=kind, terms=x.numel())
        compare(torch.sum, x, -1, what=kind, terms=x.numel())
        compare(torch.sum, x, 0, True, what=kind, terms=x.numel())
        compare(torch.prod, x, what=kind)
        compare(torch.prod, x, -1, what=kind)
    x = sample((3, 4, 5), dtype)
    compare(torch.sum, x, (0, 2))
    compare(torch.sum, x, (0, 2), keepdim=True, dtype=torch.float32)
    compare(torch.sum, x, (), what="empty list")
    compare(torch.sum, x, 5, what="no such dimension")
    compare(lambda x, out: torch.sum(x, 1, out=out), x, torch.empty(0, dtype=x.sum().dtype))
    compare(torch.prod, x, 1, dtype=torch.float32)


SMALL = [(1,), (5, 1), (3, 16), (4, 17), (2, 3, 65), (1, 4096), (9, 700)]  # folded without ATen


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_small_folds(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = sample(shape, dtype)
    for dims in ((), -1, 0, tuple(range(len(shape)))):
        for keepdim in (False, True):
            for fn in (torch.sum, torch.mean, torch.amax):
                got = fn(x.npu(), dims, keepdim=keepdim)
                want = fn(x.double(), dims, keepdim=keepdim)
                assert got.shape == want.shape
                assert_close(got, want, terms=1 if fn is torch.amax else x.numel())
    for value in (float("nan"), float("inf")):
        y = x.clone()
        y.view(-1)[-1] = value
        compare(torch.sum, y, -1, terms=y.numel())
        compare(torch.mean, y, -1, terms=y.numel())
        compare(torch.amax, y, -1)


def test_operators_on_evenly_spaced_elements() -> None:
    x = sample((3, 7, 8), torch.float32, low=0.1)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        every_eighth = x.to(dtype)[..., 3]
        compare(torch.log, every_eighth)
        compare(torch.add, sample((3, 7), dtype), every_eighth, alpha=2)
        compare(torch.mul, sample((3, 7), dtype), x.to(dtype)[:, :, 0])
    compare(torch.add, torch.arange(21).view(3, 7), torch.arange(168).view(3, 7, 8)[..., 1])


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
def test_means_and_variances(dtype):
    for kind, x in layouts(dtype).items():
        compare(torch.mean, x, what=kind)
        compare(torch.mean, x, -1, what=kind)
        for fn in (torch.var, torch.std, torch.var_mean, torch.std_mean):
            compare(fn, x, what=f"{fn.__name__} {kind}")
            compare(fn, x, -1, what=f"{fn.__name__} {kind}")
    x = sample((3, 4, 5), dtype)
    for fn in (torch.var, torch.std, torch.var_mean, torch.std_mean):
        compare(fn, x, (0, 2), correction=0, keepdim=True)
        compare(fn, x, (0, 2), correction=2)
        compare(fn, x, 1, correction=0.5, native=False)
    compare(torch.mean, x, (0, 2), keepdim=True, dtype=torch.float32)
    compare(torch.mean, x.int(), 1, dtype=torch.float32)
    compare(torch.nansum, x, 1)
    compare(torch.nanmean, x, 1)
    for p in (0, 1, 2, 3, float("inf"), -float("inf"), 2.5):
        compare(torch.linalg.vector_norm, x, p)
        compare(torch.linalg.vector_norm, x, p, (0, 2), keepdim=True)
        compare(torch.norm, x, p, 1)
    compare(torch.norm, x)
    compare(torch.norm, x, 2, 1, dtype=torch.float64)
    compare(torch.logsumexp, x, 1)
    compare(torch.logsumexp, x, (0, 2), keepdim=True)
    compare(torch.renorm, x, 2, 0, 1.0, native=dtype != torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extrema(dtype):
    for kind, x in layouts(dtype).items():
        for fn in (torch.max, torch.min):
            compare(fn, x, native=x.numel() > 0, what=f"{fn.__name__} {kind}")
            compare(fn, x, -1, what=f"{fn.__name__} {kind}")
            compare(fn, x, 0, keepdim=True, what=f"{fn.__name__} {kind}")
        for fn in (torch.amax, torch.amin):
            compare(fn, x, -1, what=f"{fn.__name__} {kind}")
        compare(torch.aminmax, x, what=kind)
        compare(torch.aminmax, x, dim=-1, what=kind)
        if dtype != torch.bool:
            for fn in (torch.argmax, torch.argmin):
                compare(fn, x, what=f"{fn.__name__} {kind}")
                compare(fn, x, -1, what=f"{fn.__name__} {kind}")
                compare(fn, x, -1, keepdim=True, what=f"{fn.__name__} {kind}")
                compare(fn, x, keepdim=True, what=f"{fn.__name__} {kind}")
    x = sample((3, 4, 5), dtype)
    compare(torch.amax, x, (0, 2), True)
    compare(torch.amin, x, ())
    compare(
        lambda x, a, b: torch.max(x, 1, out=(a, b)), x, torch.empty(0, dtype=dtype), torch.empty(0, dtype=torch.int64)
    )


def test_extrema_keep_nan():
    x = sample((4, 5), torch.float32)
    x[1, 2] = float("nan")
    for fn in (torch.max, torch.min):
        compare(fn, x)
        compare(fn, x, 1)
        compare(fn, x, 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_and_all(dtype):
    for kind, x in layouts(dtype).items():
        for fn in (torch.any, torch.all):
            compare(fn, x, what=kind)
            compare(fn, x, -1, what=kind)
            compare(fn, x, 0, keepdim=True, what=kind)
    compare(torch.any, sample((3, 4, 5), dtype), (0, 2))
    compare(torch.all, sample((3, 4, 5), dtype), (0, 2), keepdim=True)
    compare(torch.any, sample((3, 4), dtype), (), native=False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scans(dtype):
    for kind, x in layouts(dtype).items():
        for fn in (torch.cumsum, torch.cumprod, torch.cummax, torch.cummin):
            compare(fn, x, -1, what=f"{fn.__name__} {kind}")
            compare(fn, x, 0, what=f"{fn.__name__} {kind}")
    x = sample((4, 5), dtype)
    compare(torch.cumsum, x, 1, dtype=torch.float32)
    compare(torch.cumprod, x, 1, dtype=torch.float32)
    if dtype != torch.bool:
        compare(torch.Tensor.cumsum_, x, 1)
        compare(torch.Tensor.cumprod_, x, 0)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.uint8], ids=str)
def test_sorting(dtype):
    for kind, x in layouts(dtype).items():
        for descending in (False, True):
            compare(lambda x, d=descending: torch.sort(x, dim=-1, descending=d, stable=True), x, what=kind)
            compare(torch.argsort, x, dim=0, descending=descending, stable=True, what=kind)
        k = 1 if x.dim() == 0 else min(2, x.size(-1))
        compare(torch.topk, x, k, what=kind)
        compare(torch.topk, x, k, largest=False, what=kind)
        compare(torch.kthvalue, x, 1, native=x.numel() > 0, what=kind)
    x = sample((5, 7), dtype)
    compare(torch.sort, x)
    compare(torch.msort, x)
    compare(torch.topk, x, 3, 0)
    compare(torch.topk, x, 9, what="k too large")
    compare(torch.kthvalue, x, 2, 0, keepdim=True)
    compare(torch.median, x)
    compare(torch.median, x, 1)
    compare(torch.median, x, 0, keepdim=True)
    compare(torch.nanmedian, x)
    compare(torch.nanmedian, x, 1)


def test_sorting_falls_back_for_float64():
    compare(torch.sort, sample((5, 7), torch.float64), native=False)


def test_searching():
    edges = sample((9,), torch.float32).sort().values
    values = sample((4, 5), torch.float32, seed=1)
    for right in (False, True):
        compare(torch.bucketize, values, edges, right=right)
        compare(torch.bucketize, values, edges, right=right, out_int32=True)
        compare(torch.searchsorted, edges, values, right=right)
        compare(torch.searchsorted, edges, 0.5, right=right)
    compare(torch.searchsorted, edges, values, side="right")
    order = torch.randperm(9)
    compare(torch.searchsorted, edges[order], values, sorter=order.argsort())
    compare(torch.searchsorted, edges.double(), values, what="dtypes differ")


def test_counts():
    x = sample((30,), torch.int64, 0, 9)
    compare(torch.bincount, x)
    compare(torch.bincount, x, minlength=20)
    compare(torch.bincount, x, sample((30,), torch.float32))
    compare(torch.bincount, x, sample((30,), torch.float16))
    compare(torch.bincount, x[:0], sample((0,), torch.float32), minlength=3)
    compare(torch.bincount, -x, what="negative")
    compare(torch.histc, sample((30,), torch.float32), 10)
    compare(torch.histc, sample((30,), torch.float32), 10, -1, 2)
    compare(torch.trace, sample((4, 5), torch.float32))
    compare(torch.trace, sample((4, 5), torch.int32))


def test_distances():
    compare(torch.cdist, sample((4, 5), torch.float32), sample((3, 5), torch.float32))
    compare(torch.cdist, sample((2, 4, 5), torch.float32), sample((3, 5), torch.float32), p=1)
