"""Neural-network operators on npu against the CPU: values, gradients, strides, and that they did not fall back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from against_cpu import rounding
from tolerance import assert_close, assert_no_worse

import torch_npu
from opspec.table import aten_rows

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


FAMILIES = {
    "activation", "attention", "conv", "foreach", "loss", "matmul", "norm", "optim", "pad", "pool", "rnn",
    "softmax", "upsample",
}  # fmt: skip
NATIVE = {f"aten::{row.aten.split('.')[0].rstrip('_')}" for row in aten_rows() if row.family in FAMILIES}


@pytest.fixture(autouse=True)
def native_kernels_are_used():
    """What has a row in the op table did not run on the CPU instead."""
    torch_npu.clear_fallback_report()
    yield
    fell_back = {entry.op for entry in torch_npu.fallback_report()}
    assert not {op for op in fell_back if op.split(".")[0].rstrip("_") in NATIVE}


def to_npu(value: Any) -> Any:
    """The same argument on npu, with the same strides."""
    if isinstance(value, torch.Tensor):
        moved = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="npu")
        moved.copy_(value.detach())
        return moved.requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(to_npu(v) for v in value)
    if isinstance(value, dict):
        return {k: to_npu(v) for k, v in value.items()}
    return value


def tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors_of(v)]
    return []


def assert_same(npu: Any, cpu: Any, what: str, exact: bool = True, reference: Callable[[], Any] | None = None) -> None:
    """Values of 16 bits that differ are judged by the reference in float64: each side rounds in its own places."""
    for i, (n, c) in enumerate(zip(tensors_of(npu), tensors_of(cpu), strict=True)):
        assert (n.device.type, n.dtype, n.shape) == ("npu", c.dtype, c.shape), what
        tolerance = rounding(c.dtype) if exact else {}
        n, c = n.detach(), c.detach()
        try:
            torch.testing.assert_close(n.cpu(), c, equal_nan=True, msg=lambda m: f"{what}: {m}", **tolerance)
        except AssertionError:
            if reference is None or c.dtype not in (torch.float16, torch.bfloat16):
                raise
            assert_no_worse(n.cpu(), c, tensors_of(reference())[i].detach())
        wide = [i for i, size in enumerate(c.shape) if size > 1]
        assert [n.stride(i) for i in wide] == [c.stride(i) for i in wide], f"{what}: strides {n.stride()}, {c.stride()}"


def in_float64(value: Any) -> Any:
    """The same argument in float64."""
    if isinstance(value, torch.Tensor):
        return value.detach().double().requires_grad_(value.requires_grad) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(in_float64(v) for v in value)
    if isinstance(value, dict):
        return {k: in_float64(v) for k, v in value.items()}
    return value


def wanting_gradient(args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    return [t for t in tensors_of([*args, *kwargs.values()]) if t.requires_grad]


def gradients(outputs: Any, inputs: list[torch.Tensor], seeds: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad([o for o in tensors_of(outputs) if o.requires_grad], inputs, seeds)


def check(f: Callable, *args: Any, exact: bool = True, **kwargs: Any) -> None:
    """Runs f on both devices, forward and, where an input wants a gradient, backward."""
    moved, moved_kwargs = to_npu(args), to_npu(kwargs)
    wide, wide_kwargs = in_float64(args), in_float64(kwargs)
    on_cpu = f(*args, **kwargs)
    on_npu = f(*moved, **moved_kwargs)
    assert_same(on_npu, on_cpu, "result", exact, lambda: f(*wide, **wide_kwargs))
    inputs = wanting_gradient(args, kwargs)
    if not inputs:
        return
    seeds = [torch.randn(c.shape).to(c.dtype) for c in tensors_of(on_cpu) if c.requires_grad]
    grads = gradients(on_cpu, inputs, seeds)
    npu_grads = gradients(on_npu, wanting_gradient(moved, moved_kwargs), to_npu(seeds))

    def reference() -> Any:
        return gradients(f(*wide, **wide_kwargs), wanting_gradient(wide, wide_kwargs), in_float64(seeds))

    assert_same(npu_grads, grads, "gradient", exact, reference)


def rand(*sizes: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> torch.Tensor:
    return torch.randn(sizes).to(dtype).requires_grad_(grad)


def last(t: torch.Tensor) -> torch.Tensor:
    """The tensor with channels last."""
    format = torch.channels_last if t.dim() == 4 else torch.channels_last_3d
    return t.detach().to(memory_format=format).requires_grad_(t.requires_grad)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 7, 0])
def test_matmul(dtype: torch.dtype, rows: int) -> None:
    # Products of small matrices sum in an order of their own.
    r = lambda *s: rand(*s, dtype=dtype)  # noqa: E731
    check(torch.mm, r(rows, 5), r(5, 3), exact=False)
    check(torch.mm, r(5, rows).t(), r(3, 5).t(), exact=False)
    check(torch.bmm, r(2, rows, 5), r(2, 5, 3), exact=False)
    check(torch.matmul, r(2, 4, rows, 5), r(5, 3), exact=False)
    check(torch.addmm, r(3), r(rows, 5), r(5, 3), exact=False)
    check(lambda a, b, c: torch.addmm(a, b, c, beta=0.5, alpha=2), r(rows, 3), r(rows, 5), r(5, 3))
    check(torch.baddbmm, r(2, rows, 3), r(2, rows, 5), r(2, 5, 3))
    check(torch.mv, r(rows, 5), r(5))
    check(torch.addmv, r(rows), r(rows, 5), r(5))
    check(torch.dot, r(rows), r(rows))
    check(torch.addbmm, r(rows, 3), r(2, rows, 5), r(2, 5, 3))
    check(torch.addr, r(rows, 3), r(rows), r(3))
    check(F.linear, r(2, rows, 5), r(3, 5), r(3), exact=False)


@pytest.mark.parametrize("inner", [1, 37, 700])
@pytest.mark.parametrize("transposed", [False, True])
def test_float16_products_round_once(inner: int, transposed: bool) -> None:
    def half(*shape: int) -> torch.Tensor:
        tensor = torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))).half()
        return tensor.mT.contiguous().mT if transposed and len(shape) > 1 else tensor

    a, b, a3, b3, bias, c = (
        half(65, inner),
        half(inner, 33),
        half(2, 65, inner),
        half(2, inner, 33),
        half(33),
        half(65, 33),
    )
    products: list[Callable[..., torch.Tensor]] = [
        lambda t: t(a) @ t(b),
        lambda t: t(a3) @ t(b),
        lambda t: torch.bmm(t(a3), t(b3)),
        lambda t: torch.addmm(t(bias), t(a), t(b), beta=0.5, alpha=2),
        lambda t: t(c.clone()).addmm_(t(a), t(b)),
        lambda t: torch.baddbmm(t(bias), t(a3), t(b3)),
        lambda t: torch.addbmm(t(c), t(a3), t(b3)),
        lambda t: F.linear(t(a3), t(b).mT, t(bias)),
    ]
    for product in products:
        assert_close(product(lambda x: x.npu()), product(lambda x: x.double()))


def test_matmul_out_and_inplace() -> None:
    a, b, c = (rand(4, 4, grad=False) for _ in range(3))
    na, nb, nc = to_npu((a, b, c))
    out = torch.empty(0, device="npu")
    assert torch.mm(na, nb, out=out) is out
    assert_same(out, torch.mm(a, b), "mm.out")
    assert_same(nc.addmm_(na, nb, beta=2), c.addmm_(a, b, beta=2), "addmm_")
    assert_same(nc.addmm_(nc, nb), c.addmm_(c.clone(), b), "addmm_ of itself")
    with pytest.raises(RuntimeError):
        torch.mm(na, torch.randn(3, 4, device="npu"))


ACTIVATIONS: dict[str, Callable] = {
    "relu": F.relu, "relu6": F.relu6, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "mish": F.mish, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.7), "leaky_relu": lambda x: F.leaky_relu(x, 0.2), "elu": F.elu,
    "selu": F.selu, "celu": lambda x: F.celu(x, 0.7), "softplus": lambda x: F.softplus(x, 2, 1),
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "threshold": lambda x: F.threshold(x, 0.1, 3.0),
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink, "glu": lambda x: F.glu(x, 1), "logsigmoid": F.logsigmoid,
    "tanhshrink": F.tanhshrink, "softsign": F.softsign,
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str, dtype: torch.dtype) -> None:
    f = ACTIVATIONS[name]
    check(f, rand(3, 10, 5, dtype=dtype))
    check(f, rand(5, 10, 3, dtype=dtype).detach().transpose(0, 2).requires_grad_())
    check(f, rand(0, 4, dtype=dtype))
    check(f, last(rand(2, 4, 3, 3, dtype=dtype)))
    # For infinity ATen's gelu in float32 gives NaN, its gelu in float64 and npu's give infinity.
    large = 3.0 if name == "gelu" else float("inf")
    check(f, torch.tensor([[float("nan"), large, -float("inf"), -0.0]], dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_prelu(dtype: torch.dtype) -> None:
    check(F.prelu, rand(2, 4, 3, dtype=dtype), rand(4, dtype=dtype))
    check(F.prelu, rand(2, 4, 3, 5, dtype=dtype), rand(1, dtype=dtype))


@pytest.mark.parametrize("name", ["relu_", "hardtanh_", "hardswish", "silu", "leaky_relu_", "elu_", "threshold_"])
def test_activation_inplace(name: str) -> None:
    x = rand(4, 5, grad=False)
    f = {
        "relu_": F.relu_,
        "hardtanh_": lambda t: F.hardtanh(t, inplace=True),
        "hardswish": lambda t: F.hardswish(t, inplace=True),
        "silu": lambda t: F.silu(t, inplace=True),
        "leaky_relu_": F.leaky_relu_,
        "elu_": F.elu_,
        "threshold_": lambda t: F.threshold_(t, 0.1, 2.0),
    }[name]
    moved = to_npu(x)
    assert f(moved) is moved
    assert_same(moved, f(x), name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(dim: int, dtype: torch.dtype) -> None:
    check(F.softmax, rand(3, 7, 5, dtype=dtype), dim)
    check(F.log_softmax, rand(3, 7, 5, dtype=dtype), dim)
    check(F.softmax, rand(5, 7, 3, dtype=dtype).detach().transpose(0, 2).requires_grad_(), dim)
    check(F.softmax, rand(0, 7, 3, dtype=dtype), dim)
    check(lambda x: F.softmax(x, dim, dtype=torch.float32), rand(3, 7, dtype=dtype)) if dim < 1 else None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mixed", [False, True])
def test_layer_and_group_norm(dtype: torch.dtype, mixed: bool) -> None:
    p = torch.float32 if mixed else dtype
    check(
        F.layer_norm, rand(3, 4, 9, dtype=dtype), (9,), rand(9, dtype=p), rand(9, dtype=p), exact=dtype != torch.float32
    )
    check(F.layer_norm, rand(3, 4, 9, dtype=dtype), (4, 9), rand(4, 9, dtype=p), None, exact=dtype != torch.float32)
    check(F.layer_norm, rand(3, 4, 9, dtype=dtype), (9,), None, None, exact=dtype != torch.float32)
    check(F.group_norm, rand(2, 6, 5, 3, dtype=dtype), 3, rand(6, dtype=p), rand(6, dtype=p))
    with torch.no_grad():  # PyTorch makes gradients contiguous on any device but the CPU
        check(
            F.group_norm, last(rand(2, 6, 5, 3, dtype=dtype, grad=False)), 2, torch.rand(6).to(p), torch.rand(6).to(p)
        )
    check(F.group_norm, rand(2, 6, 5, dtype=dtype), 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mixed", [False, True])
def test_batch_norm(dtype: torch.dtype, training: bool, mixed: bool) -> None:
    p = torch.float32 if mixed else dtype
    for x in (rand(4, 3, dtype=dtype), rand(4, 3, 5, dtype=dtype), rand(2, 3, 4, 5, dtype=dtype),
              last(rand(2, 3, 4, 5, dtype=dtype))):  # fmt: skip
        mean, var = torch.randn(3).to(p), torch.rand(3).to(p) + 0.5

        def f(x: torch.Tensor, m: torch.Tensor, v: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
            return F.batch_norm(x, m.clone(), v.clone(), *parameters, training=training)

        check(f, x, mean, var, rand(3, dtype=p), rand(3, dtype=p))
    mean, var = torch.zeros(3, dtype=p), torch.ones(3, dtype=p)
    npu_mean, npu_var = to_npu((mean, var))
    x = rand(2, 3, 4, dtype=dtype, grad=False)
    F.batch_norm(x, mean, var, training=training)
    F.batch_norm(to_npu(x), npu_mean, npu_var, training=training)
    assert_same((npu_mean, npu_var), (mean, var), "running statistics")
    if training:
        check(F.instance_norm, rand(2, 3, 4, 5, dtype=dtype))


def test_rms_norm() -> None:
    """In float16 and bfloat16 it rounds once, the CPU's composition at each step: tests/fused/test_fusion_table.py."""
    check(F.rms_norm, rand(3, 8), (8,), rand(8))


CONVOLUTIONS: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("conv1d", (2, 4, 9), (6, 4, 3), {"padding": 1}),
    ("conv1d", (2, 4, 9), (6, 2, 3), {"groups": 2, "stride": 2, "dilation": 2}),
    ("conv2d", (2, 16, 9, 7), (32, 16, 3, 3), {"padding": 1}),
    ("conv2d", (1, 3, 9, 7), (8, 3, 3, 2), {"stride": (2, 1), "padding": (1, 0)}),
    ("conv2d", (2, 8, 6, 6), (8, 1, 3, 3), {"groups": 8, "padding": "same"}),
    ("conv2d", (2, 8, 6, 6), (4, 8, 1, 1), {}),
    ("conv3d", (1, 2, 4, 5, 6), (3, 2, 2, 2, 2), {"dilation": (1, 2, 1)}),
    ("conv_transpose1d", (2, 4, 5), (4, 3, 3), {"stride": 2, "output_padding": 1}),
    ("conv_transpose2d", (2, 4, 5, 5), (4, 3, 3, 3), {"stride": 2, "padding": 1}),
    ("conv_transpose2d", (2, 4, 5, 5), (4, 3, 2, 2), {"groups": 2, "dilation": 2}),
    ("conv_transpose3d", (1, 2, 3, 3, 3), (2, 3, 2, 2, 2), {}),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda c: f"{c[0]}-{'x'.join(map(str, c[1]))}")
def test_convolution(case: tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]], dtype: torch.dtype) -> None:
    name, input_size, weight_size, options = case
    f = getattr(F, name)
    groups = options.get("groups", 1)
    channels = weight_size[1] * groups if "transpose" in name else weight_size[0]
    x, w, b = rand(*input_size, dtype=dtype), rand(*weight_size, dtype=dtype), rand(channels, dtype=dtype)
    check(f, x, w, b, **options)
    check(f, x, w, None, **options)
    if len(input_size) == 4:
        check(f, last(x), w, b, **options)
        check(f, last(x), last(w), b, **options)


def test_convolution_shapes_that_cannot_be() -> None:
    with pytest.raises(RuntimeError):
        F.conv2d(torch.randn(1, 3, 2, 2, device="npu"), torch.randn(4, 3, 5, 5, device="npu"))
    with pytest.raises(RuntimeError):
        F.conv2d(torch.randn(1, 3, 8, 8, device="npu"), torch.randn(4, 2, 3, 3, device="npu"))


POOLS: dict[str, tuple[Callable, int]] = {
    "max1d": (lambda x: F.max_pool1d(x, 3, 2, 1), 1),
    "max2d": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), 2),
    "max2d_ceil": (lambda x: F.max_pool2d(x, (3, 2), ceil_mode=True, dilation=(1, 2)), 2),
    "max3d": (lambda x: F.max_pool3d(x, 2, return_indices=True), 3),
    "avg1d": (lambda x: F.avg_pool1d(x, 3, 2), 1),
    "avg2d": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), 2),
    "avg2d_divisor": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), 2),
    "adaptive_avg1d": (lambda x: F.adaptive_avg_pool1d(x, 3), 1),
    "adaptive_avg2d": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), 2),
    "adaptive_avg2d_one": (lambda x: F.adaptive_avg_pool2d(x, 1), 2),
    "adaptive_avg3d": (lambda x: F.adaptive_avg_pool3d(x, (2, 3, 2)), 3),
    "adaptive_max2d": (lambda x: F.adaptive_max_pool2d(x, (3, 2), return_indices=True), 2),
    "adaptive_max3d": (lambda x: F.adaptive_max_pool3d(x, 2, return_indices=True), 3),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", POOLS)
def test_pool(name: str, dtype: torch.dtype) -> None:
    f, spatial = POOLS[name]
    x = rand(2, 4, *(7, 9, 6)[:spatial], dtype=dtype)
    try:
        f(x.detach())
    except RuntimeError as error:
        pytest.skip(f"PyTorch has no CPU kernel: {str(error).splitlines()[0]}")
    check(f, x)
    if spatial > 1:
        check(f, last(x))
    check(f, x.detach()[0].requires_grad_())


HALF_ON_NPU_ONLY: dict[str, Callable] = {
    "avg_pool3d": lambda x: F.avg_pool3d(x.unsqueeze(-1).expand(-1, -1, -1, -1, 3), 2, 1, 1),
    "bilinear": lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear", antialias=True),
    "bicubic": lambda x: F.interpolate(x, size=(3, 9), mode="bicubic", antialias=True),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HALF_ON_NPU_ONLY)
def test_half_precision_that_the_cpu_lacks(name: str, dtype: torch.dtype) -> None:
    f = HALF_ON_NPU_ONLY[name]
    x = rand(2, 3, 4, 5, dtype=dtype)
    wide = x.detach().float().requires_grad_()
    moved = to_npu(x)
    expected, out = f(wide), f(moved)
    torch.testing.assert_close(out.detach().cpu(), expected.detach().to(dtype))
    seed = torch.randn(expected.shape).to(dtype)
    out.backward(seed.to("npu"))
    expected.backward(seed.float())
    # Sums of several rounded terms where the reference rounds once.
    torch.testing.assert_close(moved.grad.cpu(), wide.grad.to(dtype), rtol=2e-2, atol=1e-2)


def test_max_unpool() -> None:
    pooled, indices = F.max_pool2d(torch.randn(2, 3, 6, 6), 2, return_indices=True)
    check(lambda x, i: F.max_unpool2d(x, i, 2), pooled.requires_grad_(), indices)
    pooled, indices = F.max_pool3d(torch.randn(2, 3, 4, 4, 4), 2, return_indices=True)
    check(lambda x, i: F.max_unpool3d(x, i, 2), pooled.requires_grad_(), indices)


UPSAMPLES: list[tuple[str, int, dict[str, Any]]] = [
    *[(mode, n, {}) for mode in ("nearest", "nearest-exact") for n in (1, 2, 3)],
    *[(mode, n, {"align_corners": corners}) for corners in (False, True)
      for mode, n in (("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3))],
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("mode", "spatial", "options"), UPSAMPLES)
def test_upsample(mode: str, spatial: int, options: dict[str, Any], dtype: torch.dtype) -> None:
    x = rand(2, 3, *(4, 5, 3)[:spatial], dtype=dtype)
    check(lambda x: F.interpolate(x, scale_factor=1.7, mode=mode, **options), x)
    check(lambda x: F.interpolate(x, size=(6, 3, 4)[:spatial], mode=mode, **options), x)
    if spatial == 2:
        check(lambda x: F.interpolate(x, scale_factor=(2, 3), mode=mode, **options), last(x))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode: str) -> None:
    grid = (torch.rand(2, 4, 3, 2) * 2.4 - 1.2).requires_grad_()
    check(lambda x, g: F.grid_sample(x, g, mode=mode, align_corners=False), rand(2, 3, 5, 6), grid)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_pad(mode: str, spatial: int) -> None:
    check(lambda x: F.pad(x, (1, 2) * spatial, mode=mode), rand(2, 3, *(5, 4, 6)[:spatial]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cross_entropy_with_logits_rounds_once(dtype: torch.dtype) -> None:
    x, weight, positive = (10 * torch.rand(10, 64).to(dtype) for _ in range(3))
    target = torch.randint(0, 2, (10, 64)).to(dtype)
    weights = [{}, {"weight": weight}, {"weight": weight[:, :1], "pos_weight": positive[0]}]
    for options in weights:
        exact = F.binary_cross_entropy_with_logits(
            x.float(), target.float(), **{k: v.float() for k, v in options.items()}, reduction="none"
        )
        there = {k: v.npu() for k, v in options.items()}
        result = F.binary_cross_entropy_with_logits(x.npu(), target.npu(), **there, reduction="none")
        assert torch.equal(result.cpu(), exact.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_loss(reduction: str, dtype: torch.dtype) -> None:
    x, y = rand(4, 5, dtype=dtype), rand(4, 5, dtype=dtype)
    p, q = (torch.rand(4, 5).to(dtype).requires_grad_() for _ in range(2))
    w = torch.rand(5).to(dtype)
    check(F.mse_loss, x, y, reduction=reduction)
    check(F.l1_loss, x, y, reduction=reduction)
    check(F.smooth_l1_loss, x, y.detach(), reduction=reduction, beta=0.5)
    check(F.binary_cross_entropy, p, q.detach(), reduction=reduction)
    check(F.binary_cross_entropy_with_logits, x, q.detach(), reduction=reduction)
    check(F.binary_cross_entropy_with_logits, x, q.detach(), pos_weight=w, reduction=reduction)
    check(F.soft_margin_loss, x, torch.sign(y.detach()), reduction=reduction)
    check(F.kl_div, x, p, reduction=reduction)
    target = torch.tensor([0, 4, -100, 2])
    check(F.cross_entropy, x, target, reduction=reduction)
    check(F.cross_entropy, x, target, weight=w, label_smoothing=0.1, reduction=reduction)
    check(F.cross_entropy, rand(2, 5, 3, 4, dtype=dtype), torch.randint(0, 5, (2, 3, 4)), reduction=reduction)
    check(F.nll_loss, rand(5, dtype=dtype), torch.tensor(3), reduction=reduction)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, "bool", "float"])
def test_attention(dtype: torch.dtype, causal: bool, mask: str | None) -> None:
    if causal and mask:
        return
    q, k, v = rand(2, 3, 9, 16, dtype=dtype), rand(2, 3, 7, 16, dtype=dtype), rand(2, 3, 7, 16, dtype=dtype)
    m = None
    if mask == "bool":
        m = torch.rand(2, 1, 9, 7) > 0.3
        m[..., 0] = True
    elif mask == "float":
        m = torch.randn(9, 7).to(dtype)
    check(F.scaled_dot_product_attention, q, k, v, attn_mask=m, is_causal=causal)
    # heads out of one projection, as models make them
    check(lambda x: F.scaled_dot_product_attention(*x.view(2, 9, 3, 4, 8).permute(2, 0, 3, 1, 4), is_causal=causal)
          .transpose(1, 2).flatten(2), rand(2, 9, 96, dtype=dtype))  # fmt: skip


def test_attention_composed() -> None:
    q, k, v = (rand(2, 4, 5, 8) for _ in range(3))
    bias = rand(5, 5)
    check(F.scaled_dot_product_attention, q, k, v, attn_mask=bias, exact=False)  # its gradient is wanted, too
    few = rand(2, 2, 5, 8), rand(2, 2, 5, 8)
    check(F.scaled_dot_product_attention, q, *few, enable_gqa=True, exact=False)  # one operator, not composed
    npu = to_npu((q, k, v))
    dropped = F.scaled_dot_product_attention(*npu, dropout_p=0.5)
    dropped.sum().backward()
    assert npu[0].grad is not None
    assert torch.isfinite(npu[0].grad).all()
    torch.testing.assert_close(
        torch.stack([F.scaled_dot_product_attention(*npu, dropout_p=0.1) for _ in range(400)]).mean(0).cpu(),
        F.scaled_dot_product_attention(q, k, v), rtol=0.2, atol=0.1)  # fmt: skip


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_recurrent(kind: str, dtype: torch.dtype) -> None:
    layer = getattr(torch.nn, kind)(5, 4, num_layers=2, bidirectional=True, batch_first=True).to(dtype)
    twin = getattr(torch.nn, kind)(5, 4, num_layers=2, bidirectional=True, batch_first=True).to(dtype)
    twin.load_state_dict(layer.state_dict())
    twin.to("npu")
    x = rand(3, 6, 5, dtype=dtype)
    moved = to_npu(x)
    out, state = layer(x)
    npu_out, npu_state = twin(moved)
    close = {"rtol": 5e-2, "atol": 5e-2} if dtype != torch.float32 else {"rtol": 1e-4, "atol": 1e-5}
    for n, c in zip(tensors_of([npu_out, npu_state]), tensors_of([out, state]), strict=True):
        torch.testing.assert_close(n.cpu(), c, **close)
    sum(t.float().square().sum() for t in tensors_of([out, state])).backward()
    sum(t.float().square().sum() for t in tensors_of([npu_out, npu_state])).backward()
    torch.testing.assert_close(moved.grad.cpu(), x.grad, **close)
    for a, b in zip(twin.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, **close)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell"])
def test_recurrent_cell(kind: str) -> None:
    cell = getattr(torch.nn, kind)(5, 4)
    twin = getattr(torch.nn, kind)(5, 4)
    twin.load_state_dict(cell.state_dict())
    twin.to("npu")
    x = torch.randn(3, 5)
    for n, c in zip(tensors_of(twin(x.to("npu"))), tensors_of(cell(x)), strict=True):
        torch.testing.assert_close(n.cpu(), c)


FOREACH_UNARY = [
    "abs", "acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "exp", "expm1", "log", "log10", "log1p",
    "log2", "neg", "reciprocal", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "round", "floor",
    "ceil", "trunc", "frac",
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_foreach(dtype: torch.dtype) -> None:
    lists = [[torch.rand(n, 3).to(dtype) + 0.1 for n in range(1, 21)] for _ in range(3)]  # more than CANN takes at once
    a, b, c = lists
    na, nb, nc = to_npu(lists)
    cases: list[tuple[str, tuple, tuple]] = [(name, (), ()) for name in FOREACH_UNARY]
    for name in ("add", "sub", "mul", "div", "maximum", "minimum", "clamp_min", "clamp_max"):
        cases += [
            (name, (b,), (nb,)),
            (name, (0.75,), (0.75,)),
            (name, ([0.1 * i for i in range(20)],) * 1, ([0.1 * i for i in range(20)],)),
        ]
    cases += [
        (name, (torch.tensor(0.75, dtype=dtype),), (torch.tensor(0.75, dtype=dtype, device="npu"),))
        for name in ("mul", "div")
    ]
    cases += [("pow", (b,), (nb,)), ("pow", (2.0,), (2.0,)), ("lerp", (b, c), (nb, nc)), ("lerp", (b, 0.3), (nb, 0.3))]
    cases += [("addcmul", (b, c, 0.5), (nb, nc, 0.5)), ("addcdiv", (b, c, 0.5), (nb, nc, 0.5))]
    for name, args, npu_args in cases:
        f, inplace = getattr(torch, f"_foreach_{name}"), getattr(torch, f"_foreach_{name}_")
        expected = f(a, *args)
        assert_same(f(na, *npu_args), expected, name)
        written = to_npu(a)
        inplace(written, *npu_args)
        assert_same(written, expected, name + "_")
    assert_same(torch._foreach_norm(na, 2), torch._foreach_norm(a, 2), "norm")
    torch._foreach_zero_(na)
    assert all(t.eq(0).all() for t in na)
    torch._foreach_copy_(na, nb)
    assert_same(na, b, "copy_")
    torch._foreach_copy_(na, a)  # from the CPU
    assert_same(na, a, "copy_")


def test_foreach_add_with_alpha() -> None:
    a, b = ([torch.randn(3) for _ in range(4)] for _ in range(2))
    assert_same(torch._foreach_add(to_npu(a), to_npu(b), alpha=0.3), torch._foreach_add(a, b, alpha=0.3), "add")


OPTIMIZERS: dict[str, Callable] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=True),
    "sgd_fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adam_decay_fused": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, foreach=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, amsgrad=True, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name: str) -> None:
    cpu = [rand(7, 5), rand(3)]
    npu = [t.detach().to("npu").requires_grad_() for t in cpu]
    optimizers = [OPTIMIZERS[name](p) for p in (cpu, npu)]
    for _ in range(4):
        for t, n in zip(cpu, npu, strict=True):
            t.grad = torch.randn(t.shape)
            n.grad = t.grad.to("npu")
        for optimizer in optimizers:
            optimizer.step()
    for n, t in zip(npu, cpu, strict=True):
        torch.testing.assert_close(n.detach().cpu(), t.detach(), rtol=2e-6, atol=1e-7)


def test_gradient_scaling_and_clipping() -> None:
    grads = [torch.randn(4, 3, device="npu"), torch.randn(5, device="npu")]
    before = [g.clone() for g in grads]
    found, scale = torch.zeros(1, device="npu"), torch.full((1,), 0.5, device="npu")
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, scale)
    assert found.item() == 0
    assert all(torch.equal(g, b * 0.5) for g, b in zip(grads, before, strict=True))
    grads[1][2] = float("inf")
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, scale)
    assert found.item() == 1
    current, tracker = torch.full((1,), 8.0, device="npu"), torch.zeros(1, dtype=torch.int32, device="npu")
    torch._amp_update_scale_(current, tracker, found, 2.0, 0.25, 3)
    assert current.item() == 2.0
    assert tracker.item() == 0
    parameters = [rand(4, 3), rand(5)]
    npu_parameters = to_npu(parameters)
    for p, n in zip(parameters, npu_parameters, strict=True):
        p.grad = torch.randn(p.shape)
        n.grad = p.grad.to("npu")
    norms = [torch.nn.utils.clip_grad_norm_(p, 0.5) for p in (parameters, npu_parameters)]
    torch.testing.assert_close(norms[1].cpu(), norms[0])
    for p, n in zip(parameters, npu_parameters, strict=True):
        torch.testing.assert_close(n.grad.cpu(), p.grad)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize(
    ("options", "channels", "size"),
    [
        ({"kernel_size": 3, "padding": 1}, (8, 16), (9, 17, 31)),
        ({"kernel_size": (1, 3, 3), "padding": (0, 1, 1)}, (16, 8), (5, 30, 29)),
        ({"kernel_size": (3, 1, 2), "stride": (2, 1, 1), "dilation": (1, 1, 2), "groups": 2}, (8, 6), (16, 15, 33)),
        ({"kernel_size": 2, "stride": 2, "bias": False}, (3, 5), (20, 21, 22)),
        ({"kernel_size": 3, "groups": 8}, (8, 8), (10, 20, 20)),
        ({"kernel_size": 1}, (8, 8), (10, 20, 20)),
        ({"kernel_size": 3}, (2, 2), (4, 4, 4)),
    ],
)
def test_convolution_of_one_volume(
    options: dict[str, Any], channels: tuple[int, int], size: tuple[int, ...], memory_format: torch.memory_format
) -> None:
    convolution, there = (torch.nn.Conv3d(*channels, **options) for _ in range(2))
    there.load_state_dict(convolution.state_dict())
    there.npu()
    x = torch.randn(1, channels[0], *size).to(memory_format=memory_format)
    terms = convolution.weight[0].numel()
    for bad in (0.0, float("nan"), float("inf")):
        x[0, 0, 1, 2, 3] = bad
        assert_close(there(x.npu()), convolution.double()(x.double()), terms=terms)
