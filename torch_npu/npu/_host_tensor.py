"""Tensors as the vendor's plug-in describes them to functions on the host: plain tuples, which hold no tensor.

Ours hands such functions a copy in host memory (graph_debug.py). Programs that register host functions of their own use
these names of ``torch_npu.npu.graphs``. Source: github.com/Ascend/pytorch, torch_npu/npu/graphs.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["BUFFER_MARKER", "POINTER_MARKER", "from_buffer", "pointer_of"]

POINTER_MARKER = "host_tensor_ptr"
BUFFER_MARKER = "host_tensor_buffer"


def pointer_of(tensor: Tensor) -> tuple[str, int, int, tuple[int, ...], torch.dtype]:
    """(marker, address, bytes, shape, dtype). The caller keeps the tensor."""
    return POINTER_MARKER, tensor.data_ptr(), tensor.nbytes, tuple(tensor.shape), tensor.dtype


def from_buffer(argument: Any) -> Any:
    """The tensor over a buffer of ``(marker, buffer, shape, dtype)``; lists item by item, anything else as it is."""
    if isinstance(argument, list):
        return [from_buffer(item) for item in argument]
    if not (isinstance(argument, tuple) and len(argument) == 4 and argument[0] == BUFFER_MARKER):
        return argument
    _, buffer, shape, dtype = argument
    return torch.frombuffer(buffer, dtype=dtype).reshape(shape) if len(buffer) else torch.empty(shape, dtype=dtype)
