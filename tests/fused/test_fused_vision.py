"""Non-maximum suppression."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_npu


def suppressed(boxes: Tensor, scores: Tensor, most: int, iou: float, lowest: float) -> list[int]:
    """The boxes that are left, by the definition."""

    def area(box: list[float]) -> float:
        return abs(box[2] - box[0]) * abs(box[3] - box[1])

    def overlap(a: list[float], b: list[float]) -> float:
        sides = []
        for d in (0, 1):
            high = min(max(a[d], a[d + 2]), max(b[d], b[d + 2]))
            sides.append(max(0.0, high - max(min(a[d], a[d + 2]), min(b[d], b[d + 2]))))
        common = sides[0] * sides[1]
        return common / (area(a) + area(b) - common) if common else 0.0

    left: list[int] = []
    rows = boxes.tolist()
    for i in scores.argsort(descending=True, stable=True).tolist():
        fits = scores[i] > lowest and all(overlap(rows[i], rows[j]) <= iou for j in left)
        if fits and len(left) < most:
            left.append(i)
    return left


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("count", "most"), [(60, 20), (60, 100), (1, 1), (0, 4)])
def test_nms(count: int, most: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    boxes, scores = (torch.rand(count, 4) * 100).to(dtype), torch.rand(count).to(dtype)
    left = suppressed(boxes.double(), scores.double(), most, 0.25, 0.3)
    with torch_npu.fallback_policy("error"):
        selected, valid = torch_npu.npu_nms_v4(
            boxes.npu(), scores.npu(), most, torch.tensor(0.25).npu(), torch.tensor(0.3).npu()
        )
    assert (selected.dtype, valid.dtype, valid.item()) == (torch.int32, torch.int32, len(left))
    assert selected.tolist() == left + [0] * (most - len(left))
    with FakeTensorMode():
        fake = [torch.empty(s, device="npu") for s in ((count, 4), (count,), (), ())]
        shapes = torch_npu.npu_nms_v4(fake[0], fake[1], most, fake[2], fake[3])
    assert [s.shape for s in shapes] == [(most,), ()]


def test_nms_refuses_other_shapes() -> None:
    boxes, scores, number = torch.rand(3, 4).npu(), torch.rand(3).npu(), torch.tensor(0.5).npu()
    with pytest.raises(ValueError, match=r"self must be \[N, 4\]"):
        torch_npu.npu_nms_v4(boxes.t(), scores, 3, number, number)
    with pytest.raises(ValueError, match=r"scores must be \[N\]"):
        torch_npu.npu_nms_v4(boxes, scores[:2], 3, number, number)
