"""Rotated boxes and suppression (torch_npu/composed/rotated.py, suppression.py) against plain loops in float64."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])


def polygon(box: np.ndarray, from_corners: bool = False, turn: float = 1) -> np.ndarray:
    """The corners of a box, counter-clockwise."""
    x, y, w, h, angle = box
    if from_corners:
        x, y, w, h = (x + w) / 2, (y + h) / 2, w - x, h - y
    c, s = np.cos(np.radians(turn * angle)), np.sin(np.radians(turn * angle))
    local = np.array([[w, h], [-w, h], [-w, -h], [w, -h]]) / 2
    return local @ np.array([[c, s], [-s, c]]) + (x, y)


def area(points: np.ndarray) -> float:
    x, y = points.T
    return 0.5 * (x * np.roll(y, -1) - y * np.roll(x, -1)).sum() if len(points) else 0.0


def clipped(subject: np.ndarray, clip: np.ndarray) -> np.ndarray:
    """Sutherland and Hodgman: the part of a convex polygon inside of another."""
    for start, end in zip(clip, np.roll(clip, -1, 0), strict=True):
        edge, points = end - start, []

        def side(p: np.ndarray, start: np.ndarray = start, edge: np.ndarray = edge) -> float:
            return edge[0] * (p[1] - start[1]) - edge[1] * (p[0] - start[0])

        for p, q in zip(subject, np.roll(subject, -1, 0), strict=True):
            a, b = side(p), side(q)
            if a >= 0:
                points.append(p)
            if (a > 0 > b) or (a < 0 < b):
                points.append(p + (q - p) * a / (a - b))
        subject = np.array(points).reshape(-1, 2)
    return subject


def common(a: torch.Tensor, b: torch.Tensor, **options: object) -> float:
    return area(clipped(*(polygon(t.double().numpy(), **options) for t in (a, b))))


def boxes(*shape: int, from_corners: bool = False) -> torch.Tensor:
    start, size, angle = torch.rand(*shape, 2) * 20 + 30, torch.rand(*shape, 2) * 20 + 1, torch.rand(*shape, 1) * 360
    return torch.cat([start, start + size if from_corners else size, angle - 180], -1)


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("counts", [(7, 5), (0, 3), (1, 1)])
def test_overlaps(device, dtype, trans, counts):
    a, b = (boxes(2, count, from_corners=trans).to(dtype) for count in counts)
    expected = torch.zeros(2, *counts, dtype=torch.float64)
    whole, own = expected.clone(), expected.clone()
    for i in np.ndindex(*expected.shape):
        first, second = a[i[0], i[1]], b[i[0], i[2]]
        expected[i] = common(first, second, from_corners=trans)
        own[i] = common(first, first, from_corners=trans)
        whole[i] = own[i] + common(second, second, from_corners=trans) - expected[i]
    options = {"atol": 2e-3} if dtype == torch.float32 else {"atol": 0.05}  # of areas up to 400
    on_device = a.to(device), b.to(device)
    y = torch_npu.npu_rotated_overlaps(*on_device, trans)
    assert y.dtype == dtype
    assert_close(y, expected, terms=24, **options)
    slack = {"atol": 1e-4} if dtype == torch.float32 else {"atol": 1e-3}
    assert_close(torch_npu.npu_rotated_iou(*on_device, trans), expected / whole, terms=24, **slack)
    assert_close(torch_npu.npu_rotated_iou(*on_device, trans, 1), expected / own, terms=24, **slack)


@DEVICES
@pytest.mark.parametrize("angle", [0.0, 30.0, -90.0, 123.0])
def test_special_overlaps(device, angle):
    box = torch.tensor([[[10.0, 20.0, 4.0, 6.0, angle]]], device=device)
    same = torch_npu.npu_rotated_iou(box, box)
    torch.testing.assert_close(same.cpu(), torch.ones(1, 1, 1), rtol=1e-4, atol=0)
    inner = box * torch.tensor([1.0, 1, 0.5, 0.5, 1], device=device)
    torch.testing.assert_close(torch_npu.npu_rotated_overlaps(box, inner).item(), 6.0, rtol=1e-4, atol=0)
    apart = box + torch.tensor([50.0, 0, 0, 0, 0], device=device)
    assert torch_npu.npu_rotated_overlaps(box, apart).item() == 0
    empty = box * torch.tensor([1.0, 1, 0, 0, 1], device=device)
    assert torch_npu.npu_rotated_iou(empty, empty).item() == 0
    flipped = box * torch.tensor([1.0, 1, -1, 1, 1], device=device)
    assert torch_npu.npu_rotated_iou(box, flipped).item() == 0


@DEVICES
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("limits", [(0.2, 0.0, -1), (0.2, 0.4, -1), (0.05, 0.0, 3)])
def test_nms_of_rotated_boxes(device, mode, limits):
    most, least, count = limits
    b, scores = boxes(23, from_corners=mode == 1), torch.randperm(23) / 23
    options = {"from_corners": mode == 1, "turn": 1 if mode == 0 else -1}
    areas = [common(x, x, **options) for x in b]
    expected: list[int] = []
    for i in scores.argsort(descending=True).tolist():
        overlaps = [(common(b[i], b[k], **options), areas[i] + areas[k]) for k in expected]
        if scores[i] > least and all(c / (s - c) <= most for c, s in overlaps):
            expected.append(i)
    expected = expected if count < 0 else expected[:count]
    numbers, found = torch_npu.npu_nms_rotated(b.to(device), scores.to(device), most, least, count, mode)
    assert numbers.dtype == found.dtype == torch.int32
    assert numbers.tolist() == expected
    assert found.tolist() == [len(expected)]


def upright_overlap(a: list[float], b: list[float]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    both = max(width, 0) * max(height, 0)
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def kept(b: torch.Tensor, scores: torch.Tensor, most: float, least: float) -> list[int]:
    chosen: list[int] = []
    for i in scores.argsort(descending=True, stable=True).tolist():
        if scores[i] > least and all(upright_overlap(b[i].tolist(), b[k].tolist()) <= most for k in chosen):
            chosen.append(i)
    return chosen


def upright(*shape: int) -> torch.Tensor:
    start = torch.rand(*shape, 2) * 20
    return torch.cat([start, start + torch.rand(*shape, 2) * 15 + 1], -1)


@DEVICES
@pytest.mark.parametrize("count", [0, 1, 29])
@pytest.mark.parametrize("columns", [5, 8])
def test_nms_with_mask(device, count, columns):
    x = torch.cat([upright(count), torch.rand(count, columns - 4)], 1)
    same, numbers, mask = torch_npu.npu_nms_with_mask(x.to(device), 0.3)
    expected = torch.zeros(count, dtype=torch.uint8)
    expected[kept(x[:, :4], x[:, 4], 0.3, -1)] = 1
    assert torch.equal(same.cpu(), x[:, :5])
    assert torch.equal(numbers.cpu(), torch.arange(count, dtype=torch.int32))
    assert torch.equal(mask.cpu(), expected)


@DEVICES
@pytest.mark.parametrize("shared", [True, False])
def test_batch_nms(device, shared):
    b, scores = upright(2, 17, 1 if shared else 3), torch.rand(2, 17, 3)
    results = torch_npu.npu_batch_nms(b.to(device), scores.to(device), 0.35, 0.3, 4, 9)
    best_boxes, best_scores, classes, counts = (t.cpu() for t in results)
    for image in range(2):
        found = []
        for kind in range(3):
            mine = b[image, :, 0 if shared else kind]
            chosen = kept(mine, scores[image, :, kind], 0.3, 0.35)[:4]
            found += [(scores[image, i, kind].item(), kind, mine[i]) for i in chosen]
        found = sorted(found, key=lambda entry: -entry[0])[:9]
        assert counts[image] == len(found)
        assert best_scores[image].tolist() == [f[0] for f in found] + [0.0] * (9 - len(found))
        assert classes[image].tolist() == [f[1] for f in found] + [0.0] * (9 - len(found))
        assert all(torch.equal(best_boxes[image, n], f[2]) for n, f in enumerate(found))
        assert (best_boxes[image, len(found) :] == 0).all()


def test_gradient_of_overlaps():
    a, b = boxes(1, 2).double(), boxes(1, 2).double()
    a[..., :2], b[..., :2] = 30, 31
    y = torch_npu.npu_rotated_overlaps(a.float().requires_grad_(), b.float())
    assert y.requires_grad


def test_shapes_in_traces():
    with FakeTensorMode(shape_env=ShapeEnv()):
        x, scores = torch.zeros(9, 5, device="npu"), torch.zeros(9, device="npu")
        numbers, count = torch_npu.npu_nms_rotated(x, scores, 0.5)
        assert (numbers.dim(), numbers.dtype, count.shape) == (1, torch.int32, (1,))
        assert [t.shape for t in torch_npu.npu_nms_with_mask(x, 0.5)] == [(9, 5), (9,), (9,)]
        result = torch_npu.npu_batch_nms(x.new_zeros(2, 9, 1, 4), x.new_zeros(2, 9, 3), 0.5, 0.5, 4, 7)
        assert [t.shape for t in result] == [(2, 7, 4), (2, 7), (2, 7), (2,)]


X = torch.zeros(2, 5)
REFUSED = {
    "overlaps": (lambda: torch_npu.npu_rotated_overlaps(X, X), r"\[B, N, 5\]"),
    "iou": (lambda: torch_npu.npu_rotated_iou(X[None], X[None], False, 2), "mode 0 or 1, got 2"),
    "nms": (lambda: torch_npu.npu_nms_rotated(X, X, 0.5), r"scores \[N\], got"),
    "nms mode": (lambda: torch_npu.npu_nms_rotated(X, X[:, 0], 0.5, mode=2), "mode 0 or 1, got 2"),
    "mask": (lambda: torch_npu.npu_nms_with_mask(X[:, :4], 0.5), "5"),
    "batch": (lambda: torch_npu.npu_batch_nms(X, X, 0.5, 0.5, 1, 1), r"boxes \[B, N, 1 or C, 4\]"),
    "sizes": (lambda: torch_npu.npu_batch_nms(X[None, :, None, :4], X[None], 0.5, 0.5, 1, 0), "positive sizes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_options_that_are_not_supported():
    with pytest.raises(NotImplementedError, match="got is_cross=False"):
        torch_npu.npu_rotated_iou(X[None], X[None], is_cross=False)
    with pytest.raises(NotImplementedError, match="transpose_box=True"):
        torch_npu.npu_batch_nms(X, X, 0.5, 0.5, 1, 1, transpose_box=True)
