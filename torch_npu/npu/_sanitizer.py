"""Finds work on one stream that does not wait for what another stream does to the same memory.

``with torch_npu.check_races(): …``, or :func:`enable_npu_sanitizer` or ``TORCH_NPU_SANITIZER=1`` for a whole program.
The bookkeeping of streams, events and accesses is that of PyTorch's CUDA sanitizer. What counts is the order that
events, ``wait_stream`` and synchronisation promise, not what happened to run first: so a missing wait is found on every
run, with the software CANN too, which runs streams one after another.
"""

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from torch.cuda import _sanitizer as base

from torch_npu import _C
from torch_npu.npu._stream_check import NPUSanitizerDispatchMode, NPUSanitizerErrors

__all__ = ["NPUSanitizerErrors", "check_races", "enable_npu_sanitizer"]


_handler: base.EventHandler | None = None  # of the check under way


@contextmanager
def check_races(action: Literal["raise", "warn"] = "raise") -> Iterator[None]:
    """Watch the work of this thread, and of its backward passes, for memory that two streams use without an order.

    A read must wait for the last write of another stream, a write for that and for the reads since; an event,
    ``wait_stream``, or a synchronisation makes the order. What was launched before the block counts as done. Parts of
    one storage count as the same memory. Every operator takes longer, for its Python stack is kept.

    Args:
        action: what happens at the first operator of each pair: ``"raise"`` :class:`NPUSanitizerErrors` after it was
            launched, or ``"warn"``. The message names both operators, streams and Python lines.

    Raises:
        ValueError: ``action`` is something else.
        RuntimeError: a check is under way already.
    """
    if action not in ("raise", "warn"):
        raise ValueError(f"check_races: action must be 'raise' or 'warn', but is {action!r}")
    global _handler
    if _handler is not None:
        raise RuntimeError("check_races: a check is under way already; blocks cannot be nested")
    _handler = handler = base.EventHandler()
    _C._observe_trace(lambda event, *handles: getattr(handler, f"_handle_{event}")(*handles))
    try:
        with NPUSanitizerDispatchMode(handler, action):
            yield
    finally:
        _C._observe_trace(None)
        _handler = None


_whole_program: Any = None


def enable_npu_sanitizer() -> None:
    """:func:`check_races` for this thread until the program ends (also by ``TORCH_NPU_SANITIZER=1``)."""
    global _whole_program
    if _whole_program is None:
        _whole_program = check_races()
        _whole_program.__enter__()
        atexit.register(_C._observe_trace, None)  # tensors are freed while the interpreter ends
