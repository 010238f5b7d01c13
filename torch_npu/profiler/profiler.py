"""``torch.profiler.profile`` that takes the vendor's configuration."""

from collections.abc import Callable
from typing import Any

import torch

from torch_npu.profiler.experimental_config import _ExperimentalConfig

__all__ = ["profile", "tensorboard_trace_handler"]


class profile(torch.profiler.profile):
    """``torch.profiler.profile(...)``; by default of the CPU and of npu.

    Args:
        experimental_config: the vendor's, which concerns the collector of Ascend hardware and is only kept here as
            ``npu_config``; or torch's, which is handed on.
        others: as for ``torch.profiler.profile``.
    """

    def __init__(self, *, experimental_config: Any = None, **options: Any) -> None:
        self.npu_config = experimental_config if isinstance(experimental_config, _ExperimentalConfig) else None
        super().__init__(experimental_config=None if self.npu_config else experimental_config, **options)


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, analyse_flag: bool = True, async_mode: bool = False
) -> Callable[[torch.profiler.profile], None]:
    """``torch.profiler.tensorboard_trace_handler(dir_name, worker_name)``.

    Args:
        dir_name: folder for a file ``<worker>.<time>.pt.trace.json`` of each cycle, for Perfetto or chrome://tracing.
        worker_name: default: host and process.
        analyse_flag, async_mode: accepted; the file is complete and needs no analysis afterwards.
    """
    return torch.profiler.tensorboard_trace_handler(dir_name, worker_name)
