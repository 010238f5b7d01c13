"""Deformable convolution and attention with projections (torch_npu/composed/convolution.py, attention.py)."""

import math

import numpy as np
import pytest
import torch

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])

# Kernel, stride, padding (top, bottom, left, right), dilation, groups, deformable groups.
GEOMETRIES = {
    "plain": ((3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, 1),
    "strided": ((2, 3), (2, 1), (1, 0, 2, 1), (1, 2), 2, 1),
    "groups": ((1, 2), (1, 2), (0, 0, 0, 1), (2, 1), 1, 2),
}


def sampled(x: np.ndarray, offset: np.ndarray, geometry: tuple, planes: int) -> np.ndarray:
    """What the taps read, pixel by pixel."""
    kernel, stride, padding, dilation, _, groups = geometry
    n, channels, height, width = x.shape
    rows, columns = offset.shape[2:]
    offset = offset.reshape(n, planes, groups, *kernel, rows, columns)
    y = np.zeros((n, channels, rows * kernel[0], columns * kernel[1]))
    for image, c, i, j, a, b in np.ndindex(n, channels, rows, columns, *kernel):
        g = c // (channels // groups)
        px = j * stride[1] - padding[2] + b * dilation[1] + offset[image, 0, g, a, b, i, j]
        py = i * stride[0] - padding[0] + a * dilation[0] + offset[image, 1, g, a, b, i, j]
        top, left = math.floor(py), math.floor(px)
        value = 0.0
        for h, w in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
            if 0 <= h < height and 0 <= w < width:
                value += (1 - abs(py - h)) * (1 - abs(px - w)) * x[image, c, h, w]
        factor = offset[image, 2, g, a, b, i, j] if planes == 3 else 1
        y[image, c, i * kernel[0] + a, j * kernel[1] + b] = value * factor
    return y


def layer(name: str, modulated: bool) -> tuple[list[torch.Tensor], dict[str, object]]:
    kernel, stride, padding, dilation, groups, deformable = GEOMETRIES[name]
    x, weight = torch.randn(2, 4, 5, 6).double(), torch.randn(6, 4 // groups, *kernel).double()
    rows = (5 + padding[0] + padding[1] - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
    columns = (6 + padding[2] + padding[3] - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
    planes = (3 if modulated else 2) * deformable * kernel[0] * kernel[1]
    offset, bias = torch.randn(2, planes, rows, columns).double(), torch.randn(6).double()
    options = {
        "kernel_size": kernel,
        "stride": (1, 1, *stride),
        "padding": padding,
        "dilation": (1, 1, *dilation),
        "groups": groups,
        "deformable_groups": deformable,
        "modulated": modulated,
    }
    return [x, weight, offset, bias], options


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("modulated", [True, False])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_deformable_convolution(device, dtype, modulated, name):
    tensors, options = layer(name, modulated)
    x, weight, offset, bias = (t.to(dtype) for t in tensors)
    taps = sampled(x.double().numpy(), offset.double().numpy(), GEOMETRIES[name], 3 if modulated else 2)
    taps = torch.from_numpy(taps)
    expected = torch.nn.functional.conv2d(
        taps, weight.double(), bias.double(), options["kernel_size"], groups=options["groups"]
    )
    on_device = [t.to(device) for t in (x, weight, offset, bias)]
    y, read = torch_npu.npu_deformable_conv2d(*on_device, **options)
    assert y.dtype == read.dtype == dtype
    assert_close(read, taps, terms=16)
    assert_close(y, expected, terms=64)
    without, _ = torch_npu.npu_deformable_conv2d(*on_device[:3], None, **options)
    assert_close(without, expected - bias.double().view(-1, 1, 1), terms=64)


@DEVICES
@pytest.mark.parametrize("modulated", [True, False])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_gradients_of_deformable_convolution(device, modulated, name):
    tensors, options = layer(name, modulated)
    tensors = [t.to(device).requires_grad_() for t in tensors]
    y, read = torch_npu.npu_deformable_conv2d(*tensors, **options)
    grad = torch.randn_like(y)
    y.backward(grad)
    x, weight, offset, bias = tensors
    with torch.no_grad():
        actual = torch_npu.npu_deformable_conv2dbk(x, grad, read, weight, offset, **options)
    for gradient, tensor in zip(actual, (x, weight, offset, bias), strict=True):
        torch.testing.assert_close(gradient, tensor.grad, rtol=1e-9, atol=1e-11)


def test_deformable_convolution_has_the_gradient_of_its_formula():
    tensors, options = layer("groups", True)
    tensors = [t[:1] if i in (0, 2) else t for i, t in enumerate(tensors)]
    inputs = [t.requires_grad_() for t in tensors]
    assert torch.autograd.gradcheck(lambda *t: torch_npu.npu_deformable_conv2d(*t, **options)[0], inputs)


@DEVICES
@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, False), (False, True, True)])
def test_conv2d_backward(device, wanted):
    x, weight = torch.randn(2, 4, 7, 9).double(), torch.randn(6, 2, 3, 2).double()
    bias = torch.randn(6).double()
    inputs = [t.to(device).requires_grad_() for t in (x, weight, bias)]
    y = torch.nn.functional.conv2d(*inputs, (2, 1), (1, 2), (1, 2), 2)
    grad = torch.randn_like(y)
    y.backward(grad)
    with torch.no_grad():
        x, weight = inputs[:2]
        actual = torch_npu.npu_conv2d_backward(x, grad, weight, (2, 1), (1, 2), (1, 2), 2, wanted)
    for gradient, tensor, is_wanted in zip(actual, inputs, wanted, strict=True):
        if is_wanted:
            torch.testing.assert_close(gradient, tensor.grad, rtol=1e-10, atol=1e-11)


def attention(heads: int, width: int, source: int, target: int, batch: int, biased: bool) -> list[torch.Tensor | None]:
    size, inner = 10, heads * width
    q, k, v = (torch.randn(batch * n, size) for n in (target, source, source))
    weights = [torch.randn(inner, size) / 3 for _ in range(3)]
    mask = torch.randn(batch, 1, target, source)
    biases = [torch.randn(n) if biased else None for n in (inner, inner, inner, size)]
    return [q, k, v, *weights, mask, torch.randn(size, inner) / 3, *biases]


@DEVICES
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("in_float", [True, False])
def test_multi_head_attention(device, biased, p, in_float):
    heads, width, source, target, batch = 3, 5, 7, 4, 2
    tensors = attention(heads, width, source, target, batch, biased)
    on_device = [t if t is None else t.to(device).requires_grad_() for t in tensors]
    sizes = (heads, width, source, target, p, in_float)
    bits = torch_npu.npu_dropout_gen_mask([batch, heads, target, source], p, device=torch.device(device))
    results = torch_npu.npu_multi_head_attention(*on_device, bits, *sizes)
    keep = np.unpackbits(bits.cpu().numpy(), bitorder="little")[: batch * heads * target * source]
    keep = torch.from_numpy(keep).view(batch, heads, target, source) / (1 - p)

    wide = [t if t is None else t.detach().double().requires_grad_() for t in tensors]
    query, key, value, q_weight, k_weight, v_weight, mask, out_weight, *biases = wide
    linear = torch.nn.functional.linear
    q = linear(query, q_weight, biases[0]).view(batch, target, heads, width).transpose(1, 2) / width**0.5
    k = linear(key, k_weight, biases[1]).view(batch, source, heads, width).transpose(1, 2)
    v = linear(value, v_weight, biases[2]).view(batch, source, heads, width).transpose(1, 2)
    softmax = (q @ k.mT + mask).softmax(-1)
    context = (softmax * keep @ v).transpose(1, 2).reshape(batch * target, heads * width)
    output = linear(context, out_weight, biases[3])
    assert torch.equal(results[1], bits)
    expected = (output, q, k, v, softmax, softmax * keep, context)
    for actual, reference in zip([results[0], *results[2:]], expected, strict=True):
        assert_close(actual.detach(), reference.detach(), terms=100)
        assert actual.requires_grad == (actual is results[0])
    grad = torch.randn_like(results[0])
    results[0].backward(grad)
    output.backward(grad.cpu().double())
    for actual, reference in zip(on_device, wide, strict=True):
        if actual is not None:
            assert_close(actual.grad, reference.grad, terms=400)


def test_attention_draws_a_mask_where_none_is_given():
    tensors = [t if t is None else t.npu() for t in attention(2, 8, 16, 16, 1, False)]
    mask, dropped = (torch_npu.npu_multi_head_attention(*tensors, None, 2, 8, 16, 16, 0.5, True)[i] for i in (1, 6))
    assert mask.numel() == 2 * 16 * 16 // 8
    assert dropped.count_nonzero() < dropped.numel()


def test_refusals():
    tensors, options = layer("plain", True)
    with pytest.raises(ValueError, match=r"offset \[2, 54, H, W\] .* got \[\[2, 27, 5, 6\]"):
        torch_npu.npu_deformable_conv2d(*tensors, **options | {"deformable_groups": 2})
    x, weight = tensors[:2]
    with pytest.raises(ValueError, match=r"padding of two numbers, got .*\[1, 2, 1, 1\]"):
        torch_npu.npu_conv2d_backward(x, x, weight, (1, 1), (1, 2, 1, 1), (1, 1), 1, (True, True, True))
    inputs = attention(2, 8, 16, 16, 1, False)
    with pytest.raises(ValueError, match=r"query \[B \* 15, E\]"):
        torch_npu.npu_multi_head_attention(*inputs, None, 2, 8, 16, 15, 0.5, True)
    with pytest.raises(ValueError, match=r"weights of 24 rows, got \[16, 10\]"):
        torch_npu.npu_multi_head_attention(*inputs, None, 3, 8, 16, 16, 0.5, True)


FORWARD = {"npu_convolution": (2, 3), "npu_conv3d": (3,)}
TRANSPOSED = {"npu_convolution_transpose": (2, 3), "npu_conv_transpose2d": (2,)}


@DEVICES
@pytest.mark.parametrize(("name", "spatial"), [(n, s) for n, ranks in FORWARD.items() for s in ranks])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_under_other_names(device, name, spatial, groups):
    x, weight, bias = torch.randn(2, 4, *[6] * spatial), torch.randn(6, 4 // groups, *[3] * spatial), torch.randn(6)
    options = ([2] * spatial, [1] * spatial, [1] * spatial, groups)
    leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
    expected = torch.convolution(*leaves, *options[:3], False, [0] * spatial, groups)
    given = [t.to(device) for t in (x, weight, bias)]
    actual = getattr(torch_npu, name)(*given, *options)
    assert_close(actual, expected.detach(), terms=36)
    grad = torch.randn(expected.shape)
    expected.backward(grad.double())
    results = getattr(torch_npu, f"{name}_backward")(given[0], grad.to(device), given[1], *options, [True] * 3)
    for result, leaf in zip(results, leaves, strict=True):
        assert_close(result, leaf.grad, terms=256)
    assert (
        getattr(torch_npu, f"{name}_backward")(given[0], grad.to(device), given[1], *options, [True, True, False])[2]
        is None
    )
    if name == "npu_conv3d":
        out = torch.empty_like(actual)
        assert torch_npu.npu_conv3d(*given, *options, out=out) is out
        assert torch.equal(out, actual)


@DEVICES
@pytest.mark.parametrize(("name", "spatial"), [(n, s) for n, ranks in TRANSPOSED.items() for s in ranks])
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions_under_other_names(device, name, spatial, groups):
    x, weight, bias = torch.randn(2, 4, *[4] * spatial), torch.randn(4, 3, *[3] * spatial), torch.randn(3 * groups)
    options = ([1] * spatial, [1] * spatial, [2] * spatial, [1] * spatial, groups)
    leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
    padding, output_padding, stride, dilation = options[:4]
    expected = torch.convolution(*leaves, stride, padding, dilation, True, output_padding, groups)
    given = [t.to(device) for t in (x, weight, bias)]
    assert_close(getattr(torch_npu, name)(*given, *options), expected.detach(), terms=36)
    grad = torch.randn(expected.shape)
    expected.backward(grad.double())
    names = [f"{name}_backward", "npu_conv_transpose3d_backward" if spatial == 3 else "npu_conv_transpose2d_backward"]
    for backward in names:
        results = getattr(torch_npu, backward)(given[0], grad.to(device), given[1], *options, [True] * 3)
        for result, leaf in zip(results, leaves, strict=True):
            assert_close(result, leaf.grad, terms=512)


def test_refused_ranks():
    x = torch.zeros(2, 3, 4)
    with pytest.raises(ValueError, match="an input of 4 or 5 dimensions"):
        torch_npu.npu_convolution(x, x, None, [1], [0], [1], 1)
    with pytest.raises(ValueError, match="an input of 5 dimensions"):
        torch_npu.npu_conv3d(x, x, None, [1], [0], [1], 1)
    with pytest.raises(ValueError, match="an input of 4 dimensions"):
        torch_npu.npu_conv_transpose2d(x, x, None, [0], [0], [1], [1], 1)
