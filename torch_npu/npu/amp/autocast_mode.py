"""Autocast for device npu."""

import functools
from collections.abc import Callable
from typing import Any

import torch


class autocast(torch.amp.autocast_mode.autocast):
    """``torch.autocast("npu", ...)``, with the arguments in another order and float16 as the default."""

    def __init__(self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True) -> None:
        super().__init__("npu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


def custom_fwd(fwd: Callable | None = None, *, cast_inputs: torch.dtype | None = None) -> Any:
    """``torch.amp.custom_fwd(..., device_type="npu")``."""
    return torch.amp.custom_fwd(fwd, device_type="npu", cast_inputs=cast_inputs)


def custom_bwd(bwd: Callable | None = None) -> Any:
    """``torch.amp.custom_bwd(..., device_type="npu")``."""
    if bwd is None:
        return functools.partial(torch.amp.custom_bwd, device_type="npu")
    return torch.amp.custom_bwd(bwd, device_type="npu")
