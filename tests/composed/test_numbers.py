"""Normalization, losses, optimizers and quantization of torch_npu/composed against float64."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])


def float64(x: torch.Tensor) -> np.ndarray:
    return x.detach().cpu().double().numpy()


@DEVICES
@DTYPES
@pytest.mark.parametrize("kind", [0, 1])
def test_normalize_batch(device, dtype, kind):
    x, lengths = torch.randn(4, 3, 17).to(dtype), torch.tensor([17, 5, 2, 11], dtype=torch.int32)
    expected = np.empty(x.shape)
    for i, n in enumerate(lengths.tolist()):
        part = float64(x)[i, :, :n]
        axis = (1,) if kind == 0 else (0, 1)
        mean, std = part.mean(axis, keepdims=True), part.std(axis, ddof=1, keepdims=True)
        expected[i] = (float64(x)[i] - mean) / (std + 1e-5)
    y = torch_npu.npu_normalize_batch(x.to(device), lengths.to(device), kind)
    assert y.dtype == dtype
    assert_close(y, torch.from_numpy(expected), terms=17)


@DEVICES
@DTYPES
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 7), (0, 3, 2), (3, 4, 5, 7)])
def test_batch_norm_reduce(device, dtype, shape):
    x = torch.randn(shape).to(dtype)
    axis = (0, *range(2, len(shape)))
    total, squares = torch_npu.batch_norm_reduce(x.to(device), 1e-5)
    assert total.dtype == squares.dtype == torch.float32
    assert_close(total, torch.from_numpy(float64(x).sum(axis)), terms=105)
    assert_close(squares, torch.from_numpy(np.square(float64(x)).sum(axis)), terms=105)


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("tracks", [False, True])
def test_batch_norm_of_ranks_is_that_of_the_whole_batch(device, dtype, tracks):
    x = torch.randn(9, 5, 4) + 1
    parts = x.split([2, 4, 3])
    sums = [torch_npu.batch_norm_reduce(part, 0) for part in parts]
    total, squares = (torch.stack(s).to(dtype).to(device) for s in zip(*sums, strict=True))
    counts = torch.tensor([part.numel() // 5 for part in parts], dtype=dtype, device=device)
    running = [torch.rand(5).to(dtype).to(device) for _ in range(2)] if tracks else [None, None]
    before = [r.clone() if r is not None else r for r in running]
    mean, invstd = torch_npu.batch_norm_gather_stats_update(x.to(device), total, squares, *running, 0.1, 1e-3, counts)
    assert mean.dtype == invstd.dtype == dtype
    count = x.numel() // 5
    expected = float64(total).sum(0) / count
    variance = float64(squares).sum(0) / count - expected**2
    assert_close(mean, torch.from_numpy(expected), terms=9)
    assert_close(invstd, torch.from_numpy(1 / np.sqrt(variance + 1e-3)), terms=9)
    if tracks:
        for after, old, value in zip(running, before, (expected, variance), strict=True):
            assert_close(after, torch.from_numpy(0.1 * value + 0.9 * float64(old)), terms=9)


@DEVICES
@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2, 3, float("inf")])
@pytest.mark.parametrize(("shape", "dim"), [((5, 7), 0), ((5, 7), -1), ((3, 4, 5), 1)])
@pytest.mark.parametrize("maxnorm", [0.7, 1e6])
def test_renorm_backward(device, p, shape, dim, maxnorm):
    x, grad = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    x.view(-1)[3] = 0
    reference = x.clone().requires_grad_()
    torch.renorm(reference, p, dim, maxnorm).backward(grad)
    y = torch_npu.npu_renorm_backward(grad.to(device), x.to(device), p, dim, maxnorm)
    torch.testing.assert_close(y.cpu(), reference.grad, rtol=1e-8, atol=1e-10)


@DEVICES
def test_renorm_backward_of_zeros(device):
    x, grad = torch.zeros(3, 4, device=device), torch.ones(3, 4, device=device)
    assert torch.equal(torch_npu.npu_renorm_backward(grad, x, 2, 0, 1), grad)
    half = torch_npu.npu_renorm_backward(grad.half(), x.half() + 1, 2, 0, 1)
    assert half.dtype == torch.float16


@DEVICES
@DTYPES
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (7, 13)])
def test_softmax_cross_entropy(device, dtype, shape):
    x, labels = torch.randn(shape).to(dtype), torch.rand(shape).to(dtype)
    exponent = np.exp(float64(x) - float64(x).max(1, keepdims=True, initial=-1e30))
    softmax = exponent / exponent.sum(1, keepdims=True)
    y = torch_npu.npu_softmax_cross_entropy_with_logits(x.to(device), labels.to(device))
    assert y.dtype == dtype
    assert_close(y, torch.from_numpy(-(float64(labels) * np.log(softmax)).sum(1)), terms=13)
    grad = torch.randn(shape[0]).to(dtype)
    backward = torch_npu.npu_softmax_cross_entropy_with_logits_backward(
        *(t.to(device) for t in (grad, x, labels)),
    )
    slope = softmax * float64(labels).sum(1, keepdims=True) - float64(labels)
    assert_close(backward, torch.from_numpy(float64(grad)[:, None] * slope), terms=13)


@DEVICES
def test_gradient_of_softmax_cross_entropy(device):
    x = torch.randn(3, 5, dtype=torch.float64, device=device, requires_grad=True)
    labels = torch.rand(3, 5, dtype=torch.float64, device=device)
    assert torch.autograd.gradcheck(lambda x: torch_npu.npu_softmax_cross_entropy_with_logits(x, labels), (x,))


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("nesterov", [False, True, None])
def test_apply_adam(device, dtype, nesterov):
    var, m, grad = (torch.randn(3, 7).to(dtype) for _ in range(3))
    v = torch.rand(3, 7).to(dtype)
    b1, b2, lr, eps, p1, p2 = 0.9, 0.99, 0.1, 1e-4, 0.9**3, 0.99**3
    g, mean = float64(grad), b1 * float64(m) + (1 - b1) * float64(grad)
    square = b2 * float64(v) + (1 - b2) * g**2
    towards = mean * b1 + (1 - b1) * g if nesterov else mean
    step = lr * np.sqrt(1 - p2) / (1 - p1) * towards / (np.sqrt(square) + eps)
    out = tuple(t.clone().to(device) for t in (var, m, v))
    result = torch_npu.npu_apply_adam(p1, p2, lr, b1, b2, eps, grad.to(device), False, nesterov, out=out)
    for actual, written, expected in zip(result, out, (float64(var) - step, mean, square), strict=True):
        assert actual is written
        assert_close(actual, torch.from_numpy(expected), terms=4)


@DEVICES
def test_apply_adam_with_powers_of_one(device):
    """The correction of the bias then is 0 / 0."""
    out = tuple(torch.ones(2, device=device) for _ in range(3))
    var, m, _ = torch_npu.npu_apply_adam(1, 1, 0.1, 0.9, 0.9, 1e-4, torch.ones(2, device=device), False, False, out=out)
    assert var.isnan().all()
    assert (m == 1).all()


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_gradients_that_are_not_finite(device, dtype):
    grads = [torch.randn(n, device=device).to(dtype) for n in (0, 3, 5)]
    assert torch.ops.npu._amp_foreach_non_finite_check(grads) is False
    assert torch.ops.npu._amp_foreach_non_finite_check([]) is False
    for value in (torch.inf, -torch.inf, torch.nan):
        grads[2][4] = value
        assert torch.ops.npu._amp_foreach_non_finite_check(grads) is True


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("max_norm", "norm"), [(-1.0, 0.0), (2.0, 5.0), (5.0, 2.0)])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("step_size", [None, 0.03])
def test_bert_apply_adam(device, dtype, max_norm, norm, mode, step_size):
    var, m, grad = (torch.randn(5, 3).to(dtype) for _ in range(3))
    v = torch.rand(5, 3).to(dtype)
    b1, b2, lr, eps, decay = 0.9, 0.99, 0.1, 1e-4, 0.02
    g = float64(grad) * (max_norm / norm if mode == 0 and 0 < max_norm < norm else 1)
    mean, square = b1 * float64(m) + (1 - b1) * g, b2 * float64(v) + (1 - b2) * g**2
    step = step_size if mode == 1 and step_size is not None else lr
    weight = float64(var) - step * mean / (np.sqrt(square) + eps) - lr * decay * float64(var)
    out = tuple(t.clone().to(device) for t in (var, m, v))
    result = torch_npu.npu_bert_apply_adam(
        lr, b1, b2, eps, grad.to(device), max_norm, norm, decay, step_size, mode, out=out
    )
    for actual, written, expected in zip(result, out, (weight, mean, square), strict=True):
        assert actual is written
        assert_close(actual, torch.from_numpy(expected), terms=4)


@DEVICES
@pytest.mark.parametrize("with_offset", [False, True])
@pytest.mark.parametrize("shift", [0.0, 3.0, -3.0])
def test_ifmr(device, with_offset, shift):
    """Against a search in NumPy, in float32 as the operator, since the best of the scales is an exact choice."""
    rng = np.random.default_rng(7)
    x = (rng.uniform(-1, 1, (5, 7, 3)) + shift).astype(np.float32)
    counts, _ = np.histogram(x, 128)
    cumsum = counts.cumsum().astype(np.int32)
    share = cumsum.astype(np.float32) / np.float32(x.size)
    percentile = np.float32(0.999999)
    low, high = x.min(), x.max()
    highest = np.float32((share < percentile).sum()) / 128 * (high - low) + low
    lowest = np.float32((share < np.float32(1 - 0.999999)).sum()) / 128 * (high - low) + low
    steps = np.arange(0.7, 1.3, 0.01, dtype=np.float32)
    if with_offset:
        lowest = np.minimum(lowest, np.float32(0))
        scales = (np.maximum(highest, np.float32(0)) * steps - lowest) / np.float32(255)
        scales = np.where(scales < np.finfo(np.float32).eps, np.float32(1), scales)
        offsets = -(np.round(lowest / scales) + 128)
    else:
        scales = np.maximum(abs(highest), abs(lowest)) * steps / np.float32(127)
        offsets = np.zeros_like(scales)
    losses = []
    for scale, offset in zip(scales, offsets, strict=True):
        near = np.clip(np.round(x / scale) + offset, -128, 127)
        losses.append(np.square((near - offset) * scale - x).sum())
    inputs = [torch.from_numpy(a).to(device) for a in (x, low.reshape(1), high.reshape(1), cumsum)]
    scale, offset = torch_npu.npu_ifmr(*inputs, 0.999999, 0.999999, 0.7, 1.3, 0.01, with_offset)
    best = int(np.argmin(losses))
    assert scale.shape == offset.shape == (1,)
    assert_close(scale, torch.tensor([scales[best]]), terms=4)
    assert offset.item() == offsets[best]


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("clip_ratio", [None, 0.75])
def test_kronecker_quant(device, dtype, clip_ratio):
    x, left, right = (torch.randn(*s).to(dtype) for s in ((3, 4, 16), (4, 4), (16, 16)))
    x[2] = 0
    given = [t.to(device) for t in (x, left, right)]
    packed, scale = torch_npu.npu_kronecker_quant(*given, clip_ratio)
    turned = left.double() @ x.double() @ right.double()
    assert_close(scale, turned.abs().amax((1, 2)) / (7 * (clip_ratio or 1)), rtol=1e-5)
    assert packed.dtype == torch.int32
    assert packed.shape == (3, 4, 2)
    numbers = torch.stack([(packed.cpu() >> (4 * i)) & 15 for i in range(8)], -1).flatten(-2)
    numbers = torch.where(numbers > 7, numbers - 16, numbers)
    expected = (turned / scale.cpu().double().clamp_min(1e-30)[:, None, None]).clamp(-8, 7)
    assert ((numbers - expected).abs() <= 0.5 + 1e-3).all()


@DEVICES
def test_exponential_distribution(device):
    x = torch.empty(20000, device=device)
    generator = torch.Generator(device).manual_seed(3)
    assert torch_npu.npu_sim_exponential_(x, 4.0, generator=generator) is x
    assert x.min() >= 0
    assert abs(x.mean().item() - 0.25) < 0.01
    again = torch_npu.npu_sim_exponential_(torch.empty_like(x), 4.0, generator=generator.manual_seed(3))
    assert torch.equal(again, x)


X = torch.zeros(2, 3)
REFUSED = {
    "kronecker": (lambda: torch_npu.npu_kronecker_quant(X[None], X, X), "N a multiple of 8"),
    "kronecker ratio": (
        lambda: torch_npu.npu_kronecker_quant(X.new_zeros(1, 2, 8), X[:, :2], X.new_zeros(8, 8), 2.0),
        "1 at most",
    ),
    "exponential": (lambda: torch_npu.npu_sim_exponential_(X, 0.0), "a positive lambd, got 0.0"),
    "normalize": (lambda: torch_npu.npu_normalize_batch(X, X[:, 0]), r"self \[N, C, T\]"),
    "normalize kind": (lambda: torch_npu.npu_normalize_batch(X.view(2, 3, 1), X[:, 0], 2), "0 or 1, got 2"),
    "reduce": (lambda: torch_npu.batch_norm_reduce(X[0], 0.1), "at least 2 dimensions"),
    "gather": (
        lambda: torch_npu.batch_norm_gather_stats_update(X, X[0], X[0], None, None, 0.1, 0.1, X[0]),
        r"\[ranks, C\]",
    ),
    "renorm": (lambda: torch_npu.npu_renorm_backward(X, X[:1], 2, 0, 1), "grad and self of one shape"),
    "renorm p": (lambda: torch_npu.npu_renorm_backward(X, X, -1, 0, 1), r">= 0, got \[-1"),
    "loss": (
        lambda: torch_npu.npu_softmax_cross_entropy_with_logits(X, X[0]),
        r"\[N, C\], got \[\[2, 3\], \[3\]\]",
    ),
    "adam": (
        lambda: torch_npu.npu_apply_adam(*[0.5] * 6, X, False, False, out=(X, X, X.half())),
        "one shape and dtype",
    ),
    "bert": (lambda: torch_npu.npu_bert_apply_adam(*[0.5] * 4, X, *[0.5] * 3, None, 2, out=(X, X, X)), "0 or 1, got 2"),
    "ifmr": (lambda: torch_npu.npu_ifmr(X, X[0, :1], X[0, :1], X[0], 0.9, 0.9, 1.0, 0.5, 0.1, True), "search_end >"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()
