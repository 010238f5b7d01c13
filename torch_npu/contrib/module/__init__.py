"""Layers that programs for Ascend's plug-in import."""

from torch_npu.contrib.module.detection import DCNv2, ModulatedDeformConv, PSROIPool, ROIAlign
from torch_npu.contrib.module.layers import (
    BiLSTM,
    ChannelShuffle,
    Focus,
    LabelSmoothingCrossEntropy,
    Mish,
    NpuDropPath,
    SiLU,
    Swish,
)
from torch_npu.contrib.module.npu_modules import DropoutWithByteMask
from torch_npu.contrib.module.prefetcher import Prefetcher
from torch_npu.contrib.module.quantized import LinearA8W8Quant, LinearQuant, LinearWeightQuant

__all__ = [
    "BiLSTM",
    "ChannelShuffle",
    "DCNv2",
    "DropoutWithByteMask",
    "Focus",
    "LabelSmoothingCrossEntropy",
    "LinearA8W8Quant",
    "LinearQuant",
    "LinearWeightQuant",
    "Mish",
    "ModulatedDeformConv",
    "NpuDropPath",
    "PSROIPool",
    "Prefetcher",
    "ROIAlign",
    "SiLU",
    "Swish",
]
