"""Functions and layers of torch_npu.contrib under the names of Ascend's plug-in."""

import copy

import pytest
import torch
import torch.nn.functional as F

import torch_npu.contrib
from tests.tolerance import assert_close
from torch_npu.contrib import function, module
from torch_npu.contrib.module.npu_modules import DropoutWithByteMask


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(7)


def test_names_are_in_contrib_itself():
    for package in (function, module):
        for name in package.__all__:
            assert getattr(torch_npu.contrib, name) is getattr(package, name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        torch_npu.contrib.nothing  # noqa: B018


def test_calls_of_pytorch():
    a, b = torch.randn(2, 3, 4, 5, device="npu"), torch.randn(2, 3, 6, 5, device="npu")
    torch.testing.assert_close(function.matmul_transpose(a, b), a @ b.mT)
    assert torch.equal(function.roll(a, (-1, 2), (1, 2)), torch.roll(a, (-1, 2), (1, 2)))
    x = function.npu_fast_condition_index_put(a, a < 0.5, 3)
    assert torch.equal(x, a.masked_fill(a < 0.5, 3))
    assert x.dtype == a.dtype
    with pytest.raises(TypeError, match=r"got torch\.int64"):
        function.npu_fast_condition_index_put(a, a.long(), 3)
    with pytest.raises(ValueError, match="two shifts"):
        function.roll(a, (1,), (1,))


@pytest.mark.parametrize("mask_shape", [(2, 3, 4, 5), (2, 1, 1, 5)])
def test_attention_weights(mask_shape):
    scores, mask = torch.randn(2, 3, 4, 5, device="npu"), torch.randn(mask_shape, device="npu")
    dropout = torch.nn.Dropout(0.5).eval()
    y = function.fuse_add_softmax_dropout(False, dropout, mask, scores, 16, p=0.5)
    assert_close(y, (mask.cpu().double() + scores.cpu().double() / 4).softmax(-1), terms=5)
    dropped = function.fuse_add_softmax_dropout(True, dropout.train(), mask, scores, 16, p=0.5)
    assert 0 < (dropped == 0).sum() < dropped.numel()


def test_overlaps_of_boxes():
    start = torch.rand(6, 2, device="npu")
    boxes = torch.cat([start, start + 1], 1)
    first, second = boxes[:4], boxes[2:]
    expected = torch_npu.npu_iou(second * 100, first * 100)
    assert torch.equal(function.npu_iou(first, second, is_normalized=True), expected)
    assert function.npu_giou(first, second).shape == (4, 1)
    for overlap in (function.npu_diou, function.npu_ciou):
        assert torch.allclose(overlap(first.t(), first.t()), torch.ones(1, 4, device="npu"), atol=1e-4)
    with pytest.raises(ValueError, match="'iou' or 'ptiou', got 'x'"):
        function.npu_iou(first, second, "x")


def test_coding_of_boxes():
    anchors = torch.tensor([[10, 20, 30, 60], [5, 5, 9, 50]], device="npu")
    truth = anchors + torch.tensor([[1, -2, 5, 3], [0, 1, 2, 3]], device="npu")
    stds = [0.1, 0.1, 0.2, 0.2]
    deltas = function.npu_bbox_coder_encode_xyxy2xywh(anchors, truth, stds=stds)
    back = function.npu_bbox_coder_decode_xywh2xyxy(anchors, deltas, stds=stds)
    torch.testing.assert_close(back, truth.float(), rtol=1e-4, atol=1e-3)
    same = function.npu_bbox_coder_encode_xyxy2xywh(anchors / 64, truth / 64, None, stds, True, 64)
    torch.testing.assert_close(same, deltas)
    stride = torch.tensor([4, 8], device="npu")
    expected = torch_npu.npu_yolo_boxes_encode(anchors.float(), truth.float(), stride.int())
    assert torch.equal(function.npu_bbox_coder_encode_yolo(anchors, truth, stride), expected)
    flags = function.npu_single_level_responsible_flags((8, 8), anchors, (8, 8), 2)
    assert flags.sum() == 4


def test_suppression_of_one_image_is_that_of_a_batch():
    start = torch.rand(2, 9, 2, device="npu")
    boxes, scores = torch.cat([start, start + 1], 2), torch.rand(2, 9, 4, device="npu")
    factors = torch.rand(2, 9, device="npu")
    best, classes = function.npu_batched_multiclass_nms(boxes, scores, 0.1, 0.4, 5, factors)
    assert best.shape == (2, 5, 5)
    assert classes.shape == (2, 5)
    one = function.npu_multiclass_nms(boxes[1], scores[1], 0.1, 0.4, 5, factors[1])
    assert torch.equal(one[0], best[1])
    assert torch.equal(one[1], classes[1])
    top = (scores[1, :, :-1].half().cpu() * factors[1].half().cpu()[:, None]).max()
    torch.testing.assert_close(one[0][0, 4].cpu(), top, rtol=2e-3, atol=0)


def test_dropouts():
    x = torch.ones(400, 50, device="npu", requires_grad=True)
    layer = DropoutWithByteMask(0.25)
    y = layer(x)
    assert abs((y == 0).float().mean().item() - 0.25) < 0.02
    y.sum().backward()
    assert torch.equal(x.grad, y)
    assert torch.equal(layer.eval()(x), x)
    with pytest.raises(ValueError, match="inplace=False"):
        function.dropout_with_byte_mask(x, inplace=True)
    with pytest.raises(ValueError, match="got 2"):
        DropoutWithByteMask(2)
    paths = module.NpuDropPath(0.5)
    y = paths(x)
    rows = set(map(tuple, y.detach().unique(dim=0).tolist()))
    assert rows == {(0.0,) * 50, (2.0,) * 50}
    assert paths.eval()(x) is x
    assert module.NpuDropPath()(x) is x


def test_label_smoothing():
    x, target = torch.randn(6, 5, device="npu", requires_grad=True), torch.randint(0, 5, (6,), device="npu")
    loss = module.LabelSmoothingCrossEntropy(5, 0.1)(x, target)
    reference = x.detach().cpu().double().requires_grad_()
    labels = torch.full((6, 5), 0.1 / 4, dtype=torch.float64).scatter(1, target.cpu()[:, None], 0.9)
    expected = -(labels * reference.log_softmax(1)).sum(1).mean()
    assert_close(loss.detach(), expected.detach(), terms=30)
    loss.backward()
    expected.backward()
    assert_close(x.grad, reference.grad, terms=30)


def test_layers_of_models():
    x = torch.randn(3, 2, 4, device="npu")
    lstm = module.BiLSTM(4, 5).npu()
    reference = torch.nn.LSTM(4, 5, bidirectional=True)
    for name, value in lstm.fw_rnn.state_dict().items():
        reference.state_dict()[name].copy_(value)
        reference.state_dict()[name + "_reverse"].copy_(lstm.bw_rnn.state_dict()[name])
    assert_close(lstm(x).detach(), reference(x.cpu())[0].detach(), terms=20)

    a, b = torch.randn(2, 4, 3, device="npu"), torch.randn(2, 4, 3, device="npu")
    both = torch.cat((a, b), 1)
    expected = both.view(2, 2, 4, 3).transpose(1, 2).flatten(1, 2)
    assert torch.equal(module.ChannelShuffle(8, split_shuffle=False).npu()(a, b), expected)
    assert torch.equal(torch.cat(module.ChannelShuffle(8).npu()(a, b), 1), expected)

    image = torch.randn(2, 3, 6, 8, device="npu")
    focus = module.Focus(3, 5, 3).npu()
    parts = [image[..., ::2, ::2], image[..., 1::2, ::2], image[..., ::2, 1::2], image[..., 1::2, 1::2]]
    expected = F.conv2d(torch.cat(parts, 1), focus.conv.conv.weight, padding=1)
    expected = F.leaky_relu(F.batch_norm(expected, None, None, training=True), 0.1)
    torch.testing.assert_close(focus(image), expected, rtol=1e-4, atol=1e-5)
    assert module.Swish()(x).shape == x.shape


@pytest.mark.parametrize("aligned", [True, False])
def test_roi_align(aligned):
    x = torch.randn(2, 3, 8, 9, device="npu", requires_grad=True)
    rois = torch.tensor([[0, 1.0, 2, 9, 12], [1, 0, 0, 14, 6]], device="npu")
    layer = module.ROIAlign((2, 3), 0.5, 2, aligned)
    y = layer(x, rois)
    assert torch.equal(y, torch_npu.npu_roi_align(x, rois, 0.5, 2, 3, 2, 2 if aligned else 0))
    grad = torch.randn_like(y)
    y.backward(grad)
    # The layer is linear: <grad, layer(x)> = <gradient, x>.
    torch.testing.assert_close((x.grad * x).sum(), (y * grad).sum(), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"rois \[R, 5\], got \[5\]"):
        layer(x, rois[0])


def test_position_sensitive_pooling():
    x, rois = torch.randn(1, 8, 5, 5, device="npu"), torch.tensor([[[0.0], [0], [0], [7], [9]]], device="npu")
    y = module.PSROIPool(2, 2, 0.5, 2, 2)(x, rois)
    assert torch.equal(y, torch_npu.npu_ps_roi_pooling(x, rois, 0.5, 2, 2))
    with pytest.raises(ValueError, match=r"to be equal, got \(7, 7, 2\)"):
        module.PSROIPool(group_size=2)


def test_deformable_convolution_starts_as_a_plain_one():
    layer = module.ModulatedDeformConv(4, 6, 3, stride=2, padding=1).npu()
    x = torch.randn(2, 4, 7, 8, device="npu")
    plain = F.conv2d(x, layer.weight, None, 2, 1)
    torch.testing.assert_close(layer(x), plain / 2 + layer.bias.view(-1, 1, 1), rtol=1e-4, atol=1e-5)
    layer(x).sum().backward()
    assert layer.conv_offset.weight.grad.abs().sum() > 0

    given = module.DCNv2(4, 6, 3, stride=2, padding=1, pack=False, bias=False).npu()
    given.weight.data = copy.deepcopy(layer.weight.data)
    offsets, factors = torch.zeros(2, 18, 4, 4, device="npu"), torch.ones(2, 9, 4, 4, device="npu")
    torch.testing.assert_close(given((x, offsets, factors)), plain, rtol=1e-4, atol=1e-5)
    offsets[:, ::2] = 1  # of y
    lower = F.conv2d(F.pad(x, [0, 0, 0, 1])[:, :, 1:], layer.weight, None, 2, 1)
    inner = given((x, offsets, factors))[:, :, 1:]  # padding moves, too
    torch.testing.assert_close(inner, lower[:, :, 1:], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="without pack"):
        given(x)


def test_quantized_layers():
    x = torch.randint(-9, 9, (5, 16), dtype=torch.int8, device="npu")
    layer = module.LinearQuant(16, 12, bias=False, output_dtype=torch.float16).npu()
    layer.weight.data = torch.randint(-9, 9, (12, 16), dtype=torch.int8, device="npu")
    layer.scale.data = torch.rand(12, device="npu") + 0.1
    expected = (x.cpu().double() @ layer.weight.cpu().double().t()) * layer.scale.cpu().double()
    assert_close(layer(x), expected, terms=2)
    with pytest.raises(ValueError, match="both int8 or both int32"):
        layer(x.half())

    half = torch.randn(5, 16, dtype=torch.float16, device="npu")
    weights = module.LinearWeightQuant(16, 12, bias=False, antiquant_offset=True).npu()
    weights.weight.data = layer.weight.data
    weights.antiquant_scale.data = torch.rand(12, device="npu").half()
    weights.antiquant_offset.data = torch.rand(12, device="npu").half()
    whole = weights.weight.cpu().double() + weights.antiquant_offset.cpu().double()[:, None]
    expected = half.cpu().double() @ (whole * weights.antiquant_scale.cpu().double()[:, None]).t()
    assert_close(weights(half), expected, terms=64)


def test_prefetcher():
    pairs = [(torch.full((2, 3), float(i)), torch.tensor([i])) for i in range(3)]
    prefetcher = module.Prefetcher(pairs)
    for i in range(3):
        x, target = prefetcher.next()
        assert x.device.type == "npu"
        assert torch.equal(x.cpu(), pairs[i][0])
        assert target.item() == i
    assert prefetcher.next() == (None, None)
