"""Random numbers on npu: distributions, reproducibility, arguments that are refused."""

import math

import pytest
import torch
import torch.nn.functional as F

import torch_npu

N = 200_000
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def near(value: float, expected: float, deviation: float, n: int = N) -> bool:
    """Within 6 standard errors of the mean of n numbers."""
    return abs(value - expected) < 6 * deviation / math.sqrt(n)


@pytest.fixture(autouse=True)
def _native_and_seeded():
    torch.npu.manual_seed(1234)
    with torch_npu.fallback_policy("error"):
        yield


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_uniform_and_normal(dtype):
    x = torch.empty(N, dtype=dtype, device="npu").uniform_(2, 5).cpu().double()
    assert x.min() >= 2
    assert x.max() <= 5
    assert near(x.mean(), 3.5, 3 / math.sqrt(12))
    assert abs(x.var().item() - 9 / 12) < 0.02
    x = torch.empty(N, dtype=dtype, device="npu").normal_(1, 2).cpu().double()
    assert near(x.mean(), 1, 2)
    assert abs(x.std().item() - 2) < 0.03
    x = torch.empty(N, dtype=dtype, device="npu").exponential_(2).cpu().double()
    assert x.min() > 0
    assert near(x.mean(), 0.5, 0.5)


def test_factories():
    assert torch.rand(5, 3, device="npu").shape == (5, 3)
    assert near(torch.randn(N, device="npu").mean().item(), 0, 1)
    integers = torch.randint(-3, 4, (N,), device="npu").cpu()
    assert set(integers.unique().tolist()) == set(range(-3, 4))
    assert near(integers.double().mean(), 0, 2)
    assert torch.rand_like(torch.empty(4, 5, device="npu").t()).stride() == (1, 5)
    assert torch.randn(3, dtype=torch.complex64, device="npu").is_complex()


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, *FLOATS], ids=str
)
def test_random_integers(dtype):
    x = torch.empty(N, dtype=dtype, device="npu").random_().cpu()
    if dtype == torch.bool:
        assert near(x.double().mean(), 0.5, 0.5)
        return
    largest = {torch.float16: 2**11, torch.bfloat16: 2**8, torch.float32: 2**24, torch.float64: 2**53}.get(dtype)
    largest = torch.iinfo(dtype).max if largest is None else largest
    assert x.min() >= 0
    assert x.max().double() <= largest
    assert near(x.double().mean() / largest, 0.5, 1 / math.sqrt(12)) or dtype in (torch.uint8, torch.int8)
    y = torch.empty(N, dtype=dtype, device="npu").random_(1, 7).cpu()
    assert set(y.unique().tolist()) == set(range(1, 7))
    assert torch.empty(100, dtype=dtype, device="npu").random_(5).cpu().max() < 5


def test_random_over_all_of_int64():
    x = torch.empty(10_000, dtype=torch.int64, device="npu").random_(-(2**63), None).cpu()
    assert x.min() < -(2**62)
    assert x.max() > 2**62
    assert len(x.unique()) == 10_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_bernoulli(dtype):
    x = torch.empty(N, dtype=dtype, device="npu").bernoulli_(0.3).cpu().double()
    assert near(x.mean(), 0.3, 0.46)
    p = torch.tensor([0.0, 0.2, 1.0], device="npu").expand(N, 3)
    means = torch.empty(N, 3, dtype=dtype, device="npu").bernoulli_(p).cpu().double().mean(0)
    assert means[0] == 0
    assert means[2] == 1
    assert near(means[1], 0.2, 0.4)
    assert near(torch.bernoulli(torch.full((N,), 0.7, device="npu")).mean().item(), 0.7, 0.46)


def test_normal_with_tensors():
    mean, std = torch.full((N,), 3.0, device="npu"), torch.full((N,), 2.0, device="npu")
    for x in (
        torch.normal(mean, std),
        torch.normal(mean, 2.0),
        torch.normal(3.0, std),
        torch.normal(3.0, 2.0, (N,), device="npu"),
    ):
        assert near(x.mean().item(), 3, 2)
        assert abs(x.std().item() - 2) < 0.03
    assert torch.normal(mean[:1, None], std[:4]).shape == (1, 4)


def test_multinomial():
    p = torch.tensor([[0.1, 0.2, 0.7], [1.0, 0.0, 3.0]], device="npu")
    drawn = torch.multinomial(p, N, replacement=True).cpu()
    assert drawn.shape == (2, N)
    for row, expected in zip(drawn, ([0.1, 0.2, 0.7], [0.25, 0, 0.75]), strict=True):
        shares = torch.bincount(row, minlength=3) / N
        torch.testing.assert_close(shares, torch.tensor(expected), atol=0.01, rtol=0)
    without = torch.multinomial(torch.ones(1000, 5, device="npu"), 5).cpu()
    assert torch.equal(without.sort().values, torch.arange(5).expand(1000, 5))
    first = torch.multinomial(p[:1].expand(N, 3), 1).cpu()
    torch.testing.assert_close(torch.bincount(first.flatten()) / N, torch.tensor([0.1, 0.2, 0.7]), atol=0.01, rtol=0)


def test_permutations():
    for n in (0, 1, 7, 1000):
        assert torch.equal(torch.randperm(n, device="npu").cpu().sort().values, torch.arange(n))
    assert torch.randperm(5, dtype=torch.int32, device="npu").dtype == torch.int32
    assert not torch.equal(torch.randperm(1000, device="npu").cpu(), torch.arange(1000))


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_dropout(dtype):
    x = torch.ones(N, dtype=dtype, device="npu", requires_grad=True)
    y = F.dropout(x, 0.25)
    kept = y != 0
    assert near(kept.float().mean().item(), 0.75, 0.44)
    scale = torch.tensor(1 / 0.75, dtype=dtype)
    assert torch.equal(y.cpu(), torch.where(kept.cpu(), scale, torch.zeros_like(scale)))
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())
    assert torch.equal(F.dropout(x, 0.5, training=False), x)
    assert not F.dropout(x, 1.0).any()
    out, mask = torch.native_dropout(x.detach(), 0.5, True)
    assert mask.dtype == torch.bool
    assert torch.equal(out != 0, mask)


def test_same_seed_same_numbers_new_calls_new_numbers():
    torch.npu.manual_seed(7)
    a, b = torch.rand(100, device="npu"), torch.rand(100, device="npu")
    torch.npu.manual_seed(7)
    assert torch.equal(torch.rand(100, device="npu"), a)
    assert torch.equal(torch.rand(100, device="npu"), b)
    assert not torch.equal(a, b)
    generator = torch.Generator("npu").manual_seed(7)
    assert torch.equal(torch.rand(100, device="npu", generator=generator), a)
    state = torch.npu.get_rng_state()
    c = torch.randn(10, device="npu")
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.randn(10, device="npu"), c)


def test_numbers_do_not_depend_on_the_layout():
    torch.npu.manual_seed(7)
    a = torch.empty(4, 5, device="npu").uniform_()
    torch.npu.manual_seed(7)
    assert torch.equal(torch.empty(5, 4, device="npu").t().uniform_(), a)


def test_refusals():
    x = torch.empty(3, device="npu")
    with pytest.raises(RuntimeError, match="from=3"):
        x.uniform_(3, 2)
    with pytest.raises(RuntimeError, match="std >= 0"):
        x.normal_(0, -1)
    with pytest.raises(RuntimeError, match="to be less than 'to'"):
        x.random_(3, 3)
    with pytest.raises(RuntimeError, match=r"p to be in \[0, 1\]"):
        x.bernoulli_(1.5)
    with pytest.raises(RuntimeError, match="lambda > 0"):
        x.exponential_(0)
    with pytest.raises(RuntimeError, match=r"not enough|without replacement"):
        torch.multinomial(torch.ones(3, device="npu"), 4)
    with pytest.raises(RuntimeError, match=r"inf.*nan|element < 0"):
        torch.multinomial(torch.tensor([-1.0, 2.0], device="npu"), 1)
    with pytest.raises(RuntimeError, match="negative"):
        torch.randperm(-1, device="npu")
