"""Boxes of detectors: overlaps, suppression, and targets of a regression."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "npu_batched_multiclass_nms",
    "npu_bbox_coder_decode_xywh2xyxy",
    "npu_bbox_coder_encode_xyxy2xywh",
    "npu_bbox_coder_encode_yolo",
    "npu_ciou",
    "npu_diou",
    "npu_giou",
    "npu_iou",
    "npu_multiclass_nms",
    "npu_ptiou",
    "npu_single_level_responsible_flags",
]

_NO_MEANS, _NO_STDS, _NO_LIMIT = (0.0,) * 4, (1.0,) * 4, (9999, 9999)


def _floating(boxes: Tensor) -> Tensor:
    return boxes if boxes.is_floating_point() else boxes.float()


def npu_iou(
    boxes1: Tensor, boxes2: Tensor, mode: str = "ptiou", is_normalized: bool = False, normalized_scale: float = 100.0
) -> Tensor:
    """Overlaps [N, M] of ``boxes1`` [N, 4] and ``boxes2`` [M, 4] (x1, y1, x2, y2): ``torch_npu.npu_iou``.

    Args:
        mode: "iou" or "ptiou", which are the same.
        is_normalized: whether coordinates are shares of an image, and so are to be multiplied by ``normalized_scale``:
            the operator makes sides longer by a constant, of which small boxes have too much.
    """
    if mode not in ("iou", "ptiou"):
        raise ValueError(f"npu_iou: expected mode 'iou' or 'ptiou', got {mode!r}")
    first, second = _floating(boxes1), _floating(boxes2)
    if is_normalized:
        first, second = first * normalized_scale, second * normalized_scale
    return torch.ops.npu.npu_iou(second, first)


npu_ptiou = npu_iou


def npu_giou(boxes1: Tensor, boxes2: Tensor, is_permuted: bool = True) -> Tensor:
    """``torch_npu.npu_giou`` of pairs of boxes (x, y, width, height), [N, 4], or [4, N] if not ``is_permuted``.

    Returns:
        [N, 1].
    """
    if boxes1.shape != boxes2.shape:
        raise ValueError(f"npu_giou: expected boxes of one shape, got {list(boxes1.shape)} and {list(boxes2.shape)}")
    pair = [boxes.t() if is_permuted else boxes for boxes in (_floating(boxes1), _floating(boxes2))]
    return torch.ops.npu.npu_giou(*pair, trans=True, is_cross=False)


def npu_diou(boxes1: Tensor, boxes2: Tensor, trans: bool = True, is_cross: bool = False, mode: int = 0) -> Tensor:
    """``torch_npu.npu_diou`` of boxes [4, N]."""
    return torch.ops.npu.npu_diou(_floating(boxes1), _floating(boxes2), trans, is_cross, mode)


def npu_ciou(boxes1: Tensor, boxes2: Tensor, trans: bool = True, is_cross: bool = False, mode: int = 0) -> Tensor:
    """``torch_npu.npu_ciou`` of boxes [4, N]."""
    return torch.ops.npu.npu_ciou(_floating(boxes1), _floating(boxes2), trans, is_cross, mode, True)


def npu_single_level_responsible_flags(
    featmap_size: Sequence[int], gt_bboxes: Tensor, stride: Sequence[int], num_base_anchors: int
) -> Tensor:
    """``torch_npu.npu_anchor_response_flags``: which anchors of a feature map answer for a box."""
    return torch.ops.npu.npu_anchor_response_flags(
        _floating(gt_bboxes), list(featmap_size), list(stride), num_base_anchors
    )


def npu_bbox_coder_encode_yolo(bboxes: Tensor, gt_bboxes: Tensor, stride: Tensor) -> Tensor:
    """``torch_npu.npu_yolo_boxes_encode`` of boxes [N, 4] and strides [N]."""
    return torch.ops.npu.npu_yolo_boxes_encode(_floating(bboxes), _floating(gt_bboxes), stride.int())


def npu_bbox_coder_encode_xyxy2xywh(
    bboxes: Tensor,
    gt_bboxes: Tensor,
    means: Sequence[float] | None = None,
    stds: Sequence[float] | None = None,
    is_normalized: bool = False,
    normalized_scale: float = 10000.0,
) -> Tensor:
    """``torch_npu.npu_bounding_box_encode`` of boxes [N, 4], after a multiplication by the scale if normalized."""
    anchors, truth = _floating(bboxes), _floating(gt_bboxes)
    if is_normalized:
        anchors, truth = anchors * normalized_scale, truth * normalized_scale
    return torch.ops.npu.npu_bounding_box_encode(anchors, truth, *(means or _NO_MEANS), *(stds or _NO_STDS))


def npu_bbox_coder_decode_xywh2xyxy(
    bboxes: Tensor,
    pred_bboxes: Tensor,
    means: Sequence[float] | None = None,
    stds: Sequence[float] | None = None,
    max_shape: Sequence[int] | None = None,
    wh_ratio_clip: float = 16 / 1000,
) -> Tensor:
    """``torch_npu.npu_bounding_box_decode`` of boxes [N, 4]; ``max_shape`` is height, width of the image."""
    normal = (*(means or _NO_MEANS), *(stds or _NO_STDS))
    return torch.ops.npu.npu_bounding_box_decode(
        _floating(bboxes), _floating(pred_bboxes), *normal, list(max_shape or _NO_LIMIT), wh_ratio_clip
    )


def npu_batched_multiclass_nms(
    multi_bboxes: Tensor,
    multi_scores: Tensor,
    score_thr: float = 0.05,
    nms_thr: float = 0.45,
    max_num: int = 50,
    score_factors: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The best boxes of each image after suppression in each class, in float16 (``torch_npu.npu_batch_nms``).

    Args:
        multi_bboxes: [B, N, 4] or [B, N, classes, 4] (or that as [B, N, classes * 4]).
        multi_scores: [B, N, classes + 1]; the last class is the background, which does not count.
        score_thr: boxes whose scores are not above are left out.
        nms_thr: the overlap above which the worse box is taken away.
        max_num: how many boxes an image has in the result; zeros fill them up.
        score_factors: [B, N], what scores are multiplied by.

    Returns:
        Boxes with scores [B, max_num, 5], and their classes [B, max_num].
    """
    scores = multi_scores[..., :-1]
    if score_factors is not None:
        scores = scores * score_factors.unsqueeze(-1)
    boxes = multi_bboxes.reshape(*scores.shape[:2], -1, 4)
    best, best_scores, classes, _ = torch.ops.npu.npu_batch_nms(
        boxes.half(), scores.half(), score_thr, nms_thr, max_num, max_num
    )
    return torch.cat((best, best_scores.unsqueeze(-1)), -1), classes


def npu_multiclass_nms(
    multi_bboxes: Tensor,
    multi_scores: Tensor,
    score_thr: float = 0.05,
    nms_thr: float = 0.45,
    max_num: int = 50,
    score_factors: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`npu_batched_multiclass_nms` of one image: without the first dimension everywhere."""
    factors = None if score_factors is None else score_factors.unsqueeze(0)
    boxes, classes = npu_batched_multiclass_nms(
        multi_bboxes.unsqueeze(0), multi_scores.unsqueeze(0), score_thr, nms_thr, max_num, factors
    )
    return boxes.squeeze(0), classes.squeeze(0)
