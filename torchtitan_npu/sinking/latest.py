"""The latest call of a module, found again without Python: loops repeat a call, and in nothing but the values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from torchtitan_npu.driver import RecordedCall
from torchtitan_npu.sinking.in_place import InPlaceGraph
from torchtitan_npu.sinking.recording import Recording
from torchtitan_npu.sinking.signature import Arguments
from torchtitan_npu.sinking.watch import ModuleWatch

if TYPE_CHECKING:
    from torchtitan_npu.sinking.cache import Sunk

__all__ = ["LatestCall"]


class LatestCall:
    """A call that graphs stand for which read its arguments in place."""

    def __init__(
        self,
        sunk: Sunk,
        recording: Recording,
        graphs: list[InPlaceGraph],
        watch: ModuleWatch,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.sunk = sunk
        self._recording = recording
        self._graphs = graphs
        self._call = RecordedCall(watch.state, recording.lane, args, kwargs, [g.parts() for g in graphs])

    @staticmethod
    def applies_to(arguments: Arguments) -> bool:
        """Whether all arguments are tensors and constants, and none is a container, whose content may change."""
        return isinstance(arguments.spec, tuple)

    def has(self, graphs: list[InPlaceGraph]) -> bool:
        return self._graphs == graphs

    def replay(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """The outputs, or None if this is another call, or nothing of the graphs' results is free."""
        results = self._call.replay(args, kwargs)
        if results is None:
            return None
        self.sunk.replays += 1
        self._recording.copies = 0
        given = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        return (self._recording.outputs_of(given, results),)
