"""Decompositions, solvers and other operators that only clients of CANN other than the adapter call, against ATen."""

from __future__ import annotations

import ctypes as c

import operator_client
import pytest
import torch
import torch.nn.functional as F
from operator_client import call
from tolerance import assert_close

from opspec.table import aclnn_ops


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def matrix(*sizes: int) -> torch.Tensor:
    """Well conditioned."""
    return torch.randn(*sizes, sizes[-1]) + 5 * torch.eye(sizes[-1])


@pytest.mark.parametrize("batch", [(), (2,)])
def test_decompositions(batch: tuple[int, ...]) -> None:
    x = matrix(*batch, 5)
    inverse, sign, log = torch.empty_like(x), torch.empty(batch), torch.empty(batch)
    call("Inverse", x, inverse)
    assert_close(inverse, torch.linalg.inv(x.double()), terms=25)
    call("Slogdet", x, sign, log)
    assert_close(log, torch.linalg.slogdet(x.double())[1], terms=25)
    spd = x @ x.mT
    lower = torch.empty_like(x)
    call("LinalgCholesky", spd, False, lower)
    assert_close(lower @ lower.mT, spd, terms=25)
    q, r = torch.empty_like(x), torch.empty_like(x)
    call("LinalgQr", x, 0, q, r)
    assert_close(q @ r, x, terms=25)
    u, s, v = torch.empty_like(x), torch.empty(*batch, 5), torch.empty_like(x)
    call("Svd", x, False, True, s, u, v)
    assert_close(u @ torch.diag_embed(s) @ v.mT, x, terms=100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
def test_triangular_solve(upper: bool, transpose: bool, dtype: torch.dtype) -> None:
    a, b = matrix(4).to(dtype), torch.randn(4, 3).to(dtype)
    x, read = torch.empty_like(b), torch.empty_like(a)
    call("TriangularSolve", b, a, upper, transpose, False, x, read)
    triangle = a.double().triu() if upper else a.double().tril()
    assert_close(x, torch.linalg.solve(triangle.mT if transpose else triangle, b.double()), terms=16)


def test_affine_grid() -> None:
    theta, out = torch.randn(2, 2, 3), torch.empty(2, 4, 5, 2)
    call("AffineGrid", theta, [2, 3, 4, 5], True, out)
    assert_close(out, F.affine_grid(theta, [2, 3, 4, 5], align_corners=True), terms=3)


def test_gradient_of_repetition() -> None:
    grad, repeats, out = torch.randn(2, 6), torch.tensor([1, 0, 3, 2]), torch.empty(2, 4)
    call("RepeatInterleaveGrad", grad, repeats, 1, out)
    x = torch.randn(2, 4, requires_grad=True)
    x.repeat_interleave(repeats, 1).backward(grad)
    assert_close(out, x.grad, terms=3)


@pytest.mark.parametrize(("mode", "number"), [("sum", 0), ("mean", 1), ("max", 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_embedding_bag(mode: str, number: int, dtype: torch.dtype) -> None:
    weight, indices, offsets = torch.randn(7, 3).to(dtype), torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 2, 2])
    out, bags, sizes, largest = torch.empty(3, 3, dtype=dtype), *(torch.empty(n, dtype=torch.long) for n in (6, 3, 3))
    call("EmbeddingBag", weight, indices, offsets, False, number, False, None, False, -1, out, bags, sizes, largest)
    assert_close(out, F.embedding_bag(indices, weight.double(), offsets, mode=mode), terms=4)


def test_fake_quantization() -> None:
    x, scale, zero = torch.randn(3, 4) * 2, torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32)
    out, mask = torch.empty_like(x), torch.empty(3, 4, dtype=torch.bool)
    call("FakeQuantPerTensorAffineCachemask", x, scale, zero, 1.0, -8, 7, out, mask)
    assert_close(out, torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7))
    assert torch.equal(mask, ((x / 0.1).round() + 3).clamp(-8, 7) == (x / 0.1).round() + 3)
    call("FakeQuantPerTensorAffineCachemask", x, scale, zero, 0.0, -8, 7, out, mask)
    assert torch.equal(out, x)
    scales, zeros = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.zeros(4, dtype=torch.int32)
    call("FakeQuantPerChannelAffineCachemask", x, scales, zeros, 1, -8, 7, out, mask)
    assert_close(out, torch.fake_quantize_per_channel_affine(x, scales, zeros, 1, -8, 7))


def test_random_leaky_relu() -> None:
    x = torch.randn(1000)
    noise, out = torch.empty_like(x), torch.empty_like(x)
    call("RReluWithNoise", x, noise, 0.1, 0.3, True, 5, 0, out)
    assert torch.equal(noise[x > 0], torch.ones_like(noise[x > 0]))
    assert noise[x <= 0].min() >= 0.1
    assert noise[x <= 0].max() < 0.3
    assert noise[x <= 0].unique().numel() > 100
    assert torch.equal(out, x * noise)
    call("RReluWithNoise", x, noise, 0.1, 0.3, False, 5, 0, out)
    assert_close(out, F.leaky_relu(x, 0.2))


@pytest.mark.parametrize("nesterov", [False, True])
def test_adam(nesterov: bool) -> None:
    w, m, v, g = torch.randn(5), torch.randn(5), torch.rand(5), torch.randn(5)
    lr, b1, b2, eps, step = 0.01, 0.9, 0.99, 1e-6, 3
    m1, v1 = (m.double() * b1 + g * (1 - b1)), (v.double() * b2 + g.double() ** 2 * (1 - b2))
    direction = m1 * b1 + g * (1 - b1) if nesterov else m1
    expected = w.double() - lr * (1 - b2**step) ** 0.5 / (1 - b1**step) * direction / (v1.sqrt() + eps)
    numbers = [torch.tensor([value]) for value in (b1**step, b2**step, lr, b1, b2, eps)]
    call("ApplyAdam", w, m, v, *numbers, g, False, nesterov)
    for actual, wanted in ((w, expected), (m, m1), (v, v1)):
        assert_close(actual, wanted, terms=4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    x, y = torch.randn(6, 4).to(dtype), torch.rand(6, 4).to(dtype)
    out = torch.empty(6, 4, dtype=dtype)
    call("BinaryCrossEntropyWithLogits", x, y, None, None, 0, out)
    assert torch.equal(out, F.binary_cross_entropy_with_logits(x.float(), y.float(), reduction="none").to(dtype))
    distances = torch.empty(6, 6, dtype=dtype)
    call("Cdist", x, y, 2.0, 0, distances)
    assert_close(distances, torch.cdist(x.double(), y.double()))


@pytest.mark.parametrize("size", [0, 6])
def test_log_sigmoid_with_and_without_buffer(size: int) -> None:
    x, grad = torch.randn(6, requires_grad=True), torch.randn(6)
    out, buffer, gradient = torch.empty(6), torch.empty(size), torch.empty(6)
    call("LogSigmoidForward", x.detach(), out, buffer)
    call("LogSigmoidBackward", grad, x.detach(), buffer, gradient)
    expected = F.logsigmoid(x)
    assert_close(out, expected.detach())
    expected.backward(grad)
    assert_close(gradient, x.grad)


def test_sign_of_complex_numbers() -> None:
    x = torch.tensor([3 + 4j, 0, -2j, -5])
    out = torch.empty_like(x)
    call("Sign", x, out)
    assert_close(out, torch.sgn(x))


def test_division_of_integers_in_place_is_cast_back() -> None:
    x = torch.arange(1, 101, dtype=torch.int32)
    for mode, name in ((1, "trunc"), (2, "floor")):
        y = x.clone()
        call("InplaceDivMods", y, 15.9, mode)
        assert torch.equal(y, torch.div(x, 15.9, rounding_mode=name).int())


def test_float16_convolutions_are_rounded_once() -> None:
    x, w, grad = torch.randn(2, 8, 6, 6).half(), torch.randn(8, 8, 3, 3).half(), torch.randn(2, 8, 6, 6).half()
    out = torch.empty(2, 8, 6, 6, dtype=torch.float16)
    call("Convolution", x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, out, 0)
    assert torch.equal(out, F.conv2d(x.float(), w.float(), padding=1).half())
    dw = torch.empty_like(w)
    reference = torch.ops.aten.convolution_backward(
        grad.float(), x.float(), w.float(), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]
    )[1]
    operator = aclnn_ops()["ConvolutionBackward"]
    assert operator.params[-2].name == "gradWeight"
    call_backward(grad, x, w, dw)
    assert torch.equal(dw, reference.half())


def call_backward(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, dw: torch.Tensor) -> None:
    """aclnnConvolutionBackward for the weight alone, whose mask is an array of bools."""
    library = operator_client._library
    t, i = operator_client._tensor, operator_client._int64s
    pairs = {name: c.c_void_p(library.aclCreateIntArray(i(v), c.c_uint64(2))) for name, v in
             (("ones", [1, 1]), ("zeros", [0, 0]))}  # fmt: skip
    mask = c.c_void_p(library.aclCreateBoolArray((c.c_bool * 3)(False, True, False), c.c_uint64(3)))
    size, executor = c.c_uint64(), c.c_void_p()
    ones, zeros = pairs["ones"], pairs["zeros"]
    code = library.aclnnConvolutionBackwardGetWorkspaceSize(
        t(grad), t(x), t(w), None, ones, ones, ones, c.c_bool(False), zeros, c.c_int64(1), mask, c.c_int8(0),
        None, t(dw), None, c.byref(size), c.byref(executor),
    )  # fmt: skip
    assert (code or library.aclnnConvolutionBackward(None, size, executor, None)) == 0


def test_captured_graphs_ask_for_the_largest_workspace() -> None:
    library = operator_client._library
    for op in aclnn_ops().values():
        assert hasattr(library, f"{op.symbol}GetMaxWorkspaceSize") == op.max_workspace
    assert sum(op.max_workspace for op in aclnn_ops().values()) >= 2


@pytest.mark.parametrize("layout", ["BNSD", "TND"])
def test_later_forms_of_attention_are_the_same_function(layout: str) -> None:
    """FlashAttentionScoreV4 and its gradient take what the forms for one layout take."""
    lengths = [3, 7]  # where each sequence ends
    q, k, v, dy = (torch.randn(7, 2, 16) if layout == "TND" else torch.randn(1, 2, 7, 16) for _ in range(4))
    sums = (7, 2, 8) if layout == "TND" else (1, 2, 7, 8)

    def forward(op: str, *between: object) -> list[torch.Tensor]:
        largest, total, out = torch.empty(sums), torch.empty(sums), torch.empty_like(q)
        call(op, q, k, v, None, None, None, None, *between, largest, total, None, out)
        return [largest, total, out]

    ends = (lengths, lengths) if layout == "TND" else (None, None)
    common = (0.25, 1.0, 65536, 65536, 2, layout, 0, 0)
    new = forward("FlashAttentionScoreV4", *[None] * 7, *ends, None, None, *common, 0, 1, "", 0, 0)
    if layout == "TND":
        old = forward("FlashAttentionVarLenScore", None, *ends, *common)
    else:
        old = forward("FlashAttentionScore", None, *common)
    for actual, expected in zip(new, old, strict=True):
        assert torch.equal(actual, expected)
    scores = torch.einsum("tnd,snd->nts", q, k) if layout == "TND" else (q @ k.mT)[0]
    if layout == "TND":
        same = torch.arange(7)[:, None].lt(3) == torch.arange(7).lt(3)
        scores = scores.masked_fill(~same, float("-inf"))
    weights = (scores.double() * 0.25).softmax(-1)
    reference = torch.einsum("nts,snd->tnd", weights, v.double()) if layout == "TND" else weights @ v[0].double()
    assert_close(new[2].view(reference.shape), reference, terms=16)

    def backward(op: str, before: tuple[object, ...], *after: object) -> list[torch.Tensor]:
        gradients = [torch.empty_like(q) for _ in range(3)]
        given = (None, None, None, None, new[0], new[1], None, new[2])
        if op == "FlashAttentionScoreGradV4":
            call(op, q, k, v, dy, *given, *before, *gradients, *after)
        else:
            call(op, q, k, v, dy, *given, *before, *gradients, None)
        return gradients

    plain = (0.25, 1.0, 65536, 65536, 2, layout)
    newer = backward(
        "FlashAttentionScoreGradV4",
        (*[None] * 9, *ends, None, None, *plain, "", 0, 0, 1, 0, 0, 0),
        *[None] * 4,
    )
    if layout == "TND":
        older = backward("FlashAttentionUnpaddingScoreGrad", (None, *ends, *common))
    else:
        older = backward("FlashAttentionScoreGrad", (None, *common))
    for actual, expected in zip(newer, older, strict=True):
        assert torch.equal(actual, expected)
