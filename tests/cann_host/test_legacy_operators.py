"""Legacy operators (aclop): called as a C client calls them, against ATen on the CPU."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from typing import Any

import operator_client
import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_close

import cann_host

acl = c.CDLL(str(cann_host.library()))
for name in ("aclCreateTensorDesc", "aclCreateDataBuffer", "aclopCreateAttr"):
    getattr(acl, name).restype = c.c_void_p
acl.aclGetRecentErrMsg.restype = c.c_char_p

ND, NC1HWC0, FRACTAL_Z, FRACTAL_NZ, NDC1HWC0, FRACTAL_Z_3D = 2, 3, 4, 29, 32, 33


def check(code: int) -> None:
    if code:
        raise RuntimeError(f"{code}: {(acl.aclGetRecentErrMsg() or b'').decode()}")


class Buffer:
    """Device memory that a tensor lies in, in some format."""

    def __init__(self, dims: Sequence[int], dtype: torch.dtype, form: int = ND, storage: Sequence[int] = ()) -> None:
        self.dtype, self.dims, self.form = dtype, tuple(dims), form
        self.storage_dims = tuple(storage) if storage else self.dims
        self.size = max(torch.Size(self.storage_dims).numel(), 1) * dtype.itemsize
        self.pointer = c.c_void_p()
        check(acl.aclrtMalloc(c.byref(self.pointer), c.c_size_t(self.size), 0))
        self.raw = (c.c_byte * self.size).from_address(self.pointer.value)
        self.buffer = c.c_void_p(acl.aclCreateDataBuffer(self.pointer, c.c_size_t(self.size)))
        sizes = (c.c_int64 * max(len(self.dims), 1))(*self.dims)
        code = operator_client.acl_dtype(dtype)
        self.desc = c.c_void_p(acl.aclCreateTensorDesc(code, len(self.dims), sizes, ND))
        check(acl.aclSetTensorFormat(self.desc, form))
        storage_sizes = (c.c_int64 * max(len(self.storage_dims), 1))(*self.storage_dims)
        check(acl.aclSetTensorShape(self.desc, len(self.storage_dims), storage_sizes))

    def stored(self) -> torch.Tensor:
        count = torch.Size(self.storage_dims).numel()
        if not count:
            return torch.empty(self.storage_dims, dtype=self.dtype)
        return torch.frombuffer(self.raw, dtype=self.dtype, count=count).view(self.storage_dims)

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Buffer:
        buffer = cls(tensor.shape, tensor.dtype)
        buffer.stored().copy_(tensor)
        return buffer

    @classmethod
    def absent(cls) -> Buffer:
        """An input that is not given."""
        buffer = cls((), torch.float32)
        buffer.desc = c.c_void_p(acl.aclCreateTensorDesc(-1, 0, None, -1))
        return buffer

    def found_shape(self) -> tuple[int, ...]:
        sizes = []
        for i in range(acl.aclGetTensorDescNumDims(self.desc)):
            size = c.c_int64()
            check(acl.aclGetTensorDescDimV2(self.desc, c.c_size_t(i), c.byref(size)))
            sizes.append(size.value)
        return tuple(sizes)


def attributes(values: dict[str, Any]) -> c.c_void_p:
    attr = c.c_void_p(acl.aclopCreateAttr())
    for key, value in values.items():
        name = key.encode()
        if isinstance(value, bool):
            check(acl.aclopSetAttrBool(attr, name, c.c_uint8(value)))
        elif isinstance(value, int):
            check(acl.aclopSetAttrInt(attr, name, c.c_int64(value)))
        elif isinstance(value, float):
            check(acl.aclopSetAttrFloat(attr, name, c.c_float(value)))
        elif isinstance(value, str):
            check(acl.aclopSetAttrString(attr, name, value.encode()))
        elif isinstance(value[0], float):
            check(acl.aclopSetAttrListFloat(attr, name, len(value), (c.c_float * len(value))(*value)))
        else:
            check(acl.aclopSetAttrListInt(attr, name, len(value), (c.c_int64 * len(value))(*value)))
    return attr


def run(op: str, inputs: Sequence[Buffer], outputs: Sequence[Buffer], *, sync: bool = False, **attrs: Any) -> None:
    def handles(values: Sequence[Any]) -> Any:
        return (c.c_void_p * max(len(values), 1))(*[v.value for v in values])

    execute = acl.aclopCompileAndExecuteV2 if sync else acl.aclopCompileAndExecute
    attr = attributes(attrs)
    check(
        execute(
            op.encode(),
            len(inputs),
            handles([b.desc for b in inputs]),
            handles([b.buffer for b in inputs]),
            len(outputs),
            handles([b.desc for b in outputs]),
            handles([b.buffer for b in outputs]),
            attr,
            0,
            0,
            None,
            None,
        )
    )
    acl.aclopDestroyAttr(attr)
    check(acl.aclrtSynchronizeStream(None))


def call(op: str, *tensors: torch.Tensor, like: torch.Tensor, **attrs: Any) -> torch.Tensor:
    out = Buffer(like.shape, like.dtype)
    run(op, [Buffer.of(t) for t in tensors], [out], **attrs)
    return out.stored()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


UNARY = {
    "Abs": torch.abs,
    "Exp": torch.exp,
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "Relu": torch.relu,
    "Mish": F.mish,
    "Swish": F.silu,
    "Erf": torch.erf,
    "Floor": torch.floor,
    "Square": torch.square,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("op", UNARY)
def test_unary(op: str, dtype: torch.dtype) -> None:
    x = torch.randn(3, 7, dtype=dtype)
    x[0, 0], x[0, 1] = float("nan"), float("inf")
    expected = UNARY[op](x.float()).to(dtype)
    assert_close(call(op, x, like=x), expected)
    assert call(op, x[:0], like=x[:0]).shape == (0, 7)


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("Add", torch.add),
        ("Sub", torch.sub),
        ("Mul", torch.mul),
        ("RealDiv", torch.div),
        ("Maximum", torch.maximum),
        ("Pow", torch.pow),
        ("FloorMod", torch.remainder),
    ],
)
def test_binary_broadcasts(op: str, function: Any) -> None:
    x, y = torch.rand(3, 1, 5) + 0.5, torch.rand(4, 5) + 0.5
    expected = function(x, y)
    assert_close(call(op, x, y, like=expected), expected)


def test_comparison() -> None:
    x, y = torch.randn(5, 9), torch.randn(9)
    assert torch.equal(call("Less", x, y, like=torch.empty(5, 9, dtype=torch.bool)), x < y)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_matmul(first: bool, second: bool) -> None:
    x, y, bias = torch.randn(5, 7), torch.randn(7, 3), torch.randn(3)
    expected = x @ y + bias
    a, b = x.t().contiguous() if first else x, y.t().contiguous() if second else y
    actual = call("MatMul", a, b, bias, like=expected, transpose_x1=first, transpose_x2=second)
    assert_close(actual, expected, terms=7)


def test_convolution() -> None:
    x, weight, bias = torch.randn(2, 4, 9, 8), torch.randn(6, 2, 3, 3), torch.randn(6)
    expected = F.conv2d(x, weight, bias, stride=2, padding=(1, 2), groups=2)
    lists = {"strides": (1, 1, 2, 2), "dilations": (1, 1, 1, 1), "pads": (1, 1, 2, 2), "groups": 2}
    assert_close(call("Conv2D", x, weight, bias, like=expected, **lists), expected, terms=18)
    sizes, grad = torch.tensor(x.shape, dtype=torch.int32), torch.randn_like(expected)
    dx, dw, _ = torch.ops.aten.convolution_backward(
        grad, x, weight, [6], [2, 2], [1, 2], [1, 1], False, [0, 0], 2, [True, True, True]
    )
    assert_close(call("Conv2DBackpropInput", sizes, weight, grad, like=x, **lists), dx, terms=27)
    weight_sizes = torch.tensor(weight.shape, dtype=torch.int32)
    assert_close(call("Conv2DBackpropFilter", x, weight_sizes, grad, like=weight, **lists), dw, terms=40)


def test_reductions() -> None:
    x, dims = torch.randn(3, 4, 5), torch.tensor([0, 2])
    assert_close(call("ReduceSum", x, dims, like=torch.empty(4)), x.sum((0, 2)), terms=15)
    assert_close(call("ReduceMax", x, dims, like=torch.empty(1, 4, 1), keep_dims=True), x.amax((0, 2), True))
    values, indices = Buffer((3, 5), torch.float32), Buffer((3, 5), torch.int32)
    run("ArgMaxWithValue", [Buffer.of(x)], [indices, values], dimension=1, keep_dims=False)
    expected = x.max(1)
    assert torch.equal(values.stored(), expected.values)
    assert torch.equal(indices.stored().long(), expected.indices)


def test_shapes() -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    offsets, sizes = torch.tensor([0, 1, 2]), torch.tensor([2, -1, 2])
    assert torch.equal(call("Slice", x, offsets, sizes, like=torch.empty(2, 2, 2)), x[:, 1:, 2:])
    assert torch.equal(call("Transpose", x, torch.tensor([2, 0, 1]), like=torch.empty(4, 2, 3)), x.permute(2, 0, 1))
    padded = F.pad(x, (1, 0, 0, 2))
    assert torch.equal(call("Pad", x, torch.tensor([0, 0, 0, 2, 1, 0]), like=padded), padded)
    swapped = call("ConfusionTransposeD", x, like=torch.empty(4, 6), perm=(2, 0, 1), shape=(4, 6), transpose_first=True)
    assert torch.equal(swapped, x.permute(2, 0, 1).reshape(4, 6))


def test_bits_of_signs() -> None:
    x = torch.tensor([1.0, -1, 0, 2, -3, -4, 5, 6, -7])
    packed = call("SignBitsPack", x, like=torch.empty(1, 2, dtype=torch.uint8), size=1)
    assert packed.tolist() == [[0b11001101, 0]]
    unpacked = call("SignBitsUnpack", packed, like=torch.empty(1, 16), size=1)
    assert unpacked[0, :9].tolist() == [1, -1, 1, 1, -1, -1, 1, 1, -1]


def test_shapes_that_operators_find() -> None:
    x = torch.tensor([[1.0, 0], [0, 2], [1, 0]])
    out = Buffer((6, 2), torch.int64)
    run("NonZero", [Buffer.of(x)], [out], sync=True)
    assert out.found_shape() == (3, 2)
    assert out.stored()[:3].tolist() == [[0, 0], [1, 1], [2, 0]]
    values, first, counts, inverse = (Buffer(s, d) for s, d in [((3, 2), torch.float32), *[((3,), torch.int64)] * 3])
    run(
        "UniqueWithCountsExt2",
        [Buffer.of(x), Buffer.of(torch.tensor([0]))],
        [values, first, counts, inverse],
        sync=True,
    )
    assert values.found_shape() == (2, 2)
    assert counts.stored()[:2].tolist() == [1, 2]
    assert first.stored()[:2].tolist() == [1, 0]
    assert inverse.stored().tolist() == [1, 0, 1]


def boxes(n: int) -> torch.Tensor:
    corner = torch.rand(2, n) * 10
    return torch.cat([corner, corner + torch.rand(2, n) * 5 + 0.5])


def giou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    low, high = torch.maximum(a[:2], b[:2]), torch.minimum(a[2:], b[2:])
    inter = (high - low).clamp(0).prod(0)
    union = (a[2:] - a[:2]).prod(0) + (b[2:] - b[:2]).prod(0) - inter
    around = (torch.maximum(a[2:], b[2:]) - torch.minimum(a[:2], b[:2])).prod(0)
    return inter / union - (around - union) / around


def test_boxes_and_their_gradients() -> None:
    a, b, grad = boxes(6).requires_grad_(), boxes(6).requires_grad_(), torch.randn(1, 6)
    expected = giou(a, b)
    kind = {"trans": False, "is_cross": False, "mode": "iou"}
    assert_close(call("GIoU", a.detach(), b.detach(), like=torch.empty(1, 6), **kind)[0], expected.detach(), terms=8)
    expected.backward(grad[0])
    da, db = Buffer((4, 6), torch.float32), Buffer((4, 6), torch.float32)
    run("GIoUGrad", [Buffer.of(t.detach()) for t in (grad, a, b)], [da, db], **kind)
    assert_close(da.stored(), a.grad, terms=64)
    assert_close(db.stored(), b.grad, terms=64)


def test_suppression_of_overlapping_boxes() -> None:
    x = torch.tensor([[0.0, 0, 10, 10], [1, 0, 11, 10], [20, 20, 30, 30], [0, 0, 2, 2]])
    scores = torch.tensor([0.6, 0.9, 0.8, 0.1])
    indices, count = Buffer((3,), torch.int32), Buffer((), torch.int32)
    limits = [Buffer.of(t) for t in (torch.tensor(3, dtype=torch.int32), torch.tensor(0.5), torch.tensor(0.3))]
    run("NonMaxSuppressionV4", [Buffer.of(x), Buffer.of(scores), *limits], [indices, count])
    assert indices.stored().tolist() == [1, 2, 0]
    assert count.stored().item() == 2
    both = torch.cat([x, scores[:, None]], 1)
    outputs = [Buffer((4, 5), x.dtype), Buffer((4,), torch.int32), Buffer((4,), torch.uint8)]
    run("NMSWithMask", [Buffer.of(both)], outputs, iou_threshold=0.5)
    assert outputs[2].stored().tolist() == [0, 1, 1, 1]
    outputs = [Buffer((1, 3, 4), x.dtype), *(Buffer((1, 3), x.dtype) for _ in range(2)), Buffer((1,), torch.int32)]
    boxes_of_classes, scores_of_classes = x.view(1, 4, 1, 4), torch.stack([scores, 1 - scores], 1)[None]
    limits_of_classes = {"score_threshold": 0.3, "iou_threshold": 0.5, "max_size_per_class": 2, "max_total_size": 3}
    run(
        "BatchMultiClassNonMaxSuppression",
        [Buffer.of(boxes_of_classes), Buffer.of(scores_of_classes)],
        outputs,
        **limits_of_classes,
        transpose_box=False,
        change_coordinate_frame=False,
    )
    assert torch.equal(outputs[0].stored()[0], x[[1, 3, 2]])
    assert outputs[2].stored().tolist() == [[0, 1, 0]]
    assert outputs[3].stored().item() == 3


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, float("inf")])
def test_gradients_of_distances(p: float) -> None:
    x, y, grad = torch.randn(5, 3), torch.randn(4, 3), torch.randn(5, 4)
    a, b = x[:, None].expand(5, 4, 3), y.expand(5, 4, 3)
    code = -1.0 if p == float("inf") else p
    expected = torch.cdist(x, y, p)
    assert_close(call("Cdist", a, b, like=expected, p=code), expected, terms=3)
    slopes, lengths = (t[..., None].expand(5, 4, 3) for t in (grad, expected))
    x.requires_grad_()
    torch.cdist(x, y, p).backward(grad)
    assert_close(call("CdistGrad", slopes, a, b, lengths, like=x.detach(), p=code), x.grad, terms=16)


def adam_of_formula(x: torch.Tensor, m: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
    """Step 3 of Adam with rate 0.1, betas 0.9 and 0.99, in float64."""
    x, m, v, g = (t.double() for t in (x, m, v, g))
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return [x - 0.1 * (m / (1 - 0.9**3)) / ((v / (1 - 0.99**3)).sqrt() + 1e-8), m, v]


@pytest.mark.parametrize("maximize", [False, True])
def test_steps_of_optimizers(maximize: bool) -> None:
    x, m, g = torch.randn(3, 5, 7).unbind()
    v = torch.rand(5, 7) + 0.5
    expected = adam_of_formula(x, m, v, -g if maximize else g)

    def step(op: str, *inputs: float | torch.Tensor, **attrs: Any) -> list[torch.Tensor]:
        state = [Buffer.of(t) for t in (x, m, v)]
        given = [Buffer.of(t if isinstance(t, torch.Tensor) else torch.tensor(t)) for t in inputs]
        run(op, state + given, state, **attrs)
        return [buffer.stored() for buffer in state]

    # The powers are the betas' before the step; the weight decays by the share 0.1 * 0.2 of itself.
    actual = step("ApplyAdamW", 0.81, 0.99**2, 0.1, 0.2, 0.9, 0.99, 1e-8, g, maximize=maximize, amsgrad=False)
    expected_of_w = [expected[0] - 0.02 * x, *expected[1:]]
    for got, wanted in zip(actual, expected_of_w, strict=True):
        assert_close(got, wanted.float(), terms=16)
    if maximize:
        with pytest.raises(RuntimeError, match="amsgrad = false only"):
            step("ApplyAdamW", 0.81, 0.99**2, 0.1, 0.2, 0.9, 0.99, 1e-8, g, amsgrad=True)
        return
    # Here the powers are those after it, and epsilon is too small to tell where it is added.
    actual = step("ApplyAdamD", 0.9**3, 0.99**3, 0.1, 0.9, 0.99, 1e-12, g, use_nesterov=False)
    for got, wanted in zip(actual, expected, strict=True):
        assert_close(got, wanted.float(), terms=16)
    # No correction of the bias; the gradient is halved, as its norm 8 is twice the most that is allowed.
    actual = step("ApplyAdamV2", 0.1, 0.9, 0.99, 1e-8, g, 4.0, 8.0, 0.2, adam_mode="adam")
    mean, square = 0.9 * m + 0.1 * g / 2, 0.99 * v + 0.01 * (g / 2) ** 2
    assert_close(actual[0], x - 0.1 * mean / square.sqrt() - 0.02 * x, terms=16)
    actual = step("ApplyAdamV2", 0.1, 0.9, 0.99, 1e-8, g, 4.0, 8.0, 0.2, 0.3, adam_mode="mbart_adam")
    assert_close(actual[0], x - 0.3 * expected[1].float() / expected[2].float().sqrt() - 0.02 * x, terms=16)


def test_statistics_of_batch_norm_over_devices() -> None:
    parts = [torch.randn(n, 3) for n in (4, 7)]
    sums, squares = (torch.stack([f(part).sum(0) for part in parts]) for f in (lambda t: t, torch.square))
    running = [torch.randn(3), torch.rand(3)]
    outputs = [Buffer((3,), torch.float32) for _ in range(4)]
    inputs = [Buffer.of(t) for t in (sums, squares, torch.tensor([4.0, 7.0]), *running)]
    run("SyncBatchNormGatherStats", inputs, outputs, momentum=0.25, eps=1e-3)
    whole = torch.cat(parts).double()
    mean, variance = whole.mean(0), whole.var(0, unbiased=False)
    expected = [mean, (variance + 1e-3).rsqrt(), 0.25 * mean + 0.75 * running[0], 0.25 * variance + 0.75 * running[1]]
    for out, wanted in zip(outputs, expected, strict=True):
        assert_close(out.stored(), wanted.float(), terms=64)


def sampled(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """What DeformableOffsets computes with a kernel of 2 x 3, stride 2 x 1, padding 1 and one group, tap by tap."""
    (height, width), (rows, columns) = x.shape[1:3], offsets.shape[1:3]
    planes = offsets.unflatten(3, (3, 2, 3))
    out = []
    for row in range(rows):
        for down in range(2):
            for column in range(columns):
                for across in range(3):
                    dx, dy, mask = planes[0, row, column, :, down, across]
                    y, x_ = row * 2 - 1 + down + dy, column - 1 + across + dx
                    value = torch.zeros(x.shape[3], dtype=x.dtype)
                    for i in (y.floor().long(), y.floor().long() + 1):
                        for j in (x_.floor().long(), x_.floor().long() + 1):
                            if 0 <= i < height and 0 <= j < width:
                                value = value + x[0, i, j] * (1 - (y - i).abs()) * (1 - (x_ - j).abs())
                    out.append(value * mask)
    return torch.stack(out).view(1, rows * 2, columns * 3, -1)


def test_deformable_offsets_and_their_gradients() -> None:
    x = torch.randn(1, 5, 4, 2).requires_grad_()
    offsets = (torch.randn(1, 3, 4, 3 * 6) * 1.5).requires_grad_()
    lists = {"ksize": (2, 3), "strides": (1, 2, 1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1, 1, 1)}
    kind = {"deformable_groups": 1, "modulated": True, "data_format": "NHWC"}
    expected = sampled(x.double(), offsets.double())
    plain = [x.detach(), offsets.detach()]
    actual = call("DeformableOffsets", *plain, like=torch.empty(expected.shape), **lists, **kind)
    assert_close(actual, expected.detach().float(), terms=64)
    grad = torch.randn(expected.shape)
    expected.backward(grad.double())
    outputs = [Buffer(t.shape, t.dtype) for t in plain]
    run("DeformableOffsetsGrad", [Buffer.of(t) for t in (grad, *plain)], outputs, **lists, **kind)
    for out, leaf in zip(outputs, (x, offsets), strict=True):
        assert_close(out.stored(), leaf.grad, terms=256)


def test_gradient_of_dropout_after_softmax() -> None:
    x, mask, grad = torch.randn(2, 5).double().requires_grad_(), torch.rand(2, 5) < 0.7, torch.randn(2, 5)
    softmax = (x * 0.5).softmax(-1)
    (softmax * mask / 0.7).backward(grad.double())
    inputs = grad, mask.to(torch.uint8), softmax.detach().float()
    actual = call("DropoutWithMulsAndSoftmaxGrad", *inputs, like=grad, alpha=0.5, input_keep_prob=0.7, axes=(-1,))
    assert_close(actual, x.grad.float(), terms=16)


def test_random_numbers_follow_seed_and_offset() -> None:
    def draw(seed: int, offset: int) -> torch.Tensor:
        size, key = torch.tensor([1000]), torch.tensor([seed])
        counter, algorithm = torch.tensor([0, offset]), torch.tensor(1, dtype=torch.int32)
        return call("StatelessRandomNormalV2", size, key, counter, algorithm, like=torch.empty(1000)).clone()

    first = draw(3, 0)
    assert torch.equal(draw(3, 0), first)
    assert not torch.equal(draw(3, 8), first)
    assert not torch.equal(draw(4, 0), first)
    assert abs(first.mean()) < 0.2


FORMATS = [
    (FRACTAL_NZ, (5, 18, 33), (5, 3, 2, 16, 16)),
    (FRACTAL_NZ, (7,), (1, 1, 16, 16)),
    (NC1HWC0, (2, 18, 3, 4), (2, 2, 3, 4, 16)),
    (FRACTAL_Z, (18, 20, 3, 2), (2 * 3 * 2, 2, 16, 16)),
    (NDC1HWC0, (2, 18, 2, 3, 4), (2, 2, 2, 3, 4, 16)),
    (FRACTAL_Z_3D, (18, 20, 2, 3, 2), (2 * 2 * 3 * 2, 2, 16, 16)),
]


@pytest.mark.parametrize(("form", "dims", "storage"), FORMATS)
def test_formats_there_and_back(form: int, dims: tuple[int, ...], storage: tuple[int, ...]) -> None:
    x = torch.randn(dims, dtype=torch.float16)
    inner, back = Buffer(dims, x.dtype, form, storage), Buffer.of(torch.zeros_like(x))
    run("Identity", [Buffer.of(x)], [inner])
    assert not torch.equal(inner.stored().flatten()[: x.numel()], x.flatten())
    assert torch.equal(inner.stored().float().sum(), x.double().sum().float()) or inner.stored().numel() > x.numel()
    run("Identity", [inner], [back])
    assert torch.equal(back.stored(), x)


def test_where_elements_lie_in_a_format() -> None:
    x = torch.arange(20 * 18.0).view(20, 18)
    inner = Buffer((20, 18), x.dtype, FRACTAL_NZ, (2, 2, 16, 16))
    run("TransData", [Buffer.of(x)], [inner])
    assert inner.stored()[1, 1, 3, 1] == x[19, 17]
    assert inner.stored()[1, 1, 4:].eq(0).all()  # filled up with zeros
    image = torch.arange(2 * 18 * 3 * 4.0).view(2, 18, 3, 4)
    inner = Buffer(image.shape, x.dtype, NC1HWC0, (2, 2, 3, 4, 16))
    run("TransData", [Buffer.of(image)], [inner])
    assert inner.stored()[1, 1, 2, 3, 1] == image[1, 17, 2, 3]


def test_matmul_of_internal_formats() -> None:
    x, y = torch.randn(17, 20), torch.randn(20, 5)
    packed = [
        Buffer((17, 20), x.dtype, FRACTAL_NZ, (2, 2, 16, 16)),
        Buffer((20, 5), x.dtype, FRACTAL_NZ, (1, 2, 16, 16)),
    ]
    for plain, buffer in zip((x, y), packed, strict=True):
        run("Identity", [Buffer.of(plain)], [buffer])
    out, plain = Buffer((17, 5), x.dtype, FRACTAL_NZ, (1, 2, 16, 16)), Buffer((17, 5), x.dtype)
    run("MatMul", packed, [out], transpose_x1=False, transpose_x2=False)
    run("Identity", [out], [plain])
    assert_close(plain.stored(), x @ y, terms=20)


def outputs_of(
    op: str, inputs: Sequence[torch.Tensor | None], *shapes: Sequence[int], **attrs: Any
) -> list[torch.Tensor]:
    outputs = [Buffer(shape, torch.float32) for shape in shapes]
    run(op, [Buffer.absent() if t is None else Buffer.of(t.detach()) for t in inputs], outputs, **attrs)
    return [out.stored() for out in outputs]


@pytest.mark.parametrize("apart", [False, True])
def test_long_short_term_memory_and_its_gradients(apart: bool) -> None:
    layer = torch.nn.LSTM(3, 5).double()
    x = torch.randn(4, 2, 3).double().requires_grad_()
    h, c = (torch.randn(1, 2, 5).double().requires_grad_() for _ in range(2))
    y, (last_h, last_c) = layer(x, (h, c))
    wx, wh = layer.weight_ih_l0, layer.weight_hh_l0
    weights = [wx.t(), wh.t()] if apart else [torch.cat([wx, wh], 1).t()]
    bias = layer.bias_ih_l0 + layer.bias_hh_l0
    op, order = ("DynamicRNNV2", "ifco") if apart else ("DynamicRNN", "ifjo")
    inputs = [t.float() for t in (x, *weights, bias)]
    forward = [*inputs, None, h.float(), c.float()]
    found = outputs_of(op, forward, *[(4, 2, 5)] * 8, gate_order=order)
    assert_close(found[0], y.detach().float(), terms=64)
    assert torch.equal(found[1], found[0])
    assert_close(found[2][-1], last_c[0].detach().float(), terms=64)

    dy, dh, dc = torch.randn(4, 2, 5), torch.randn(2, 5), torch.randn(2, 5)
    torch.autograd.backward([y, last_h, last_c], [dy.double(), dh[None].double(), dc[None].double()])
    given = inputs[: 1 + len(weights)] + ([] if apart else [inputs[-1]])
    states = [found[0], h[0].float(), c[0].float(), *found[1:3], dy, dh, dc, *found[3:]]
    expected = [wx.grad.t(), wh.grad.t()] if apart else [torch.cat([wx.grad, wh.grad], 1).t()]
    expected += [layer.bias_ih_l0.grad, x.grad, h.grad[0], c.grad[0]]
    grads = outputs_of(op + "Grad", given + states, *[t.shape for t in expected], gate_order="ifjo")
    for actual, wanted in zip(grads, expected, strict=True):
        assert_close(actual, wanted.float(), terms=256)


@pytest.mark.parametrize("backward", [False, True])
def test_long_short_term_memory_of_sequences_that_end(backward: bool) -> None:
    layer, x, lengths = torch.nn.LSTM(3, 5).double(), torch.randn(4, 2, 3), [4, 2]
    mask = (torch.arange(4)[:, None] < torch.tensor(lengths)).float()[..., None].expand(4, 2, 5).contiguous()
    weight = torch.cat([layer.weight_ih_l0, layer.weight_hh_l0], 1).t()
    bias, zero = layer.bias_ih_l0 + layer.bias_hh_l0, torch.zeros(1, 2, 5)
    inputs = [x, weight.float(), bias.float(), mask, zero, zero]
    direction = "REDIRECTIONAL" if backward else "UNIDIRECTIONAL"
    found = outputs_of("DynamicRNN", inputs, *[(4, 2, 5)] * 8, gate_order="ifjo", direction=direction)
    for i, length in enumerate(lengths):
        sequence = x[:length, i].double()
        y, (h, _) = layer(sequence.flip(0) if backward else sequence)
        assert_close(found[0][:length, i], (y.flip(0) if backward else y).detach().float(), terms=64)
        assert_close(found[1][0 if backward else -1, i], h[0].detach().float(), terms=64)
        assert found[0][length:, i].eq(0).all()


def test_gated_recurrent_unit_and_its_gradients() -> None:
    layer = torch.nn.GRU(3, 5).double()
    x, h = torch.randn(4, 2, 3).double().requires_grad_(), torch.randn(1, 2, 5).double().requires_grad_()
    y, last = layer(x, h)
    weights = [layer.weight_ih_l0.t(), layer.weight_hh_l0.t()]
    forward = [t.float() for t in (x, *weights, layer.bias_ih_l0, layer.bias_hh_l0)]
    found = outputs_of(
        "DynamicGRUV2", [*forward, None, h.float()], *[(4, 2, 5)] * 6, gate_order="rzh", reset_after=True
    )
    assert_close(found[0], y.detach().float(), terms=64)
    dy, dh = torch.randn(4, 2, 5), torch.randn(2, 5)
    torch.autograd.backward([y, last], [dy.double(), dh[None].double()])
    inputs = [*forward[:3], found[0], h[0].float(), found[1], dy, dh, *found[2:]]
    expected = [
        layer.weight_ih_l0.grad.t(),
        layer.weight_hh_l0.grad.t(),
        layer.bias_ih_l0.grad,
        layer.bias_hh_l0.grad,
        x.grad,
        h.grad[0],
    ]
    grads = outputs_of("DynamicGRUV2Grad", inputs, *[t.shape for t in expected], gate_order="rzh", reset_after=True)
    for actual, wanted in zip(grads, expected, strict=True):
        assert_close(actual, wanted.float(), terms=256)
    with pytest.raises(RuntimeError, match="gate_order rzh"):
        outputs_of("DynamicGRUV2", [*forward, None, h.float()], *[(4, 2, 5)] * 6, gate_order="zrh")


def test_slices_with_steps() -> None:
    x = torch.arange(24.0).view(4, 6)
    bounds = [torch.tensor(values) for values in ([1, 0], [4, 5], [2, 3])]
    assert torch.equal(call("StridedSlice", x, *bounds, like=torch.empty(2, 2)), x[1:4:2, 0:5:3])
    assert torch.equal(call("StridedSlice", x, *bounds, like=torch.empty(2, 2), end_mask=2), x[1:4:2, 0::3])
    with pytest.raises(RuntimeError, match="no StridedSlice with new_axis_mask"):
        call("StridedSlice", x, *bounds, like=torch.empty(2, 2), new_axis_mask=1)


@pytest.mark.parametrize(("p", "code"), [(0, 0.0), (1, 1.0), (2.5, 2.5), (float("inf"), 2147483647.0)])
def test_norms_in_two_steps(p: float, code: float) -> None:
    x = torch.randn(3, 5)
    powers = call("LpNormReduceV2", x, like=torch.empty(3), p=code, axes=(1,), keepdim=False)
    assert_close(call("LpNormUpdateV2", powers.clone(), like=powers, p=code), x.norm(p, 1), terms=16)


def test_overlaps_whose_sides_are_longer_by_eps() -> None:
    found, truth = torch.tensor([[0.0, 0, 10, 10], [10, 10, 20, 20]]), torch.tensor([[0.0, 0, 10, 20]])
    shared = 100.0
    united = 10.01 * 10.01 + 10.01 * 20.01 - shared
    assert_close(
        call("Iou", found, truth, like=torch.empty(1, 2), eps=0.01), torch.tensor([[shared / united, 0]]), terms=4
    )
    actual = call("Iou", found, truth, like=torch.empty(1, 2), eps=0.01, mode="iof")
    assert_close(actual, torch.tensor([[shared / (10.01 * 20.01), 0]]), terms=4)


def test_anchors_answer_for_boxes() -> None:
    overlaps = torch.tensor([[0.9, 0.2, 0.4, 0.0], [0.1, 0.3, 0.4, 0.0]])
    own, box = overlaps.max(0)
    of_box, anchor = overlaps.max(1)
    flags = torch.tensor([1, 1, 1, 0], dtype=torch.uint8)
    inputs = [torch.zeros(4), overlaps, flags, own, box, of_box, anchor, torch.tensor([2])]
    limits = {"pos_iou_thr": 0.5, "min_pos_iou": 0.3, "gt_max_assign_all": True}
    assert call("GridAssignPositive", *inputs, like=torch.empty(4), **limits).tolist() == [1, 0, 2, 0]


@pytest.mark.parametrize("with_offset", [False, True])
def test_scale_that_reproduces_data_best(with_offset: bool) -> None:
    x = torch.randn(2000).clamp(-3, 3)
    sums = torch.histc(x, 128, x.min().item(), x.max().item()).cumsum(0).int()
    scale, offset = (Buffer((1,), torch.float32) for _ in range(2))
    inputs = [x, x.min().view(1), x.max().view(1), sums]
    search = {"min_percentile": 0.999, "max_percentile": 0.999, "search_step": 0.05, "with_offset": with_offset}
    run("IFMR", [Buffer.of(t) for t in inputs], [scale, offset], search_range=(0.7, 1.3), **search)
    step, zero = scale.stored(), offset.stored()
    near = (((x / step).round() + zero).clamp(-128, 127) - zero) * step
    assert (near - x).abs().max() < 8 / 255  # of a range of 6, cut off somewhat at its ends


def test_targets_of_boxes() -> None:
    anchors, truth = boxes(6).t().contiguous(), boxes(6).t().contiguous()
    stride = torch.full((6,), 8, dtype=torch.int32)
    expected = torch.ops.npu.npu_yolo_boxes_encode(anchors, truth, stride)
    assert_close(call("YoloBoxesEncode", anchors, truth, stride, like=expected), expected, terms=16)
    weight = [1.0, 2, 1, 0.5, 3]
    turned = [torch.cat([b.t(), torch.rand(1, 6) * 80 - 40])[None] for b in (anchors, truth)]
    expected = torch.ops.npu.npu_rotated_box_encode(*turned, torch.tensor(weight))
    targets = call("RotatedBoxEncode", *turned, like=expected, weight=weight)
    assert_close(targets, expected, terms=16)
    decoded = call("RotatedBoxDecode", turned[0], targets.clone(), like=turned[1], weight=weight)
    assert_close(decoded, torch.ops.npu.npu_rotated_box_decode(turned[0], targets, torch.tensor(weight)), terms=64)


def test_pooling_of_regions_and_its_gradients() -> None:
    x, corner = torch.randn(2, 3 * 4, 9, 8), torch.rand(2, 2, 5) * 5
    rois = torch.cat(
        [torch.tensor([0.0, 1]).view(2, 1, 1).expand(2, 1, 5), corner, corner + torch.rand(2, 2, 5) * 4], 1
    )
    kind = {"spatial_scale": 0.75, "group_size": 2, "output_dim": 3}
    expected = torch.ops.npu.npu_ps_roi_pooling(x, rois, 0.75, 2, 3)
    assert_close(call("PSROIPoolingV2", x, rois, like=expected, **kind), expected, terms=64)
    grad = torch.randn_like(expected)
    expected = torch.ops.npu.npu_ps_roi_pooling_backward(grad, rois, 0.75, 2, 3, [9, 8])
    assert_close(call("PSROIPoolingGradV2D", grad, rois, like=x, **kind, input_size=(9, 8)), expected, terms=64)
    flat = rois.permute(0, 2, 1).reshape(10, 5)
    grad = torch.randn(10, 12, 3, 2)
    for mode, points in ((0, 2), (1, 0), (2, 3)):
        expected = torch.ops.npu.npu_roi_alignbk(grad, flat, list(x.shape), 2, 3, 0.75, points, mode)
        sizes = {"pooled_height": 3, "pooled_width": 2, "sample_num": points, "roi_end_mode": mode}
        actual = call("ROIAlignGrad", grad, flat, like=x, xdiff_shape=tuple(x.shape), spatial_scale=0.75, **sizes)
        assert_close(actual, expected, terms=64)


def test_log_softmax() -> None:
    x = torch.randn(3, 5)
    assert_close(call("LogSoftmaxV2", x, like=x, axes=(0,)), x.log_softmax(0), terms=8)


def test_overflow_raises_no_flags() -> None:
    flags = call("NPUAllocFloatStatus", like=torch.ones(8))
    assert flags.eq(0).all()
    assert call("NPUGetFloatStatusV2", like=torch.ones(8, dtype=torch.int32)).eq(0).all()
    assert call("NPUClearFloatStatus", flags, like=torch.ones(8)).eq(0).all()
    run("NPUClearFloatStatusV2", [], [])


def test_refusals_name_the_operator() -> None:
    x = torch.randn(3)
    with pytest.raises(RuntimeError, match="no legacy operator NoSuchOperator"):
        call("NoSuchOperator", x, like=x)
    with pytest.raises(RuntimeError, match=r"legacy Slice\(float32\[3\]\): input 1 is missing"):
        call("Slice", x, like=x)
    with pytest.raises(RuntimeError, match="attribute alpha is missing"):
        call("AxpyWithSoftmaxAndDropOutDoMask", x, x, x, like=x)
    short = Buffer((3,), torch.float32, FRACTAL_NZ, (9, 9, 16, 16))
    short.storage_dims = (3,)
    with pytest.raises(RuntimeError, match=r"internal format|shape"):
        run("Add", [Buffer.of(x), Buffer.of(x)], [short])
