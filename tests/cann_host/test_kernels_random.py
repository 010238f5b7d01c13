"""Philox and the distributions against a plain reference, statistics, and across threads and instruction sets."""

import hashlib

import kernels_library as kernels
import numpy as np
import pytest
import torch
from scipy import stats

SEED = 0x0123456789ABCDEF
OFFSET = 0xFEDCBA9876543210
N = 1 << 18
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
LOW32 = np.uint64(0xFFFFFFFF)


# ---- The reference ----


def philox4x32_10(seed: int, offset: int, group: np.ndarray) -> np.ndarray:
    """The words [4, len(group)] of some groups."""
    counter = [np.full(len(group), word, np.uint64) for word in (offset & 0xFFFFFFFF, offset >> 32)]
    counter += [group & LOW32, group >> np.uint64(32)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        products = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        counter = [
            (products[1] >> np.uint64(32)) ^ counter[1] ^ np.uint64(key[0]),
            products[1] & LOW32,
            (products[0] >> np.uint64(32)) ^ counter[3] ^ np.uint64(key[1]),
            products[0] & LOW32,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(counter)


def draws32(n: int, seed=SEED, offset=OFFSET) -> np.ndarray:
    element = np.arange(n, dtype=np.uint64)
    words = philox4x32_10(seed, offset, element // np.uint64(64) * np.uint64(16) + element % np.uint64(16))
    return words[(element % np.uint64(64) // np.uint64(16)).astype(int), np.arange(n)]


def draws64(n: int, seed=SEED, offset=OFFSET) -> np.ndarray:
    element = np.arange(n, dtype=np.uint64)
    words = philox4x32_10(seed, offset, element // np.uint64(32) * np.uint64(16) + element % np.uint64(16))
    half = (element % np.uint64(32) // np.uint64(16)).astype(int)
    column = np.arange(n)
    return words[2 * half, column] | words[2 * half + 1, column] << np.uint64(32)


def test_reference_gives_the_published_vectors():
    """Known answers of Random123."""
    words = philox4x32_10(0, 0, np.array([0], np.uint64))[:, 0]
    assert [f"{word:08x}" for word in words] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    words = philox4x32_10(2**64 - 1, 2**64 - 1, np.array([2**64 - 1], np.uint64))[:, 0]
    assert [f"{word:08x}" for word in words] == ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"]


@pytest.mark.parametrize("n", [1, 15, 31, 64, 65, 1000])
def test_integers_are_the_reference_bits(isa, n):
    got = kernels.random_integers(torch.int64, n, -(2**63), 2**63, SEED, OFFSET)
    assert np.array_equal(got.numpy().view(np.uint64), draws64(n) + np.uint64(2**63))


@pytest.mark.parametrize("span", [1, 7, 50_000, 2**32 - 1, 2**32, 2**40 + 3])
def test_integers_scale_the_reference(isa, span):
    got = kernels.random_integers(torch.int64, 500, -5, -5 + span, SEED, OFFSET)
    want = [int(draw) * span // 2**64 - 5 for draw in draws64(500)]
    assert got.tolist() == want


@pytest.mark.parametrize("n", [1, 63, 64, 130, 1000])
def test_uniform_is_the_reference(isa, n):
    got = kernels.fill_random("uniform", torch.float32, n, 0, 1, SEED, OFFSET)
    assert np.array_equal(got.numpy(), (draws32(n) >> np.uint64(8)).astype(np.float32) / np.float32(2**24))
    got = kernels.fill_random("uniform", torch.float64, n, 0, 1, SEED, OFFSET)
    assert np.array_equal(got.numpy(), (draws64(n) >> np.uint64(12)) / 2**52)


def test_bernoulli_is_the_reference(isa):
    accepted = (draws32(1000) >> np.uint64(1)) < round(0.3 * 2**31)
    for dtype in kernels.DATA_TYPES:
        got = kernels.fill_random("bernoulli", dtype, 1000, 0.3, 0, SEED, OFFSET)
        assert np.array_equal(got.double().numpy(), accepted), dtype


def box_muller(radius_draw, angle_draw, bits):
    radius = np.sqrt(-2 * np.log(radius_draw))
    return radius * np.cos(2 * np.pi * angle_draw / 2.0**bits), radius * np.sin(2 * np.pi * angle_draw / 2.0**bits)


def test_normal_is_box_muller_of_the_reference(isa):
    words = draws32(4096).reshape(-1, 4, 16).astype(np.float64)
    u = (np.floor(words[:, 0::2] / 2) + 0.5) / 2**31
    z = np.stack(box_muller(u, words[:, 1::2], 32), axis=2).reshape(-1)
    got = kernels.fill_random("normal", torch.float32, 4096, 0, 1, SEED, OFFSET).double().numpy()
    # The first word is rounded to 24 bits before the logarithm, which shows most where u is near 1.
    assert np.abs(got - z).max() < 3e-4
    assert np.median(np.abs(got - z)) < 1e-7

    long = draws64(4096).reshape(-1, 2, 16)
    u = 1 - (long[:, 0] >> np.uint64(12)) / 2.0**52
    angle = (long[:, 1] >> np.uint64(12)).astype(np.float64) - 2.0**51
    z = np.stack(box_muller(u, angle, 52), axis=1).reshape(-1)
    got = kernels.fill_random("normal", torch.float64, 4096, 0, 1, SEED, OFFSET).numpy()
    assert np.abs(got - z).max() < 1e-13


# ---- The same bits everywhere ----

PARAMETERS = {
    "uniform": (-3, 5),
    "normal": (1, 2),
    "log_normal": (0.5, 0.7),
    "cauchy": (1, 2),
    "exponential": (1.5, 0),
    "geometric": (0.2, 0),
    "bernoulli": (0.4, 0),
}


def everything(n: int) -> list[str]:
    """A digest of each kernel's result."""
    results = [
        kernels.fill_random(name, dtype, n, *ab) for name, ab in PARAMETERS.items() for dtype in kernels.DATA_TYPES
    ]
    x = torch.linspace(-3, 3, n)
    for dtype in FLOATS:
        results += [*kernels.dropout(x.to(dtype), 0.3), kernels.bernoulli(torch.bool, x.abs().div(3).to(dtype))]
    results += [kernels.random_integers(dtype, n, 0, 100) for dtype in kernels.DATA_TYPES]
    results += [kernels.random_integers(torch.int64, n, -(2**62), 2**62), kernels.random_permutation(n)]
    results += [kernels.dropout_mask(n, 0.1)]
    return [hashlib.sha1(r.view(torch.uint8).numpy().tobytes()).hexdigest() for r in results if r is not None]


@pytest.mark.parametrize("n", [77, 150_001])
def test_bits_do_not_depend_on_threads_or_instruction_set(isa, n):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        two_threads = everything(n)
        torch.set_num_threads(1)
        one_thread = everything(n)
        kernels.limit_isa("baseline")
        baseline = everything(n)
    finally:
        torch.set_num_threads(threads)
    assert two_threads == one_thread == baseline


def test_a_prefix_does_not_depend_on_the_length():
    for dtype in FLOATS:
        long = kernels.fill_random("normal", dtype, 1000, 0, 1)
        for n in (1, 33, 64, 999):
            assert torch.equal(kernels.fill_random("normal", dtype, n, 0, 1), long[:n])


# ---- Statistics. Seeds are fixed, so these either always pass or always fail. ----


def assert_follows(sample: torch.Tensor, distribution) -> None:
    assert stats.kstest(sample.double().numpy(), distribution.cdf).pvalue > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("name", "a", "b", "distribution"),
    [
        ("uniform", 0, 1, stats.uniform()),
        ("uniform", -3, 5, stats.uniform(-3, 8)),
        ("normal", 0, 1, stats.norm()),
        ("normal", -2, 0.1, stats.norm(-2, 0.1)),
        ("log_normal", 0.5, 0.7, stats.lognorm(0.7, scale=np.exp(0.5))),
        ("cauchy", 1, 2, stats.cauchy(1, 2)),
        ("exponential", 1.5, 0, stats.expon(scale=1 / 1.5)),
    ],
)
def test_distribution(name, a, b, distribution, dtype):
    assert_follows(kernels.fill_random(name, dtype, N, a, b), distribution)


@pytest.mark.parametrize("dtype", FLOATS)
def test_moments_of_normal(dtype):
    z = kernels.fill_random("normal", dtype, N, 3, 2).double().numpy()
    assert abs(z.mean() - 3) < 4 * 2 / N**0.5
    assert abs(z.std() - 2) < 0.012
    assert abs(stats.skew(z)) < 0.02
    assert abs(stats.kurtosis(z)) < 0.05


@pytest.mark.parametrize("dtype", FLOATS)
def test_tails_of_normal(dtype):
    z = kernels.fill_random("normal", dtype, 1 << 22, 0, 1).double().numpy()
    for bound in (3, 4, 4.5):
        expected = 2 * stats.norm.sf(bound) * z.size
        assert abs((np.abs(z) > bound).sum() - expected) < 5 * expected**0.5 + expected * 0.03


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 0), (-0.3, 0.7), (5, 5), (1, 1.0078125), (-2, -1)])
def test_uniform_stays_inside(dtype, low, high):
    values = kernels.fill_random("uniform", dtype, N, low, high)
    low, high = torch.tensor([low, high], dtype=dtype)
    assert (values >= low).all()
    assert (values < high).all() or low == high
    assert abs(values.double().mean() - (low.double() + high.double()) / 2) < max(0.005, torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("p", [0.03, 0.3, 0.9, 1.0])
def test_geometric(dtype, p):
    counts = kernels.fill_random("geometric", dtype, N, p).double().numpy()
    assert counts.min() == 1
    if p == 1.0:
        assert counts.max() == 1
        return
    values = np.arange(1, 8)
    observed = np.append([(counts == v).sum() for v in values], (counts > 7).sum())
    expected = np.append(stats.geom.pmf(values, p), stats.geom.sf(7, p)) * N
    assert stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize("dtype", FLOATS)
def test_exponential_is_never_zero(dtype):
    assert (kernels.fill_random("exponential", dtype, 1 << 22, 1) > 0).all()


@pytest.mark.parametrize("p", [0, 1e-4, 0.3, 0.5, 0.999, 1])
def test_bernoulli(p):
    ones = int(kernels.fill_random("bernoulli", torch.bool, N, p).sum())
    assert abs(ones - p * N) <= 4.5 * (p * (1 - p) * N) ** 0.5


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("out", [torch.bool, torch.float32, torch.int64])
def test_bernoulli_of_a_tensor(dtype, out):
    p = torch.tensor([0.0, 0.25, 0.5, 1.0]).repeat(N // 4 + 1)[: N + 3].to(dtype)
    got = kernels.bernoulli(out, p).double()
    for i, probability in enumerate([0.0, 0.25, 0.5, 1.0]):
        share = got[i::4]
        assert abs(share.mean() - probability) <= 4.5 * (probability * (1 - probability) / share.numel()) ** 0.5


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32, torch.float16])
def test_integers_are_uniform(dtype):
    values = kernels.random_integers(dtype, N, 10, 110).long() - 10
    assert stats.chisquare(torch.bincount(values, minlength=100).numpy()).pvalue > 1e-3


def test_neighbours_seeds_and_offsets_are_independent():
    samples = {
        (s, o): kernels.fill_random("normal", torch.float32, N, 0, 1, s, o) for s in (0, 1, 2) for o in (0, 1, 4)
    }
    matrix = np.corrcoef(torch.stack(list(samples.values())).numpy())
    assert np.abs(matrix - np.eye(len(samples))).max() < 5 / N**0.5
    z = samples[0, 0].double().numpy()
    for lag in (1, 2, 4, 8, 16, 32, 48, 64, 128, 1024):
        assert abs(np.corrcoef(z[:-lag], z[lag:])[0, 1]) < 5 / N**0.5
        assert abs(np.corrcoef(z[:-lag] ** 2, z[lag:] ** 2)[0, 1]) < 5 / N**0.5


# ---- Dropout ----


def unpacked(mask: torch.Tensor, n: int) -> torch.Tensor:
    return torch.from_numpy(np.unpackbits(mask.numpy(), bitorder="little")[:n]).bool()


@pytest.mark.parametrize("n", [1, 7, 64, 100, 4099])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.75, 1.0])
def test_dropout_mask_is_the_reference(isa, n, p):
    mask = kernels.dropout_mask(n, p, SEED, OFFSET)
    kept = (draws32(n) >> np.uint64(1)) < round((1 - p) * 2**31)
    assert np.array_equal(unpacked(mask, n).numpy(), kept)
    assert not unpacked(mask, 8 * mask.numel())[n:].any()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 64, 100, 4099])
@pytest.mark.parametrize("p", [0.0, 0.1, 1.0])
def test_dropout(isa, dtype, n, p):
    x = torch.randn(n, generator=torch.Generator().manual_seed(0)).to(dtype)
    out, mask = kernels.dropout(x, p)
    assert torch.equal(mask, kernels.dropout_mask(n, p))
    assert torch.equal(out, kernels.dropout_apply(x, mask, p))
    scale = 1 / (1 - p) if p < 1 else 0.0
    torch.testing.assert_close(out, x * unpacked(mask, n) * scale)


def test_dropout_shows_infinity_and_nan():
    x = torch.tensor([float("inf"), float("nan"), -0.0, 1.0]).repeat(100)
    out, mask = kernels.dropout(x, 0.5)
    want = x * unpacked(mask, 400) * 2
    assert torch.equal(out.isnan(), want.isnan())
    assert torch.equal(out.nan_to_num(7.0), want.nan_to_num(7.0))


# ---- Permutations ----


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("n", [0, 1, 2, 1000, 16_383, 16_384, 40_000, 1_000_003])
def test_permutation_has_each_number_once(dtype, n):
    permutation = kernels.random_permutation(n, dtype)
    assert torch.equal(permutation.sort().values, torch.arange(n, dtype=dtype))
    assert n < 3 or not torch.equal(permutation, kernels.random_permutation(n, dtype, offset=1))


def test_small_permutations_are_equally_likely():
    codes = [int("".join(map(str, kernels.random_permutation(4, offset=o).tolist()))) for o in range(24_000)]
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3


def test_large_permutations_are_uniform():
    n = 1 << 20
    permutation = kernels.random_permutation(n).numpy()
    cells = np.histogram2d(np.arange(n), permutation, bins=32)[0]
    assert stats.chisquare(cells.reshape(-1)).pvalue > 1e-3
    assert abs(np.corrcoef(permutation[:-1], permutation[1:])[0, 1]) < 5 / n**0.5
    fixed_points = (permutation == np.arange(n)).sum()
    assert fixed_points < 10  # Poisson of mean 1


# ---- Refusals ----


def test_unsupported_types_are_refused():
    assert kernels.fill_random("normal", torch.int32, 10, 0, 1) is None
    assert kernels.fill_random("geometric", torch.bool, 10, 0.5) is None
