"""Batches that are on the device before they are asked for."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from torch_npu import npu

__all__ = ["Prefetcher"]


class Prefetcher:
    """Copies the next pair of tensors of a loader to the device, on a stream of its own, while one is in use.

    Args:
        loader: gives pairs of input and target; pinned memory makes the copies asynchronous.
        stream: for the copies; a new one by default.
    """

    def __init__(self, loader: Iterable[tuple[Tensor, Tensor]], stream: torch.Stream | None = None) -> None:
        self.loader = iter(loader)
        self.stream = stream if stream is not None else npu.Stream()
        self.preload()

    def preload(self) -> None:
        """Begins the copy of the next pair."""
        self.next_input: Tensor | None
        self.next_target: Tensor | None
        pair = next(self.loader, None)
        if pair is None:
            self.next_input = self.next_target = None
            return
        with npu.stream(self.stream):
            self.next_input, self.next_target = (t.to("npu", non_blocking=True) for t in pair)

    def next(self) -> tuple[Tensor | None, Tensor | None]:
        """The next pair, or (None, None) after the last one."""
        current = npu.current_stream()
        current.wait_stream(self.stream)
        pair = self.next_input, self.next_target
        for tensor in pair:
            if tensor is not None:
                tensor.record_stream(current)  # its memory belongs to the other stream
        if pair[1] is not None:
            self.preload()
        return pair
