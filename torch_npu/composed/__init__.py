"""Operators of Ascend's plug-in for which CANN's present interface has none, composed of operators of ATen.

The plug-in runs them over an interface of CANN's that newer products lack. Here they work on every device, and one
registration (:mod:`torch_npu.composed.registry`) gives them gradients, captures and ``torch.compile``.
docs/composed_operators.md lists them.
"""

from torch_npu.composed import (  # noqa: F401
    attention,
    boxes,
    convolution,
    dropout,
    gradients,
    losses,
    normalization,
    optimizers,
    quantization,
    random,
    regions,
    rotated,
    scatter,
    shapes,
    sorting,
    suppression,
)
from torch_npu.composed.registry import Composed, operators

__all__ = ["Composed", "operators"]
