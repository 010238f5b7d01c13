"""What a converter hands to :func:`torchtitan_npu.optimize`: forwards for a module, and what to try them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Offer:
    """Candidates for one module. ``sample`` is the shape of its argument, or its arguments by name (CPU, float32)."""

    swaps: Sequence[Mapping[nn.Module, Forward]]
    sample: tuple[int, ...] | Mapping[str, Any]
    units: int = 16  # in the last place of float32 by which results may differ
    half_units: int = 8  # the same for float16 and bfloat16
    builds_on_forward: bool = False  # whether candidates are made of the module's present forward
    covers: Sequence[nn.Module] = ()  # submodules that are not called any more, and need no swap of their own


class Refused(Exception):
    """A module that nearly fits. The message says what is missing."""


# None where the module is nothing of the converter's kind.
Converter = Callable[[nn.Module], Offer | None]
