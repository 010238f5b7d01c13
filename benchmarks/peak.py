"""How much memory a piece of work takes on top of what is there before it."""

from __future__ import annotations

import gc

import torch
from torch._C._autograd import DeviceType

from benchmarks.timing import Work

__all__ = ["peak_bytes"]


def peak_bytes(work: Work, device: DeviceType) -> int:
    """The most that a call has asked a device's allocator for at one time, without what that rounds up.

    On the CPU as PyTorch's profiler sees it, on npu by the allocator's statistics.
    """
    gc.collect()
    if device == DeviceType.PrivateUse1:
        torch.npu.reset_peak_memory_stats()
        before = torch.npu.memory_stats()["requested_bytes.all.current"]
        work()
        return torch.npu.memory_stats()["requested_bytes.all.peak"] - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        work()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]" and event.device_type() == device:
            held += event.nbytes()
            peak = max(peak, held)
    return peak
