"""Boxes of detectors (torch_npu/composed/boxes.py) against NumPy in float64."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
COUNTS = pytest.mark.parametrize("count", [0, 1, 13])


def corners(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    start, size = torch.rand(count, 2) * 20, torch.rand(count, 2) * 15 + 2
    return torch.cat([start, start + size], 1).to(dtype)


def centred(boxes: np.ndarray, last: int) -> list[np.ndarray]:
    x1, y1, x2, y2 = boxes.T
    return [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1 + last, y2 - y1 + last]


def float64(x: torch.Tensor) -> np.ndarray:
    return x.cpu().double().numpy()


@DEVICES
@DTYPES
@COUNTS
def test_bounding_boxes(device, dtype, count):
    means, stds = [0.1, 0.0, -0.2, 0.3], [0.1, 0.2, 0.5, 1.0]
    anchor, truth = corners(count, dtype), corners(count, dtype)
    a, t = centred(float64(anchor), 1), centred(float64(truth), 1)
    deltas = np.stack([(t[0] - a[0]) / a[2], (t[1] - a[1]) / a[3], np.log(t[2] / a[2]), np.log(t[3] / a[3])], 1)
    encoded = torch_npu.npu_bounding_box_encode(anchor.to(device), truth.to(device), *means, *stds)
    assert encoded.dtype == dtype
    assert_close(encoded, torch.from_numpy((deltas - means) / stds), terms=9)

    d = float64(encoded) * stds + means
    limit = -np.log(0.3)
    width, height = (a[2 + i] * np.exp(np.clip(d[:, 2 + i], -limit, limit)) for i in range(2))
    x, y = a[0] + a[2] * d[:, 0], a[1] + a[3] * d[:, 1]
    sides = [x - width / 2 + 0.5, y - height / 2 + 0.5, x + width / 2 - 0.5, y + height / 2 - 0.5]
    expected = np.stack([np.clip(side, 0, [29, 24][i % 2]) for i, side in enumerate(sides)], 1)
    decoded = torch_npu.npu_bounding_box_decode(anchor.to(device), encoded, *means, *stds, [25, 30], 0.3)
    assert_close(decoded, torch.from_numpy(expected), terms=9)


def test_bounding_boxes_come_back():
    anchor, truth = corners(31), corners(31)
    normal = [0.0] * 4 + [0.1, 0.1, 0.2, 0.2]
    encoded = torch_npu.npu_bounding_box_encode(anchor, truth, *normal)
    decoded = torch_npu.npu_bounding_box_decode(anchor, encoded, *normal, [1000, 1000], 1e-3)
    torch.testing.assert_close(decoded, truth, rtol=1e-5, atol=1e-4)


@DEVICES
@DTYPES
@pytest.mark.parametrize("count", [0, 1, 7])
def test_rotated_boxes(device, dtype, count):
    def boxes() -> torch.Tensor:
        angles = torch.rand(count, 1) * 120 - 60
        return torch.cat([corners(count), angles], 1).t().repeat(2, 1, 1).to(dtype)

    def parts(b: np.ndarray) -> list[np.ndarray]:
        w, h = np.maximum(b[:, 2] - b[:, 0], 1), np.maximum(b[:, 3] - b[:, 1], 1)
        return [b[:, 0] + w / 2, b[:, 1] + h / 2, w, h, np.tan(b[:, 4] * np.pi / 180)]

    anchor, truth = boxes(), boxes()
    weight = torch.tensor([1.0, 2.0, 0.5, 1.0, 4.0], dtype=dtype)
    a, t = parts(float64(anchor)), parts(float64(truth))
    first = [(t[0] - a[0]) / a[2], (t[1] - a[1]) / a[3], np.log(t[2] / a[2]), np.log(t[3] / a[3]), t[4] - a[4]]
    encoded = torch_npu.npu_rotated_box_encode(anchor.to(device), truth.to(device), weight.to(device))
    assert encoded.dtype == dtype
    assert_close(encoded, torch.from_numpy(np.stack(first, 1) * float64(weight)[:, None]), terms=30)

    d = float64(encoded) / float64(weight)[:, None]
    x, y = a[0] + d[:, 0] * a[2], a[1] + d[:, 1] * a[3]
    w, h = a[2] * np.exp(d[:, 2]), a[3] * np.exp(d[:, 3])
    angle = np.arctan(a[4] + d[:, 4]) * 180 / np.pi
    expected = np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2, angle], 1)
    decoded = torch_npu.npu_rotated_box_decode(anchor.to(device), encoded, weight.to(device))
    assert_close(decoded, torch.from_numpy(expected), terms=9)


@DEVICES
@DTYPES
@COUNTS
def test_yolo_boxes(device, dtype, count):
    anchor, truth = corners(count, dtype), corners(count, dtype)
    truth[:1, 2:] = truth[:1, :2]  # a box without size
    stride = torch.randint(1, 32, (count,), dtype=torch.int32)
    a, t = centred(float64(anchor), 0), centred(float64(truth), 0)
    expected = [np.clip((t[i] - a[i]) / stride.numpy() + 0.5, 1e-6, 1 - 1e-6) for i in range(2)]
    expected += [np.log(np.maximum(t[i] / a[i], 1e-6)) for i in (2, 3)]
    y = torch_npu.npu_yolo_boxes_encode(anchor.to(device), truth.to(device), stride.to(device))
    assert y.dtype == dtype
    assert_close(y, torch.from_numpy(np.stack(expected, 1)), terms=9)


@DEVICES
@DTYPES
@COUNTS
def test_anchor_response_flags(device, dtype, count):
    boxes = corners(count, dtype)
    expected = np.zeros((7, 9, 3), dtype=np.uint8)
    for x1, y1, x2, y2 in boxes.float().tolist():
        expected[int((y1 + y2) / 2 // 5), int((x1 + x2) / 2 // 4)] = 1
    y = torch_npu.npu_anchor_response_flags(boxes.to(device), [7, 9], [4, 5], 3)
    assert y.dtype == torch.uint8
    assert np.array_equal(y.cpu().numpy(), expected.ravel())


@DEVICES
@pytest.mark.parametrize("assign_all", [False, True])
@pytest.mark.parametrize("boxes", [0, 1, 6])
def test_grid_assign_positive(device, assign_all, boxes):
    anchors, chosen = 23, 4
    overlaps = (torch.rand(boxes, anchors) * 8).round() / 8  # so that some are equal
    flags = (torch.rand(anchors) < 0.7).byte()
    before = torch.full((anchors,), -1.0)
    most, of = overlaps.max(0) if boxes else (torch.zeros(anchors), torch.zeros(anchors, dtype=torch.int64))
    best, anchor = overlaps.max(1)
    expected = before.clone()
    for i in range(anchors):
        if flags[i] and most[i] > 0.6:
            expected[i] = of[i] + 1
    for k in range(min(boxes, chosen)):
        if best[k] > 0.1:
            for i in range(anchors):
                taken = overlaps[k, i] == best[k] if assign_all else i == anchor[k]
                if taken and flags[i]:
                    expected[i] = k + 1
    inputs = (before, overlaps, flags, most, of.int(), best, anchor.int())
    y = torch_npu.npu_grid_assign_positive(*(t.to(device) for t in inputs), chosen, 0.6, 0.1, assign_all)
    assert torch.equal(y.cpu(), expected)


@pytest.mark.parametrize("mode", [0, 1])
def test_ptiou_is_iou(mode):
    first, second = corners(5).to("npu"), corners(4).to("npu")
    assert torch.equal(torch_npu.npu_ptiou(first, second, mode), torch_npu.npu_iou(first, second, mode))


def test_gradients():
    """Of encodings and decodings, inside of what they cut off."""
    anchor, truth = corners(3).double(), corners(3).double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda t: torch_npu.npu_bounding_box_encode(anchor, t, *[0.0] * 4, *[1.0] * 4), (truth,)
    )
    rotated = torch.cat([truth.detach(), torch.rand(3, 1).double() * 40], 1).t().unsqueeze(0).requires_grad_()
    weight = torch.rand(5).double() + 1
    anchors = rotated.detach() + 1
    assert torch.autograd.gradcheck(lambda t: torch_npu.npu_rotated_box_encode(anchors, t, weight), rotated)
    deltas = torch.rand(1, 5, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda d: torch_npu.npu_rotated_box_decode(anchors, d, weight), deltas)


X = torch.zeros(2, 4)
REFUSED = {
    "encode": (
        lambda: torch_npu.npu_bounding_box_encode(X, X[:1], *[0.0] * 8),
        r"shape \[N, 4\], got .*\[1, 4\]",
    ),
    "decode shape": (
        lambda: torch_npu.npu_bounding_box_decode(X, X, *[0.0] * 8, [1], 0.5),
        r"height and width, got \[1\]",
    ),
    "decode clip": (
        lambda: torch_npu.npu_bounding_box_decode(X, X, *[0.0] * 8, [1, 1], 0.0),
        "positive wh_ratio_clip",
    ),
    "rotated": (lambda: torch_npu.npu_rotated_box_encode(X, X, X), r"\[B, 5, N\]"),
    "rotated weight": (
        lambda: torch_npu.npu_rotated_box_decode(X.new_zeros(1, 5, 2), X.new_zeros(1, 5, 2), X),
        r"\[5\]",
    ),
    "yolo": (lambda: torch_npu.npu_yolo_boxes_encode(X, X, X[0].int()), r"stride of shape \[2\], got \[4\]"),
    "flags": (lambda: torch_npu.npu_anchor_response_flags(X, [1, 0], [1, 1], 1), "positive sizes"),
    "grid": (
        lambda: torch_npu.npu_grid_assign_positive(*[X] * 7, 1, 0.5, 0.5, True),
        r"overlaps \[K, N\], got \[\[2, 4\], \[2, 4\]\]",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()


@DEVICES
@DTYPES
@pytest.mark.parametrize("trans", [False, True])
def test_angles_of_proportions(device, dtype, trans):
    a, b = corners(5, dtype).T, corners(3, dtype).T
    angles = []
    for boxes in (a, b):
        x1, y1, x2, y2 = float64(boxes)
        angles.append(np.arctan(x2 / y2 if trans else (x2 - x1) / (y2 - y1)))
    given = a.to(device), b.to(device), trans
    overlap, difference = torch_npu._npu_ciou(*given)
    assert overlap.dtype == difference.dtype == dtype
    assert torch.equal(overlap, torch_npu.npu_ciou(*given))
    assert_close(difference, torch.from_numpy(angles[1][:, None] - angles[0]), terms=4)
    overlap, difference = torch_npu._npu_ciou(given[0][:, :3], *given[1:], False)
    assert overlap.shape == difference.shape == (1, 3)
    assert_close(difference[0], torch.from_numpy(angles[1] - angles[0][:3]), terms=4)
