"""Optimisation layers and tools for device npu, in Python against the public API of torch and torch_npu."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "explain":  # brings Dynamo, which most programs do not need
        from torchtitan_npu.explanation import explain

        return explain
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
