"""Small questions about CANN and the device, under the names of torch_npu's module ``torch_npu.npu.utils``."""

import re
import warnings

import torch

from torch_npu import _C
from torch_npu.npu.devices import get_device_name
from torch_npu.npu.devices import get_soc_version as get_soc_version
from torch_npu.npu.devices import synchronize as synchronize
from torch_npu.npu.streams import StreamContext as StreamContext
from torch_npu.npu.streams import set_stream as set_stream
from torch_npu.npu.streams import stream as stream

__all__ = [
    "clear_npu_overflow_flag",
    "current_blas_handle",
    "get_cann_version",
    "get_npu_overflow_flag",
    "get_sync_debug_mode",
    "is_support_inf_nan",
    "npu_check_overflow",
    "set_sync_debug_mode",
]

_PACKAGES = ("CANN", "RUNTIME", "COMPILER", "HCCL", "TOOLKIT", "OPP", "OPP_KERNEL", "DRIVER")
_SYNC_DEBUG_MODES = ("default", "warn", "error")


def get_cann_version(module: str = "CANN") -> str:
    """Version of a package of the CANN in use, such as "8.5.0".

    Args:
        module: CANN, RUNTIME, COMPILER, HCCL, TOOLKIT, OPP, OPP_KERNEL or DRIVER.
    """
    if module not in _PACKAGES:
        raise ValueError(f"get_cann_version: expected one of {', '.join(_PACKAGES)}, got {module!r}")
    return _C._cann_version(_PACKAGES.index(module))


def _is_gte_cann_version(version: str, module: str = "CANN") -> bool:
    """Whether the package is of this version or a later one; release candidates ("8.3.RC1") come before releases."""
    return _version_key(get_cann_version(module)) >= _version_key(version)


def _version_key(version: str) -> tuple[int, int, int, int]:
    found = re.match(r"(\d+)\.(\d+)(?:\.(?:RC(\d+)|(\d+)))?", version)
    if found is None:
        raise ValueError(f"expected a version such as 8.5.0 or 8.3.RC1, got {version!r}")
    major, minor, candidate, release = found.groups()
    return int(major), int(minor), -1 if candidate else int(release or 0), int(candidate or 0)


def is_support_inf_nan() -> bool:
    """Whether the device computes with inf and nan as IEEE 754 says: from Ascend910B1 on, and in the software CANN."""
    return get_soc_version() >= 220


def npu_check_overflow(grad: float | torch.Tensor) -> bool:
    """Whether the number, or some number of the tensor, is inf or nan."""
    if isinstance(grad, torch.Tensor):
        return not bool(torch.isfinite(grad.float()).all())
    return not abs(grad) < float("inf")


def get_npu_overflow_flag() -> bool:
    """Raises RuntimeError: inf and nan stand where older products saturate and set a flag. Ask npu_check_overflow."""
    raise RuntimeError(
        "get_npu_overflow_flag: only products before Ascend910B1 have this flag, and this plug-in does not read it; "
        f"the device is {get_device_name()}. Ask npu_check_overflow(tensor)"
    )


def clear_npu_overflow_flag() -> None:
    """Warns: there is no such flag to clear, see get_npu_overflow_flag()."""
    warnings.warn(
        "clear_npu_overflow_flag() has no effect: inf and nan are in the tensors, and there is no flag", stacklevel=2
    )


def current_blas_handle() -> None:
    """None: CANN's matrix operators need no handle."""


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Warns or raises wherever the program makes the host wait for the device without saying so.

    ``tensor.item()``, copies between the host and the device that are not asynchronous, and operators whose result has
    a size that depends on the data. :func:`torch.npu.synchronize` and waits for streams and events say so.

    Args:
        debug_mode: 0 or "default" for nothing, 1 or "warn", 2 or "error".
    """
    if isinstance(debug_mode, str):
        if debug_mode not in _SYNC_DEBUG_MODES:
            raise RuntimeError(
                "invalid value of debug_mode, expected one of `default`, `warn`, `error`; got " + repr(debug_mode)
            )
        debug_mode = _SYNC_DEBUG_MODES.index(debug_mode)
    if debug_mode not in (0, 1, 2):
        raise RuntimeError(f"invalid value of debug_mode, expected one of 0,1,2; got {debug_mode!r}")
    _C._set_sync_debug_mode(debug_mode)


def get_sync_debug_mode() -> int:
    """0, 1 or 2, see :func:`set_sync_debug_mode`."""
    return _C._sync_debug_mode()
