"""PyTorch's profiler under the names of the vendor's ``torch_npu.profiler``.

``torch.profiler.profile`` shows the same: device npu takes part in it as ``ProfilerActivity.NPU``.
"""

from torch.profiler import ProfilerAction, ProfilerActivity, schedule, supported_activities

from torch_npu.profiler.experimental_config import (
    AiCMetrics,
    ExportType,
    HostSystem,
    ProfilerLevel,
    _ExperimentalConfig,
    supported_ai_core_metrics,
    supported_export_type,
    supported_profiler_level,
)
from torch_npu.profiler.profiler import profile, tensorboard_trace_handler

__all__ = [
    "AiCMetrics",
    "ExportType",
    "HostSystem",
    "ProfilerAction",
    "ProfilerActivity",
    "ProfilerLevel",
    "_ExperimentalConfig",
    "profile",
    "schedule",
    "supported_activities",
    "supported_ai_core_metrics",
    "supported_export_type",
    "supported_profiler_level",
    "tensorboard_trace_handler",
]
