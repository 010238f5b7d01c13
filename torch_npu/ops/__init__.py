"""Operators of the namespace ``torch.ops.npu`` that are made of ATen operators."""

from torch_npu.ops.attention import npu_fusion_attention

__all__ = ["npu_fusion_attention"]
