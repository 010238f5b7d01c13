"""What the layers need of the device beyond torch's public API: the one place that knows the plug-in underneath."""

from __future__ import annotations

import torch


def current_stream_handle() -> int | None:
    """The aclrtStream that work of the calling thread goes to; None is CANN's default stream."""
    return getattr(torch, "npu").current_stream().npu_stream or None  # noqa: B009  known to torch at run time only
