"""Device arguments: what a user may pass where an npu device is meant."""

from typing import Any

import torch

from torch_npu import _C

# "cuda" too in programs that torch_npu.contrib.transfer_to_npu transfers.
DEVICE_TYPES = {"npu"}


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """Index of the npu device that ``device`` names.

    Args:
        device: an int (returned as it is), "npu", "npu:1", a ``torch.device``, a ``torch.npu.device``, or None.
        optional: whether a device without index, or None, means the current device.
        allow_cpu: whether a CPU device is accepted; it gives -1.

    Raises:
        ValueError: a device of another type, or one without index that ``optional`` does not allow.
    """
    if isinstance(device, int):
        return device
    from torch_npu.npu import devices  # imports this module

    if isinstance(device, devices.device):
        return device.idx
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type == "cpu" and allow_cpu:
            return -1
        if device.type not in DEVICE_TYPES:
            expected = "a npu or cpu device" if allow_cpu else "a npu device"
            raise ValueError(f"Expected {expected}, but got: {device}")
        if device.index is not None:
            return device.index
    elif device is not None:
        raise ValueError(f"Expected an int, a str or a torch.device, but got: {device!r}")
    if not optional:
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got: {device}")
    return _C._current_device()
