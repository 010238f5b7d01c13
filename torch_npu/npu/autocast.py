"""The state of autocast, for code that does not use the context manager."""

import torch

from torch_npu.npu.devices import is_bf16_supported


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that ``torch.autocast("npu", dtype=...)`` takes."""
    if is_bf16_supported():
        return [torch.float16, torch.bfloat16, torch.float32]
    return [torch.float16, torch.float32]


def is_autocast_enabled() -> bool:
    """Whether autocast is on for npu in the calling thread."""
    return torch.is_autocast_enabled("npu")


def set_autocast_enabled(enable: bool) -> None:
    """Switches autocast for npu in the calling thread."""
    torch.set_autocast_enabled("npu", enable)


def get_autocast_dtype() -> torch.dtype:
    """The lower precision that autocast uses for npu in the calling thread."""
    return torch.get_autocast_dtype("npu")


def set_autocast_dtype(dtype: torch.dtype) -> None:
    """Sets the lower precision that autocast uses for npu in the calling thread."""
    torch.set_autocast_dtype("npu", dtype)
