"""Finds work on one stream that does not wait for what another stream does to the same memory.

``with torch_npu.check_races(): …``, or :func:`enable_npu_sanitizer` or ``TORCH_NPU_SANITIZER=1`` for a whole program.
The bookkeeping of streams, events and accesses is that of PyTorch's CUDA sanitizer. What counts is the order that
events, ``wait_stream`` and synchronisation promise, not what happened to run first: so a missing wait is found on every
run, with the software CANN too, which runs streams one after another.
"""

import atexit
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch.cuda import _sanitizer as base
from torch.utils._python_dispatch import TorchDispatchMode

from torch_npu import _C
from torch_npu.npu.streams import current_stream

__all__ = ["NPUSanitizerErrors", "check_races", "enable_npu_sanitizer"]


class NPUSanitizerErrors(RuntimeError):
    """One message for each pair of accesses without an order."""


class _Arguments(base.ArgumentHandler):
    """Which storages an operator reads and writes: parts of one storage count as the same memory."""

    def _handle_argument(
        self, value: Any, is_write: bool, metadata_only: bool, name: str | None = None, is_output: bool = False
    ) -> None:
        if not isinstance(value, torch.Tensor) or value.device.type != "npu":
            return
        address = value.untyped_storage().data_ptr()
        if address == 0:
            return
        if is_write:
            self.dataptrs_written.add(address)
        elif not metadata_only:
            self.dataptrs_read.add(address)
        names = self.tensor_aliases.setdefault(address, [])
        if name is not None:
            names.append(name)
        if is_output:
            self.outputs.add(address)


class _Dispatch(TorchDispatchMode):
    def __init__(self, handler: base.EventHandler, action: str) -> None:
        super().__init__()
        self.handler = handler
        self.action = action

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.record_stream.default:  # no work on a stream
            return func(*args, **kwargs)
        is_factory = bool(base.FACTORY_FUNCTION_REGEX.match(func._schema.name))
        arguments = _Arguments()
        arguments.parse_inputs(func._schema, args, kwargs, is_factory=is_factory)
        outputs = func(*args, **kwargs)
        arguments.parse_outputs(func._schema, outputs, is_factory=is_factory)
        if not arguments.tensor_aliases:
            return outputs
        errors = self.handler._handle_kernel_launch(
            current_stream().npu_stream,
            arguments.dataptrs_read - arguments.dataptrs_written,
            arguments.dataptrs_written,
            arguments.outputs,
            func._schema,
            arguments.tensor_aliases,
        )
        if errors:
            message = "\n".join(map(_describe, errors))
            if self.action == "raise":
                raise NPUSanitizerErrors(message)
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        return outputs


def _describe(error: Any) -> str:
    current, previous = error.current_access, error.previous_access
    lines = [
        f"npu race: {_name(current)} on stream {current.stream:#x} does not wait for {_name(previous)} on stream "
        f"{previous.stream:#x}, and both use the memory at {error.data_ptr:#x}:"
    ]
    for access in (current, previous):
        arguments = f" {', '.join(access.aliases)}" if access.aliases else " its output"
        lines.append(f"  {access.type}{arguments}: {_python_line(access.stack_trace)}")
    if error.allocation_stack_trace:
        lines.append(f"  allocated: {_python_line(error.allocation_stack_trace)}")
    lines.append("Put stream.wait_stream(other) or stream.wait_event(event) before the later of the two.")
    return "\n".join(lines)


def _name(access: Any) -> str:
    return f"{access.operator.name}.{access.operator.overload_name}".rstrip(".")


def _python_line(stack: traceback.StackSummary) -> str:
    """ "train.py:12 in forward": the innermost frame outside torch."""
    outside = [f for f in stack if "/torch/" not in f.filename and "/torch_npu/" not in f.filename]
    frame = (outside or stack)[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}"


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
        with _Dispatch(handler, action):
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
