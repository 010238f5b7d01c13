"""What CANN's collector on Ascend hardware can be asked for. Accepted and checked; nothing here collects it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

__all__ = [
    "AiCMetrics",
    "ExportType",
    "HostSystem",
    "ProfilerLevel",
    "_ExperimentalConfig",
    "supported_ai_core_metrics",
    "supported_export_type",
    "supported_profiler_level",
]


class ProfilerLevel(str, Enum):
    """How much the collector notes of each operator."""

    Level0 = "Level0"
    Level1 = "Level1"
    Level2 = "Level2"
    Level_none = "Level_none"


class AiCMetrics(str, Enum):
    """Counters of the AI Cores."""

    PipeUtilization = "ACL_AICORE_PIPE_UTILIZATION"
    ArithmeticUtilization = "ACL_AICORE_ARITHMETIC_UTILIZATION"
    Memory = "ACL_AICORE_MEMORY_BANDWIDTH"
    MemoryL0 = "ACL_AICORE_L0B_AND_WIDTH"
    MemoryUB = "ACL_AICORE_MEMORY_UB"
    ResourceConflictRatio = "ACL_AICORE_RESOURCE_CONFLICT_RATIO"
    L2Cache = "ACL_AICORE_L2_CACHE"
    MemoryAccess = "ACL_AICORE_MEMORY_ACCESS"
    AiCoreNone = "ACL_AICORE_NONE"


class ExportType(str, Enum):
    """Formats of the collector's files."""

    Db = "db"
    Text = "text"


class HostSystem(str, Enum):
    """Parts of the host that the collector can watch."""

    CPU = "cpu"
    MEM = "mem"
    DISK = "disk"
    NETWORK = "network"
    OSRT = "osrt"
    NUMA = "numa"


def supported_profiler_level() -> set[ProfilerLevel]:
    return set(ProfilerLevel)


def supported_ai_core_metrics() -> set[AiCMetrics]:
    return set(AiCMetrics)


def supported_export_type() -> set[ExportType]:
    return set(ExportType)


@dataclass
class _ExperimentalConfig:
    """``experimental_config`` of :class:`torch_npu.profiler.profile`.

    Raises:
        ValueError: a level, counter, format or part of the host that does not exist.
    """

    profiler_level: ProfilerLevel | str = ProfilerLevel.Level0
    aic_metrics: AiCMetrics | str = AiCMetrics.AiCoreNone
    l2_cache: bool = False
    msprof_tx: bool = False
    mstx: bool = False
    data_simplification: bool = True
    record_op_args: bool = False
    op_attr: bool = False
    gc_detect_threshold: float | None = None
    export_type: ExportType | str | Sequence[ExportType | str] = ExportType.Text
    host_sys: Sequence[HostSystem | str] = field(default_factory=list)
    mstx_domain_include: Sequence[str] = field(default_factory=list)
    mstx_domain_exclude: Sequence[str] = field(default_factory=list)
    sys_io: bool = False
    sys_interconnection: bool = False

    def __post_init__(self) -> None:
        self.profiler_level = ProfilerLevel(self.profiler_level)
        self.aic_metrics = AiCMetrics(self.aic_metrics)
        exports = [self.export_type] if isinstance(self.export_type, str) else self.export_type
        self.export_type = [ExportType(e) for e in exports]
        self.host_sys = [HostSystem(h) for h in self.host_sys or ()]
