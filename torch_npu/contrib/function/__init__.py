"""Functions that programs for Ascend's plug-in import."""

from torch_npu.contrib.function.boxes import (
    npu_batched_multiclass_nms,
    npu_bbox_coder_decode_xywh2xyxy,
    npu_bbox_coder_encode_xyxy2xywh,
    npu_bbox_coder_encode_yolo,
    npu_ciou,
    npu_diou,
    npu_giou,
    npu_iou,
    npu_multiclass_nms,
    npu_ptiou,
    npu_single_level_responsible_flags,
)
from torch_npu.contrib.function.npu_functional import dropout_with_byte_mask
from torch_npu.contrib.function.tensors import (
    fuse_add_softmax_dropout,
    matmul_transpose,
    npu_fast_condition_index_put,
    roll,
)

__all__ = [
    "dropout_with_byte_mask",
    "fuse_add_softmax_dropout",
    "matmul_transpose",
    "npu_batched_multiclass_nms",
    "npu_bbox_coder_decode_xywh2xyxy",
    "npu_bbox_coder_encode_xyxy2xywh",
    "npu_bbox_coder_encode_yolo",
    "npu_ciou",
    "npu_diou",
    "npu_fast_condition_index_put",
    "npu_giou",
    "npu_iou",
    "npu_multiclass_nms",
    "npu_ptiou",
    "npu_single_level_responsible_flags",
    "roll",
]
