"""Shared by the tests of graphs."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from torchtitan_npu.sinking import block

T = TypeVar("T")


def captured(function: Callable[[], T], pool: tuple[int, int] | None = None) -> tuple[torch.npu.NPUGraph, T]:
    """A graph of what the function does, and the function's result: tensors that a replay fills."""
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, pool=pool):
        result = function()
    return graph, result


def eagerly(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The module's call as if no ``enable_graph()`` block were open in this thread."""
    options, block._thread.options = block._thread.options, None
    try:
        return model(*args, **kwargs)
    finally:
        block._thread.options = options


def churn(device: str = "npu") -> None:
    """Uses up whatever memory is free, and leaves other values in it."""
    for size in (64, 1 << 12, 1 << 16, 1 << 20, 3 << 20):
        junk = [torch.full((size,), float("nan"), device=device) for _ in range(4)]
        del junk
    torch.npu.empty_cache()
    for size in (64, 1 << 12, 1 << 16, 1 << 20):
        torch.full((size,), float("nan"), device=device)
