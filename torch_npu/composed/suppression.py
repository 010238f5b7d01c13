"""Boxes that overlap a better one too much are taken away.

The overlaps are computed on the device; the host chooses, one box after the other, which synchronizes. So these are no
operators for captures.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu.composed import rotated
from torch_npu.composed.registry import composed, refuse

_SMALLEST_AREA = 1e-12


def _overlaps(boxes: Tensor) -> Tensor:
    """Intersections over unions [n, n] of boxes [n, 4] (two opposite corners), in float32."""
    first, second = boxes.float().view(-1, 2, 2).unbind(1)
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    sides = torch.minimum(high.unsqueeze(1), high) - torch.maximum(low.unsqueeze(1), low)
    common, area = sides.clamp_min(0).prod(-1), (high - low).prod(-1)
    return common / (area.unsqueeze(1) + area - common).clamp_min(_SMALLEST_AREA)


def _chosen(overlaps: Tensor, scores: Tensor, most: float, least: float, count: int) -> list[int]:
    """Numbers of the boxes that stay, best score first, at most ``count``.

    They have scores above ``least``, and overlap no better one by more than ``most``. Both tensors are on the CPU.
    """
    alive = scores > least
    hit = overlaps > most
    chosen: list[int] = []
    for i in scores.argsort(descending=True, stable=True).tolist():
        if len(chosen) == count:
            break
        if alive[i]:
            chosen.append(i)
            alive &= ~hit[i]
    return chosen


def _fake_with_mask(input: Tensor, iou_threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    count = input.shape[0]
    indices, mask = (input.new_empty(count, dtype=dtype) for dtype in (torch.int32, torch.uint8))
    return input.new_empty(count, 5), indices, mask


@composed("npu_nms_with_mask(Tensor input, Scalar iou_threshold) -> (Tensor, Tensor, Tensor)", fake=_fake_with_mask)
def nms_with_mask(input: Tensor, iou_threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """input's corners and scores [N, 5], 0 to N - 1 as int32, and uint8 1 for boxes that stay, else 0.

    From the highest score down, each box that stays takes those away that overlap it by more than iou_threshold.
    Columns of input behind the score do not count.
    """
    if input.dim() != 2 or input.shape[1] < 5:
        refuse("npu_nms_with_mask", "boxes with scores [N, 5] or more columns", list(input.shape))
    boxes, count = input[:, :5].clone(), input.shape[0]
    scores = boxes[:, 4].float().cpu()
    chosen = _chosen(_overlaps(boxes[:, :4]).cpu(), scores, iou_threshold, -torch.inf, count)
    mask = torch.zeros(count, dtype=torch.uint8)
    mask[chosen] = 1
    return boxes, torch.arange(count, dtype=torch.int32, device=input.device), mask.to(input.device)


def _fake_rotated(
    self: Tensor, scores: Tensor, iou_threshold: float, scores_threshold: float = 0, max_output_size: int = -1,
    mode: int = 0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    count = torch.library.get_ctx().new_dynamic_size()
    return self.new_empty(count, dtype=torch.int32), self.new_empty(1, dtype=torch.int32)


@composed(
    "npu_nms_rotated(Tensor self, Tensor scores, float iou_threshold, float scores_threshold=0, "
    "int max_output_size=-1, int mode=0) -> (Tensor, Tensor)",
    fake=_fake_rotated,
)
def nms_rotated(
    self: Tensor,
    scores: Tensor,
    iou_threshold: float,
    scores_threshold: float = 0,
    max_output_size: int = -1,
    mode: int = 0,
) -> tuple[Tensor, Tensor]:
    """Numbers of the rotated boxes [N, 5] that stay, best score first, and how many there are [1]; int32.

    Scores [N] above scores_threshold, and no overlap (see npu_rotated_iou) with a better one by more than
    iou_threshold; max_output_size -1: as many as there are. mode 0: x, y, width, height and angle, 1: corners and the
    angle in the other direction.
    """
    name = "npu_nms_rotated"
    if self.dim() != 2 or self.shape[1] != 5 or scores.shape != self.shape[:1]:
        refuse(name, "boxes [N, 5] and scores [N]", [list(self.shape), list(scores.shape)])
    if mode not in (0, 1):
        refuse(name, "mode 0 or 1", mode)
    boxes = rotated.Rectangles.of(self, from_corners=mode == 1, turn=1 if mode == 0 else -1)
    overlaps = rotated.overlap(boxes.unsqueeze(1), boxes.unsqueeze(0)).cpu()
    count = self.shape[0] if max_output_size < 0 else max_output_size
    chosen = _chosen(overlaps, scores.float().cpu(), iou_threshold, scores_threshold, count)
    numbers = torch.tensor(chosen, dtype=torch.int32, device=self.device)
    return numbers, torch.tensor([len(chosen)], dtype=torch.int32, device=self.device)


_BATCH_NMS = (
    "Tensor self, Tensor scores, float score_threshold, float iou_threshold, int max_size_per_class, "
    "int max_total_size, bool change_coordinate_frame=False, bool transpose_box=False"
)
_Batch = tuple[Tensor, Tensor, Tensor, Tensor]


def _fake_batch(
    self: Tensor, scores: Tensor, score_threshold: float, iou_threshold: float, max_size_per_class: int,
    max_total_size: int, change_coordinate_frame: bool = False, transpose_box: bool = False,
) -> _Batch:  # fmt: skip
    batch, total = self.shape[0], max_total_size
    count = self.new_empty(batch, dtype=torch.int32)
    return self.new_empty(batch, total, 4), self.new_empty(batch, total), self.new_empty(batch, total), count


@composed(f"npu_batch_nms({_BATCH_NMS}) -> (Tensor, Tensor, Tensor, Tensor)", fake=_fake_batch)
def batch_nms(
    self: Tensor,
    scores: Tensor,
    score_threshold: float,
    iou_threshold: float,
    max_size_per_class: int,
    max_total_size: int,
    change_coordinate_frame: bool = False,
    transpose_box: bool = False,
) -> _Batch:
    """Of each image the boxes, scores and classes of the max_total_size best that stay, then zeros; int32 how many.

    self is [B, N, 1 or C, 4], scores [B, N, C]. In each class at most max_size_per_class boxes stay, with scores above
    score_threshold and no overlap with a better one by more than iou_threshold.

    Raises:
        NotImplementedError: for change_coordinate_frame and transpose_box, which CANN's operator does not know either
            without a window to clip to.
    """
    name = "npu_batch_nms"
    if change_coordinate_frame or transpose_box:
        options = f"change_coordinate_frame={change_coordinate_frame}, transpose_box={transpose_box}"
        raise NotImplementedError(f"{name}: {options}; supported is False for both")
    shapes = [list(self.shape), list(scores.shape)]
    if self.dim() != 4 or scores.dim() != 3 or shapes[0][:2] != shapes[1][:2] or self.shape[3] != 4:
        refuse(name, "boxes [B, N, 1 or C, 4] and scores [B, N, C]", shapes)
    if self.shape[2] not in (1, scores.shape[2]) or min(max_size_per_class, max_total_size) < 1:
        refuse(name, "boxes for one or all classes and positive sizes", [*shapes, max_size_per_class, max_total_size])
    classes, overlaps = scores.shape[2], [[_overlaps(b).cpu() for b in image.unbind(1)] for image in self.unbind()]
    values = scores.float().cpu()
    empty = _fake_batch(self, scores, score_threshold, iou_threshold, max_size_per_class, max_total_size)
    boxes, best, kinds = (t.zero_() for t in empty[:3])
    counts = []
    for image, of_image in enumerate(overlaps):
        found: list[tuple[int, int]] = []  # number of the box, class
        for kind in range(classes):
            mine = of_image[kind if len(of_image) > 1 else 0]
            chosen = _chosen(mine, values[image, :, kind], iou_threshold, score_threshold, max_size_per_class)
            found += [(i, kind) for i in chosen]
        found.sort(key=lambda entry: -values[image, entry[0], entry[1]].item())
        del found[max_total_size:]
        counts.append(len(found))
        if found:
            number, kind_of = torch.tensor(found, device=self.device).t()
            boxes[image, : len(found)] = self[image, number, kind_of if self.shape[2] > 1 else kind_of * 0]
            best[image, : len(found)] = scores[image, number, kind_of].to(self.dtype)
            kinds[image, : len(found)] = kind_of.to(self.dtype)
    return boxes, best, kinds, torch.tensor(counts, dtype=torch.int32, device=self.device)
