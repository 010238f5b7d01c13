"""Tells a record of streams and events what each operator reads and writes: the half of check_races() that watches."""

import threading
import traceback
import warnings
from typing import Any, Literal

import torch
from torch.cuda import _sanitizer as base
from torch.utils._python_dispatch import TorchDispatchMode

from torch_npu.npu.streams import current_stream

__all__ = ["NPUArgumentHandler", "NPUSanitizerDispatchMode", "NPUSanitizerErrors"]


class NPUSanitizerErrors(RuntimeError):
    """One message for each pair of accesses without an order."""


class NPUArgumentHandler(base.ArgumentHandler):
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


class _UnderWay(threading.local):
    """Of each thread, because backward passes of several devices run at once."""

    args_handler: base.ArgumentHandler | None = None


class NPUSanitizerDispatchMode(TorchDispatchMode):
    """Tells ``event_handler`` of every operator, as a launch on the current stream, and acts on what it finds.

    Args:
        event_handler: keeps the order of streams, as PyTorch's CUDA sanitizer does.
        action: "raise" :class:`NPUSanitizerErrors` after the operator was launched, or "warn".
    """

    def __init__(self, event_handler: base.EventHandler, action: Literal["raise", "warn"] = "raise") -> None:
        super().__init__()
        self.event_handler = event_handler
        self.action = action
        self._under_way = _UnderWay()

    @property
    def args_handler(self) -> base.ArgumentHandler | None:
        """Of the operator that this thread is launching; None outside of one."""
        return self._under_way.args_handler

    @args_handler.setter
    def args_handler(self, handler: base.ArgumentHandler | None) -> None:
        self._under_way.args_handler = handler

    def parse_inputs(self, schema: Any, args: Any, kwargs: Any, *, is_factory: bool) -> None:
        assert self.args_handler is not None
        self.args_handler.parse_inputs(schema, args, kwargs, is_factory=is_factory)

    def parse_outputs(self, schema: Any, outputs: Any, *, is_factory: bool) -> None:
        assert self.args_handler is not None
        self.args_handler.parse_outputs(schema, outputs, is_factory=is_factory)

    def check_errors(self, schema: Any) -> None:
        """Hands the operator's accesses over, and raises or warns if they lack an order."""
        arguments = self.args_handler
        assert arguments is not None
        if not arguments.tensor_aliases:
            return
        errors = self.event_handler._handle_kernel_launch(
            current_stream().npu_stream,
            arguments.dataptrs_read - arguments.dataptrs_written,
            arguments.dataptrs_written,
            arguments.outputs,
            schema,
            arguments.tensor_aliases,
        )
        if not errors:
            return
        message = "\n".join(map(_describe, errors))
        if self.action == "raise":
            raise NPUSanitizerErrors(message)
        warnings.warn(message, RuntimeWarning, stacklevel=3)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.record_stream.default:  # no work on a stream
            return func(*args, **kwargs)
        is_factory = bool(base.FACTORY_FUNCTION_REGEX.match(func._schema.name))
        self.args_handler = NPUArgumentHandler()
        try:
            self.parse_inputs(func._schema, args, kwargs, is_factory=is_factory)
            outputs = func(*args, **kwargs)
            self.parse_outputs(func._schema, outputs, is_factory=is_factory)
            self.check_errors(func._schema)
        finally:
            self.args_handler = None
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
