"""Devices: how many there are, which one is current, what they are."""

import os
import warnings
from typing import Any

import torch

from torch_npu import _C
from torch_npu.npu._utils import _get_device_index

# A device as arguments name it: an index, "npu", "npu:1", a torch.device, or None for the current one.
DeviceLike = int | str | torch.device | None

# SoC names and the numbers that get_soc_version() gives for them.
_SOC_VERSIONS = {
    "Ascend910PremiumA": 100,
    "Ascend910ProA": 101,
    "Ascend910A": 102,
    "Ascend910ProB": 103,
    "Ascend910B": 104,
    "Ascend310P1": 200,
    "Ascend310P2": 201,
    "Ascend310P3": 202,
    "Ascend310P4": 203,
    "Ascend310P5": 204,
    "Ascend310P7": 205,
    "Ascend910B1": 220,
    "Ascend910B2": 221,
    "Ascend910B2C": 222,
    "Ascend910B3": 223,
    "Ascend910B4": 224,
    "Ascend910B4-1": 225,
    "Ascend310B1": 240,
    "Ascend310B2": 241,
    "Ascend310B3": 242,
    "Ascend310B4": 243,
    "Ascend910_9391": 250,
    "Ascend910_9392": 251,
    "Ascend910_9381": 252,
    "Ascend910_9382": 253,
    "Ascend910_9372": 254,
    "Ascend910_9362": 255,
    "Ascend910_9363": 256,
}
_ASCEND950 = 260
_FIRST_WITH_BF16 = _SOC_VERSIONS["Ascend910B1"]


def is_available() -> bool:
    """Whether a device can be used. If not, ``torch_npu.cann_info()["error"]`` says why. Initialises no device."""
    return _C._device_count() > 0


def device_count() -> int:
    """Number of visible devices. Initialises none."""
    return _C._device_count()


def is_initialized() -> bool:
    """Whether this process has initialised CANN, and was not forked from one that had."""
    return _C._is_initialized()


def init() -> None:
    """Initialises CANN now rather than at the first use of a device.

    Raises:
        RuntimeError: no CANN can be used (with the reasons), or this is the forked child of an initialised process.
    """
    _C._init()


def _lazy_init() -> None:
    """The name under which PyTorch calls init() before it creates the first tensor."""
    _C._init()


def _is_in_bad_fork() -> bool:
    return _C._in_bad_fork()


def current_device() -> int:
    """Index of the calling thread's device. Initialises CANN, as torch.cuda.current_device() does CUDA.

    Raises:
        RuntimeError: no CANN can be used, or this is the forked child of an initialised process.
    """
    _C._init()
    return _C._current_device()


def set_device(device: DeviceLike) -> None:
    """Selects the calling thread's device; a negative index selects nothing.

    Raises:
        RuntimeError: there is no such device.
    """
    index = _get_device_index(device, optional=True)
    if index >= 0:
        _C._set_device(index)


class device:
    """Context manager that selects a device for a while.

    Args:
        device: the device; None or a negative index selects nothing.
    """

    def __init__(self, device: Any) -> None:
        self.idx = _get_device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _C._exchange_device(self.idx)

    def __exit__(self, *exc_info: object) -> None:
        _C._exchange_device(self.prev_idx)


class device_of(device):
    """Context manager that selects the device of a tensor or storage; a no-op for one on another kind of device."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if obj.is_npu else -1)


def synchronize(device: DeviceLike = None) -> None:
    """Waits for all work on the device (default: the current one). Raises what failed in it."""
    _C._synchronize(_get_device_index(device, optional=True))


def _checked_index(device: DeviceLike, what: str = "device") -> int:
    index = _get_device_index(device, optional=True)
    count = _C._device_count()
    if not 0 <= index < count:
        raise AssertionError(f"Invalid {what} id: {index}, this process sees {count} npu device(s)")
    return index


def can_device_access_peer(device_id: DeviceLike, peer_device_id: DeviceLike) -> bool:
    """Whether one device can read and write the memory of the other; False for a device and itself."""
    return _C._can_access_peer(_checked_index(device_id), _checked_index(peer_device_id, "peer device"))


def get_device_name(device_name: DeviceLike = None) -> str:
    """The device's SoC, such as "Ascend910B3". Initialises no device."""
    _checked_index(device_name)
    return _C._cann_info()["soc"]


def get_device_properties(device_name: DeviceLike = None) -> "_C._NPUDeviceProperties":
    """name, total_memory and L2_cache_size (bytes), cube_core_num, vector_core_num, multi_processor_count, uuid.

    The fields that CUDA has and an NPU has not (major, minor, warp_size, …) are None.
    """
    return _C._properties(_checked_index(device_name))


def get_device_capability(device: DeviceLike = None) -> tuple[int, int] | None:
    """What TORCH_NPU_DEVICE_CAPABILITY says, such as "9.0", as (9, 0); None without it.

    An NPU has no compute capability. The variable serves code that asks for CUDA's and cannot do without.
    """
    value = os.environ.get("TORCH_NPU_DEVICE_CAPABILITY", "")
    if not value:
        return None
    major, _, minor = value.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        warnings.warn(
            f"TORCH_NPU_DEVICE_CAPABILITY={value!r} is ignored: expected 'major.minor', such as '9.0'", stacklevel=2
        )
        return None
    return int(major), int(minor)


def get_soc_version() -> int:
    """The number that torch_npu gives the SoC (Ascend910B3: 223); -1 for one that it does not know."""
    soc = _C._cann_info()["soc"]
    return _ASCEND950 if soc.startswith("Ascend950") else _SOC_VERSIONS.get(soc, -1)


def is_bf16_supported(including_emulation: bool = False) -> bool:
    """Whether the device computes in bfloat16: from Ascend910B1 on."""
    return get_soc_version() >= _FIRST_WITH_BF16


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """(free, total) bytes of the device's memory."""
    return _C._memory_info(_checked_index(device))


def npurt() -> Any:
    """CANN's runtime functions for code that manages raw handles; each takes addresses and returns CANN's error code.

    ``npuStreamCreate(address_of_handle)``, ``npuStreamDestroy(handle)``, ``npuHostRegister(address, bytes, flags)``,
    ``npuHostUnregister(address)``. Initialises CANN.
    """
    _C._init()
    return _C._npurt


def utilization(device: DeviceLike = None) -> int:
    """How busy the device's matrix cores are, in per cent."""
    return _C._utilization(_checked_index(device))
