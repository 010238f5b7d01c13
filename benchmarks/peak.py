"""How much memory a piece of work takes on top of what is there before it."""

from __future__ import annotations

import gc

import torch
from torch._C._autograd import DeviceType

from benchmarks.timing import Work

__all__ = ["peak_bytes"]


def peak_bytes(work: Work, device: DeviceType) -> int:
    """The most that a device's allocator has given out at one time during a call, as PyTorch's profiler sees it."""
    gc.collect()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        work()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]" and event.device_type() == device:
            held += event.nbytes()
            peak = max(peak, held)
    return peak
