"""Helps for programs that were written for another device, or for Ascend's plug-in.

:mod:`torch_npu.contrib.transfer_to_npu` runs programs for CUDA. :mod:`torch_npu.contrib.function` and
:mod:`torch_npu.contrib.module` have functions and layers under the names of Ascend's plug-in, which are here as well.
"""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if not name.startswith("__"):
        for package in ("function", "module"):
            found = importlib.import_module(f"torch_npu.contrib.{package}")
            if name in found.__all__:
                return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
