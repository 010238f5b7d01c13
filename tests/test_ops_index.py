"""Indexing, scattering, joining, repeating and creating on npu against the CPU."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import compare, host, sample

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64]


def positions(*values: int) -> torch.Tensor:
    return torch.tensor(values)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_advanced_indexing(dtype):
    x = sample((4, 5, 6), dtype)
    i, j = positions(0, 3, 1), positions(2, 0, 4)
    mask = sample((4, 5), torch.bool)
    compare(lambda x, i: x[i], x, i)
    compare(lambda x, i: x[i], x, i.int())
    compare(lambda x, i: x[i], x, i - 2, what="negative")
    compare(lambda x, i, j: x[i, j], x, i, j)
    compare(lambda x, i, j: x[i, :, j], x, i, j)
    compare(lambda x, i: x[:, i], x, i)
    compare(lambda x, i: x[..., i], x, i)
    compare(lambda x, i, j: x[:, i[:, None], j], x, i, j)
    compare(lambda x, m: x[m], x, mask)
    compare(lambda x, m, i: x[m, i], x, mask[:, 0], positions(1))
    compare(lambda x, i: x[i], x, torch.empty(0, dtype=torch.int64))
    compare(lambda x, i: x.t()[i], x[0], i)
    compare(lambda x, i: x[i], x, positions(4), what="out of range")
    x = x.contiguous()
    compare(lambda x: x[[0, 2]], x, what="list of numbers")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_index_put(dtype):
    x = sample((4, 5), dtype)
    i, j = positions(0, 3, 1), positions(2, 0, 4)
    mask = sample((4, 5), torch.bool)
    values = sample((3,), dtype, seed=1)

    def put(x, index, value):
        x[index] = value

    compare(put, x, (i, j), values)
    compare(put, x, i, sample((3, 5), dtype, seed=1))
    compare(put, x, (slice(None), j), sample((4, 3), dtype, seed=1))
    compare(put, x, (slice(None), j), values)
    compare(put, x, mask, 1)
    compare(put, x, mask, host(1, dtype))
    compare(put, x, mask, sample((), dtype))
    compare(put, x, mask[:, 0], values[:1])
    compare(put, x, mask, sample((int(mask.sum()),), dtype, seed=1))
    compare(put, x, torch.empty(0, dtype=torch.int64), 1, native=False)
    compare(put, x, (i, j), sample((2,), dtype), what="shapes differ")
    compare(lambda x, i, v: x.index_put_((i,), v, accumulate=True), x, positions(1, 1, 0), sample((3, 5), dtype))
    compare(lambda x, i, v: x.index_put((i, i), v), x, i, values)
    compare(put, x.t(), i, sample((3, 4), dtype, seed=1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_index_functions(dtype):
    x = sample((4, 5), dtype)
    i = positions(3, 0, 1)
    compare(torch.index_select, x, 1, i)
    compare(torch.index_select, x, 0, i.int())
    compare(torch.index_select, x.t(), -1, i)
    compare(torch.index_select, x, 2, i, what="no such dimension")
    compare(torch.index_select, x, 0, torch.empty(0, dtype=torch.int64))
    compare(lambda x, i, out: torch.index_select(x, 0, i, out=out), x, i, torch.empty(0, dtype=dtype))
    compare(torch.index_copy, x, 1, i, sample((4, 3), dtype, seed=1))
    compare(torch.Tensor.index_copy_, x, 0, i, sample((3, 5), dtype, seed=1))
    compare(torch.Tensor.index_fill_, x, 1, i, 1)
    compare(torch.Tensor.index_fill_, x, 1, i, sample((), dtype))
    compare(torch.index_fill, x, 0, i, 1)
    compare(torch.index_add, x, 1, i, sample((4, 3), dtype, seed=1))
    compare(torch.Tensor.index_add_, x, 0, i, sample((3, 5), dtype, seed=1), alpha=1 if dtype == torch.bool else 2)
    compare(torch.take, x, positions(7, 0, 19))
    compare(torch.Tensor.put_, x, positions(7, 0, 19), sample((3,), dtype, seed=1))
    compare(torch.Tensor.put_, x, positions(7, 7, 19), sample((3,), dtype, seed=1), accumulate=True)
    compare(torch.take_along_dim, x, positions(3, 0, 1)[None], 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scatter_and_gather(dtype):
    x = sample((4, 5), dtype)
    index = torch.tensor([[0, 1, 2], [4, 3, 0]])
    src = sample((4, 5), dtype, seed=1)
    compare(torch.gather, x, 1, index)
    compare(torch.gather, x.t(), 0, index.clamp(max=3))
    compare(torch.gather, x, 1, index + 3, what="out of range")
    compare(torch.scatter, x, 1, index, src)
    compare(torch.scatter, x, 1, index, 1)
    compare(torch.Tensor.scatter_, x, 1, index, src)
    compare(torch.Tensor.scatter_, x, 1, index, 1)
    compare(torch.scatter_add, x, 1, index, src)
    compare(torch.Tensor.scatter_add_, x, 1, index, src)
    if dtype not in (torch.bool, torch.complex64):
        for reduce in ("add", "multiply"):
            compare(torch.scatter, x, 1, index, src, reduce=reduce)
            compare(torch.Tensor.scatter_, x, 1, index, src, reduce=reduce)
            compare(torch.Tensor.scatter_, x, 1, index, 2, reduce=reduce)
        for reduce in ("sum", "prod", "amax", "amin", "mean"):
            compare(torch.scatter_reduce, x, 1, index, src, reduce)
            compare(torch.Tensor.scatter_reduce_, x, 1, index, src, reduce, include_self=False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masks(dtype):
    x, mask = sample((4, 5), dtype), sample((4, 5), torch.bool)
    compare(torch.masked_fill, x, mask, 1)
    compare(torch.masked_fill, x, mask[:1], sample((), dtype))
    compare(torch.masked_fill, x, mask, host(1, dtype))
    compare(torch.Tensor.masked_fill_, x, mask, 1)
    compare(torch.Tensor.masked_fill_, x.t(), mask.t(), 1)
    compare(torch.masked_scatter, x, mask, sample((20,), dtype, seed=1))
    compare(torch.Tensor.masked_scatter_, x, mask, sample((20,), dtype, seed=1))
    compare(torch.masked_select, x, mask)
    compare(torch.masked_select, x, mask[:, :1])
    compare(lambda x, m, out: torch.masked_select(x, m, out=out), x, mask, torch.empty(0, dtype=dtype))
    compare(torch.nonzero, x, strides=False)
    compare(torch.nonzero, x.t(), strides=False)
    compare(torch.nonzero, torch.zeros(3, 2, dtype=dtype), strides=False)
    compare(torch.nonzero, sample((), dtype), strides=False)
    compare(lambda x: torch.nonzero(x, as_tuple=True), x, strides=False)
    compare(torch.argwhere, x, strides=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_embeddings(dtype):
    weight, indices = sample((7, 5), dtype), torch.tensor([[0, 3], [6, 3]])
    compare(F.embedding, indices, weight)
    compare(F.embedding, indices.int(), weight)
    compare(F.embedding, torch.tensor(2), weight)
    compare(F.embedding, torch.empty(0, 2, dtype=torch.int64), weight)
    compare(F.embedding, indices + 5, weight, what="out of range")
    for options in ({}, {"padding_idx": 3}, {"scale_grad_by_freq": True}):

        def gradient(weight, indices, options=options):
            weight = weight.detach().requires_grad_()
            F.embedding(indices, weight, **options).float().square().sum().backward()
            return weight.grad

        compare(gradient, weight, indices, what=str(options))
    compare(lambda w, i: F.embedding(i, w, max_norm=1.0), weight, indices)
    compare(F.one_hot, indices, 8)
    compare(F.one_hot, indices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags(dtype, mode):
    native = dtype != torch.float64  # gradients are the fallback's
    indices, offsets = torch.tensor([3, 0, 6, 3, 1, 1, 5]), torch.tensor([0, 2, 2, 5])
    bags = {"plain": {}, "padding": {"padding_idx": 3}, "last": {"include_last_offset": True}}
    if mode == "sum":
        bags["weights"] = {"per_sample_weights": torch.rand(7).to(dtype)}
    for name, options in bags.items():
        ends = torch.tensor([0, 2, 2, 7]) if name == "last" else offsets
        own = {k: v for k, v in options.items() if not isinstance(v, torch.Tensor)}
        tensors = [v for v in options.values() if isinstance(v, torch.Tensor)]

        def bag(weight, indices, offsets, *samples, own=own):
            weight = weight.detach().requires_grad_()
            samples = [s.detach().requires_grad_() for s in samples]
            rest = {"per_sample_weights": samples[0]} if samples else {}
            result = F.embedding_bag(indices, weight, offsets, mode=mode, **own, **rest)
            result.float().square().sum().backward()
            with torch.no_grad():
                alone = F.embedding_bag(indices, weight, offsets, mode=mode, **own, **rest)
            return result, weight.grad, alone, [s.grad for s in samples]

        compare(bag, sample((7, 5), dtype), indices, ends, *tensors, native=False, what=name)
        compare(bag, sample((7, 5), dtype), indices.int(), ends.int(), *tensors, native=False, what=f"{name}, int32")
        compare(
            bag,
            sample((7, 5), dtype),
            indices,
            ends[::3] if name == "last" else ends[:1],
            *tensors,
            native=False,
            what=f"{name}, one bag",
        )
    compare(lambda w, i: F.embedding_bag(i, w, mode=mode), sample((7, 5), dtype), indices[:6].view(2, 3), native=native)
    compare(
        lambda w, i, o: F.embedding_bag(i, w, o, mode=mode),
        sample((7, 5), dtype),
        indices[:0],
        offsets[:0],
        native=native,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_joining_and_repeating(dtype):
    a, b = sample((4, 5), dtype), sample((4, 3), dtype, seed=1)
    compare(lambda *t: torch.cat(t, 1), a, b)
    compare(lambda *t: torch.cat(t, -1), a.t().contiguous().t(), b)
    compare(lambda *t: torch.cat(t), a, torch.empty(0, dtype=dtype))
    compare(lambda *t: torch.cat(t), a, a.to(torch.float32) if dtype != torch.complex64 else a)
    compare(lambda a, b, out: torch.cat((a, b), 1, out=out), a, b, torch.empty(0, dtype=dtype))
    compare(lambda *t: torch.cat(t), a, b, what="sizes differ")
    compare(lambda *t: torch.stack(t, 1), a, a)
    compare(lambda *t: torch.stack(t, -1), a, a.t().contiguous().t())
    compare(lambda *t: torch.stack(t), a, b, what="sizes differ")
    compare(lambda *t: torch.stack(t, 5), a, a, what="no such dimension")
    compare(torch.Tensor.repeat, a, 2, 1, 3)
    compare(torch.Tensor.repeat, a, 2, what="too few")
    compare(torch.tile, a, (2,))
    compare(torch.repeat_interleave, a, 2, 1)
    compare(torch.repeat_interleave, a, positions(1, 0, 2, 3), 0)
    compare(torch.flip, a, (0,))
    compare(torch.flip, a.t(), (0, 1))
    compare(torch.flip, a, (2,), what="no such dimension")
    compare(torch.roll, a, 2, 1)
    compare(torch.roll, a, (1, -2), (0, 1))
    compare(torch.roll, a, 3)
    compare(torch.rot90, a)
    compare(lambda x: F.pad(x, (1, 2)), a)
    compare(lambda x: F.pad(x, (1, -1, 2, 0), value=1), a)
    compare(lambda x: F.pad(x, (-6, 0)), a, native=False, what="negative size")
    compare(torch.tril, a)
    compare(torch.triu, a, 1)
    compare(torch.Tensor.tril_, a, -1)
    compare(torch.Tensor.triu_, a.t())


def test_other_copies():
    x = sample((2, 4, 3, 3), torch.float32)
    compare(torch.native_channel_shuffle, x, 2)

    def unfolded(x):
        x = x.detach().requires_grad_()
        x.unfold(0, 3, 2).square().sum().backward()
        return x.grad

    compare(unfolded, sample((9,), torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_unique(dtype):
    x = sample((4, 6), dtype, 0, 4)
    if dtype.is_floating_point:
        x = x.round()
    for options in (
        {},
        {"return_inverse": True},
        {"return_counts": True},
        {"return_inverse": True, "return_counts": True},
    ):
        compare(torch.unique, x, **options)
        compare(torch.unique_consecutive, x, **options)
        if dtype != torch.bfloat16:
            compare(torch.unique, x, dim=1, strides=False, **options)
            compare(torch.unique_consecutive, x, dim=0, strides=False, **options)
    compare(torch.unique, x[:0], native=False)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32], ids=str
)
def test_creation(dtype):
    cases = {
        "arange": lambda d: torch.arange(7, dtype=dtype, device=d),
        "arange step": lambda d: torch.arange(2, 9, 3, dtype=dtype, device=d),
        "arange down": lambda d: torch.arange(9, 2, -2, dtype=dtype, device=d),
        "arange fraction": lambda d: torch.arange(0, 2, 0.3, device=d),
        "arange empty": lambda d: torch.arange(0, dtype=dtype, device=d),
        "linspace": lambda d: torch.linspace(-1, 10, 6, dtype=dtype, device=d),
        "logspace": lambda d: torch.logspace(0, 2, 5, dtype=dtype, device=d),
        "eye": lambda d: torch.eye(3, dtype=dtype, device=d),
        "eye n m": lambda d: torch.eye(3, 4, dtype=dtype, device=d),
        "full": lambda d: torch.full((2, 3), 4, dtype=dtype, device=d),
        "zeros": lambda d: torch.zeros(2, 3, dtype=dtype, device=d),
        "ones": lambda d: torch.ones(2, 3, dtype=dtype, device=d),
        "scalar_tensor": lambda d: torch.scalar_tensor(3, dtype=dtype, device=d),
    }
    for name, make in cases.items():
        npu, cpu = make("npu"), make("cpu")
        assert (npu.dtype, npu.shape, npu.stride()) == (cpu.dtype, cpu.shape, cpu.stride()), name
        torch.testing.assert_close(npu.cpu(), cpu, rtol=0, atol=0, msg=name)
    x = sample((4, 5), dtype)
    compare(torch.Tensor.fill_, x, 3)
    compare(torch.Tensor.fill_, x.t()[:2], 3)
    compare(torch.Tensor.fill_, x, sample((), dtype))
    compare(torch.Tensor.fill_, x, host(3, torch.float32))
    compare(torch.Tensor.zero_, x)
    compare(torch.Tensor.fill_diagonal_, x, 3)
    with pytest.raises(RuntimeError, match="bound inconsistent"):
        torch.arange(1, 0, device="npu")


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_padding_with_own_values(mode, dtype):
    def gradient(x, pad):
        x = x.detach().requires_grad_()
        F.pad(x, pad, mode).square().sum().backward()
        return x.grad

    for shape, pad in (((2, 3, 7), (2, 1)), ((2, 3, 7, 5), (1, 2, 3, 0)), ((1, 2, 4, 5, 6), (1, 2, 0, 1, 2, 1))):
        compare(F.pad, sample(shape, dtype), pad, mode)
        compare(gradient, sample(shape, dtype), pad)
        compare(F.pad, sample(shape[1:], dtype), pad, mode)
    compare(F.pad, sample((2, 3, 4), dtype), (9, 9), "reflect", what="more than the tensor has")


@pytest.mark.parametrize("make", [torch.linspace, torch.logspace])
def test_outputs_of_as_many_elements_keep_their_shape(make):
    results = []
    for device in ("cpu", "npu"):
        base = torch.zeros(2, 3, device=device)
        make(0, 3, 4, out=base.narrow(1, 1, 2))
        results.append(base.cpu())
    torch.testing.assert_close(*results)


def test_indices_that_do_not_fit_are_refused_at_once():
    first, second = positions(0, 1).npu(), positions(0, 1, 2).npu()
    with pytest.raises(IndexError, match="could not be broadcast together"):
        torch.zeros(3, 3).npu().index_put_((first, second), torch.ones(2).npu())
    on_cpu = torch.zeros(3)
    for use in (lambda: on_cpu[first], lambda: on_cpu.index_put_((first,), torch.ones(2))):
        with pytest.raises(RuntimeError, match="indices should be either on cpu"):
            use()
