"""Boxes of detectors: targets of a regression and back, and which anchors answer for which box.

Boxes are corners x1, y1, x2, y2. Computed in float32 for float16 and bfloat16, and rounded once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse, wide

_SMALLEST = 1e-6


def _check_boxes(operator: str, **boxes: Tensor) -> None:
    shapes = {name: list(box.shape) for name, box in boxes.items()}
    if any(len(shape) != 2 or shape[1] != 4 for shape in shapes.values()) or len(set(map(tuple, shapes.values()))) > 1:
        refuse(operator, "boxes of one shape [N, 4]", shapes)


class _Centred(NamedTuple):
    """Centres and sizes of boxes."""

    x: Tensor
    y: Tensor
    width: Tensor
    height: Tensor


def _centred(boxes: Tensor, dim: int, last: float = 0) -> _Centred:
    """``last``: 1 if the corner x2, y2 is the last pixel of the box, 0 if it is its end."""
    x1, y1, x2, y2 = boxes.unbind(dim)[:4]
    return _Centred((x1 + x2) * 0.5, (y1 + y2) * 0.5, x2 - x1 + last, y2 - y1 + last)


@composed(
    "npu_bounding_box_encode(Tensor anchor_box, Tensor ground_truth_box, float means0, float means1, float means2, "
    "float means3, float stds0, float stds1, float stds2, float stds3) -> Tensor"
)
def bounding_box_encode(anchor_box: Tensor, ground_truth_box: Tensor, *normal: float) -> Tensor:
    """Differences of the centres over the anchor's size, logarithms of the ratios of the sizes, minus means, over stds.

    Boxes are [N, 4]; the corner x2, y2 is the last pixel of a box.
    """
    _check_boxes("npu_bounding_box_encode", anchor_box=anchor_box, ground_truth_box=ground_truth_box)
    anchor, truth = _centred(wide(anchor_box), -1, last=1), _centred(wide(ground_truth_box), -1, last=1)
    deltas = (
        (truth.x - anchor.x) / anchor.width,
        (truth.y - anchor.y) / anchor.height,
        (truth.width / anchor.width).log(),
        (truth.height / anchor.height).log(),
    )
    means, stds = normal[:4], normal[4:]
    scaled = [(delta - mean) / std for delta, mean, std in zip(deltas, means, stds, strict=True)]
    return torch.stack(scaled, -1).to(anchor_box.dtype)


@composed(
    "npu_bounding_box_decode(Tensor rois, Tensor deltas, float means0, float means1, float means2, float means3, "
    "float stds0, float stds1, float stds2, float stds3, int[1] max_shape, float wh_ratio_clip) -> Tensor"
)
def bounding_box_decode(
    rois: Tensor,
    deltas: Tensor,
    means0: float,
    means1: float,
    means2: float,
    means3: float,
    stds0: float,
    stds1: float,
    stds2: float,
    stds3: float,
    max_shape: list[int],
    wh_ratio_clip: float,
) -> Tensor:
    """Boxes whose npu_bounding_box_encode against rois is deltas, inside an image of height, width max_shape.

    The logarithms of the ratios of the sizes are kept within those of wh_ratio_clip and its inverse.
    """
    name = "npu_bounding_box_decode"
    _check_boxes(name, rois=rois, deltas=deltas)
    if len(max_shape) != 2:
        refuse(name, "max_shape of height and width", max_shape)
    if not wh_ratio_clip > 0:
        refuse(name, "a positive wh_ratio_clip", wh_ratio_clip)
    means, stds = (means0, means1, means2, means3), (stds0, stds1, stds2, stds3)
    box, limit = _centred(wide(rois), -1, last=1), abs(math.log(wh_ratio_clip))
    parts = zip(wide(deltas).unbind(-1), stds, means, strict=True)
    dx, dy, dwidth, dheight = (delta * std + mean for delta, std, mean in parts)
    half_width = box.width * dwidth.clamp(-limit, limit).exp() * 0.5
    half_height = box.height * dheight.clamp(-limit, limit).exp() * 0.5
    x, y = box.x + box.width * dx, box.y + box.height * dy
    height, width = max_shape
    corners = (
        (x - half_width + 0.5).clamp(0, width - 1),
        (y - half_height + 0.5).clamp(0, height - 1),
        (x + half_width - 0.5).clamp(0, width - 1),
        (y + half_height - 0.5).clamp(0, height - 1),
    )
    return torch.stack(corners, -1).to(rois.dtype)


def _check_rotated(operator: str, weight: Tensor, **boxes: Tensor) -> None:
    shapes = {name: list(box.shape) for name, box in boxes.items()}
    if any(len(shape) != 3 or shape[1] != 5 for shape in shapes.values()) or len(set(map(tuple, shapes.values()))) > 1:
        refuse(operator, "boxes of one shape [B, 5, N]", shapes)
    if weight.shape != (5,):
        refuse(operator, "weight of shape [5]", list(weight.shape))


def _rotated(boxes: Tensor) -> tuple[_Centred, Tensor]:
    """Of boxes [B, 5, N]: centres and sizes, of at least one pixel, and tangents of the angles."""
    box = _centred(boxes, 1)
    width, height = box.width.clamp_min(1), box.height.clamp_min(1)
    x, y = boxes[:, 0] + width / 2, boxes[:, 1] + height / 2
    return _Centred(x, y, width, height), boxes[:, 4].deg2rad().tan()


@composed("npu_rotated_box_encode(Tensor self, Tensor gt_bboxes, Tensor weight) -> Tensor")
def rotated_box_encode(self: Tensor, gt_bboxes: Tensor, weight: Tensor) -> Tensor:
    """Differences of the centres over the anchor's size, logarithms of the ratios, difference of tangents; * weight.

    self (anchors) and gt_bboxes are [B, 5, N]: corners and an angle in degrees. Sizes below 1 count as 1.
    """
    _check_rotated("npu_rotated_box_encode", weight, self=self, gt_bboxes=gt_bboxes)
    (anchor, anchor_tangent), (truth, tangent) = _rotated(wide(self)), _rotated(wide(gt_bboxes))
    deltas = (
        (truth.x - anchor.x) / anchor.width,
        (truth.y - anchor.y) / anchor.height,
        (truth.width / anchor.width).log(),
        (truth.height / anchor.height).log(),
        tangent - anchor_tangent,
    )
    return (torch.stack(deltas, 1) * wide(weight).view(5, 1)).to(self.dtype)


@composed("npu_rotated_box_decode(Tensor self, Tensor deltas, Tensor weight) -> Tensor")
def rotated_box_decode(self: Tensor, deltas: Tensor, weight: Tensor) -> Tensor:
    """Boxes [B, 5, N] whose npu_rotated_box_encode against self is deltas; their angles are within 90 degrees of 0."""
    _check_rotated("npu_rotated_box_decode", weight, self=self, deltas=deltas)
    anchor, anchor_tangent = _rotated(wide(self))
    dx, dy, dwidth, dheight, dtangent = (wide(deltas) / wide(weight).view(5, 1)).unbind(1)
    x, y = anchor.x + dx * anchor.width, anchor.y + dy * anchor.height
    half_width, half_height = anchor.width * dwidth.exp() / 2, anchor.height * dheight.exp() / 2
    angle = (anchor_tangent + dtangent).atan().rad2deg()
    corners = (x - half_width, y - half_height, x + half_width, y + half_height)
    return torch.stack((*corners, angle), 1).to(self.dtype)


@composed("npu_yolo_boxes_encode(Tensor self, Tensor gt_bboxes, Tensor stride, bool performance_mode=False) -> Tensor")
def yolo_boxes_encode(self: Tensor, gt_bboxes: Tensor, stride: Tensor, performance_mode: bool = False) -> Tensor:
    """Differences of the centres over stride + 0.5, kept inside 0 to 1, and logarithms of the ratios of the sizes.

    Boxes are [N, 4], stride is [N]. Inside is 1e-6 to 1 - 1e-6, and no ratio is below 1e-6. performance_mode, which on
    Ascend hardware allows a larger error, makes no difference.
    """
    name = "npu_yolo_boxes_encode"
    _check_boxes(name, self=self, gt_bboxes=gt_bboxes)
    if stride.shape != self.shape[:1]:
        refuse(name, f"stride of shape [{self.shape[0]}]", list(stride.shape))
    anchor, truth = _centred(wide(self), -1), _centred(wide(gt_bboxes), -1)
    targets = (
        ((truth.x - anchor.x) / stride + 0.5).clamp(_SMALLEST, 1 - _SMALLEST),
        ((truth.y - anchor.y) / stride + 0.5).clamp(_SMALLEST, 1 - _SMALLEST),
        (truth.width / anchor.width).clamp_min(_SMALLEST).log(),
        (truth.height / anchor.height).clamp_min(_SMALLEST).log(),
    )
    return torch.stack(targets, -1).to(self.dtype)


@composed("npu_anchor_response_flags(Tensor self, int[2] featmap_size, int[2] stride, int num_base_anchors) -> Tensor")
def anchor_response_flags(self: Tensor, featmap_size: list[int], stride: list[int], num_base_anchors: int) -> Tensor:
    """uint8: 1 for the anchors of each cell of a feature map that has the centre of a box [N, 4], else 0.

    featmap_size is height, width, stride that of the cells along x, y. The result is flat: num_base_anchors to a cell,
    cells row by row.
    """
    name = "npu_anchor_response_flags"
    _check_boxes(name, self=self)
    if min(featmap_size) < 1 or min(stride) < 1 or num_base_anchors < 1:
        refuse(name, "positive sizes, strides and num_base_anchors", [featmap_size, stride, num_base_anchors])
    height, width = featmap_size
    box = _centred(wide(self), -1)
    column, row = (box.x / stride[0]).floor().long(), (box.y / stride[1]).floor().long()
    flags = torch.zeros(height * width, dtype=torch.uint8, device=self.device).index_fill(0, row * width + column, 1)
    return flags.repeat_interleave(num_base_anchors)


@composed(
    "npu_grid_assign_positive(Tensor self, Tensor overlaps, Tensor box_responsible_flags, Tensor max_overlaps, "
    "Tensor argmax_overlaps, Tensor gt_max_overlaps, Tensor gt_argmax_overlaps, int num_gts, float pos_iou_thr, "
    "float min_pos_iou, bool gt_max_assign_all) -> Tensor"
)
def grid_assign_positive(
    self: Tensor,
    overlaps: Tensor,
    box_responsible_flags: Tensor,
    max_overlaps: Tensor,
    argmax_overlaps: Tensor,
    gt_max_overlaps: Tensor,
    gt_argmax_overlaps: Tensor,
    num_gts: int,
    pos_iou_thr: float,
    min_pos_iou: float,
    gt_max_assign_all: bool,
) -> Tensor:
    """self [N] with the number, from 1, of the true box that each responsible anchor answers for.

    An anchor answers for the box that it overlaps most, if by more than pos_iou_thr. Then each true box of overlaps
    [K, N], the first num_gts of them, takes the anchor that overlaps it most if that is more than min_pos_iou: all that
    overlap it as much where gt_max_assign_all, else the one that gt_argmax_overlaps names. The last box wins.
    """
    name = "npu_grid_assign_positive"
    if self.dim() != 1 or overlaps.dim() != 2 or overlaps.shape[1] != self.shape[0]:
        refuse(name, "self [N] and overlaps [K, N]", [list(self.shape), list(overlaps.shape)])
    boxes, anchors = overlaps.shape
    responsible = box_responsible_flags != 0
    own = responsible & (max_overlaps > pos_iou_thr)
    result = torch.where(own, (argmax_overlaps + 1).to(self.dtype), self)
    number = torch.arange(1, boxes + 1, device=self.device).unsqueeze(1)
    if gt_max_assign_all:
        taken = overlaps == gt_max_overlaps.unsqueeze(1)
    else:
        taken = gt_argmax_overlaps.unsqueeze(1) == torch.arange(anchors, device=self.device)
    taken = taken & responsible & (gt_max_overlaps > min_pos_iou).unsqueeze(1) & (number <= num_gts)
    last = (taken * number).amax(0) if boxes else torch.zeros_like(own, dtype=torch.int64)
    return torch.where(last > 0, last.to(self.dtype), result)


@composed("npu_ptiou(Tensor bboxes, Tensor gtboxes, int mode=0) -> Tensor")
def ptiou(bboxes: Tensor, gtboxes: Tensor, mode: int = 0) -> Tensor:
    """npu_iou under another name."""
    return torch.ops.npu.npu_iou(bboxes, gtboxes, mode)


def _proportion(boxes: Tensor, by_centre: bool) -> Tensor:
    """Angle whose tangent is width over height, of boxes [4, N]."""
    width, height = (boxes[2], boxes[3]) if by_centre else (boxes[2] - boxes[0], boxes[3] - boxes[1])
    return (width / (height + 1e-9)).atan()


@composed(
    "_npu_ciou(Tensor self, Tensor gtboxes, bool trans=False, bool is_cross=True, int mode=0, "
    "bool atan_sub_flag=False) -> (Tensor, Tensor)"
)
def ciou_and_angles(
    self: Tensor,
    gtboxes: Tensor,
    trans: bool = False,
    is_cross: bool = True,
    mode: int = 0,
    atan_sub_flag: bool = False,
) -> tuple[Tensor, Tensor]:
    """npu_ciou, and by how much the angles atan(width / height) of gtboxes and self differ, in the same shape.

    Ascend's gradient reads the angles where atan_sub_flag says so; here they are there always, and it reads none.
    """
    overlap = torch.ops.npu.npu_ciou(self, gtboxes, trans, is_cross, mode)
    angles, own = _proportion(wide(gtboxes), trans), _proportion(wide(self), trans)
    difference = angles.unsqueeze(1) - own if is_cross else (angles - own).unsqueeze(0)
    return overlap, difference.to(overlap.dtype)
