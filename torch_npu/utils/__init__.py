"""Helpers that programs for Ascend call under ``torch_npu.utils``."""

from torch_npu.npu.utils import get_cann_version
from torch_npu.utils.affinity import reset_thread_affinity, set_thread_affinity
from torch_npu.utils.combine_tensors import get_part_combined_tensor, is_combined_tensor_valid, npu_combine_tensors
from torch_npu.utils.serialization import save_async

__all__ = [
    "get_cann_version",
    "get_part_combined_tensor",
    "is_combined_tensor_valid",
    "npu_combine_tensors",
    "reset_thread_affinity",
    "save_async",
    "set_thread_affinity",
]
