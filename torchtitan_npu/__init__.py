"""Optimisation layers and tools for device npu, in Python against the public API of torch and torch_npu."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Where the names live. Imported at their first use: they bring Dynamo and torch_npu, which not every program needs.
_HOMES = {"explain": "torchtitan_npu.explanation", "optimize": "torchtitan_npu.fused"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
