"""Which arguments of which operators a captured graph can be given anew (``NPUGraph.update``)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch_npu.npu.streams import ExternalEvent

__all__ = ["NpuGraphOpHandler", "register_npu_graph_handler"]

# ("arg", position, name in the update) or ("kwarg", keyword, name in the update)
UpdateSpec = tuple[Literal["arg", "kwarg"], int | str, str]


@dataclass
class GraphDispatchRecord:
    """One call that was captured as a task group."""

    event: ExternalEvent  # the replay waits for it before the group
    handle: int  # the aclrtTaskGrp
    args: list[Any]
    kwargs: dict[str, Any]
    op_cache_entry: Callable[..., Any]  # what was called


class NpuGraphOpHandler:
    """How calls of an operator are captured and updated. Handlers have no state: all methods are class methods.

    ``UPDATE_SPECS`` says, by the operator's name (``"my_op.default"``), which values of an update go where::

        @register_npu_graph_handler("my_op.default")
        class MyHandler(NpuGraphOpHandler):
            UPDATE_SPECS = {"my_op.default": [("arg", 2, "lengths")]}

    A value whose name is a keyword argument of the call needs no entry.
    """

    UPDATE_SPECS: dict[str, list[UpdateSpec]] = {}

    @classmethod
    def prepare_capture(
        cls, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The call that is recorded in place of ``func(*args, **kwargs)``; its results must stay where they are."""
        return func, args, kwargs

    @classmethod
    def postprocess_result(cls, result: Any, kwargs: dict[str, Any]) -> Any:
        """What the program gets as the result of the call."""
        return result

    @classmethod
    def get_update_specs(cls, op_name: str) -> list[UpdateSpec]:
        return cls.UPDATE_SPECS.get(op_name, [])

    @classmethod
    def update_args(cls, dispatch_record: GraphDispatchRecord, update_input: dict[str, Any]) -> None:
        """Puts the values of an update into the recorded call."""
        name = getattr(dispatch_record.op_cache_entry, "__name__", "")
        for kind, place, key in cls.get_update_specs(name):
            if key not in update_input:
                continue
            if kind == "kwarg":
                dispatch_record.kwargs[str(place)] = update_input[key]
            elif int(place) < len(dispatch_record.args):
                dispatch_record.args[int(place)] = update_input[key]


_NPU_GRAPH_OP_HANDLERS: dict[str, type[NpuGraphOpHandler]] = {}


def register_npu_graph_handler(
    op_names: str | list[str] | tuple[str, ...],
) -> Callable[[type[NpuGraphOpHandler]], type[NpuGraphOpHandler]]:
    """Class decorator: calls of these operators (``"my_op.default"``) can be updated in graphs.

    A second handler of an operator takes the place of the first, with a warning.
    """
    names = [op_names] if isinstance(op_names, str) else list(op_names)

    def register(handler: type[NpuGraphOpHandler]) -> type[NpuGraphOpHandler]:
        for name in names:
            if (before := _NPU_GRAPH_OP_HANDLERS.get(name)) is not None:
                warnings.warn(
                    f"the graph handler of {name} was {before.__name__} and is {handler.__name__} now", stacklevel=2
                )
            _NPU_GRAPH_OP_HANDLERS[name] = handler
        return handler

    return register
