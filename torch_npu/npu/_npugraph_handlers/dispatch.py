"""Captures calls that have a handler as task groups, and gives them other arguments later."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_npu import _C
from torch_npu.npu._npugraph_handlers import attention as attention
from torch_npu.npu._npugraph_handlers.npugraph_handler import _NPU_GRAPH_OP_HANDLERS, GraphDispatchRecord
from torch_npu.npu.streams import ExternalEvent, Stream, StreamContext, current_stream


class GraphDispatchMode(TorchDispatchMode):
    """Active during a capture with ``auto_dispatch_capture=True``."""

    _update_stream: Stream | None = None

    def __init__(self) -> None:
        super().__init__()
        self.graph_dispatch_records: list[GraphDispatchRecord] = []

    @property
    def update_stream(self) -> Stream:
        """The stream on which all graphs are updated."""
        if GraphDispatchMode._update_stream is None:
            GraphDispatchMode._update_stream = Stream()
        return GraphDispatchMode._update_stream

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        handler = _NPU_GRAPH_OP_HANDLERS.get(func.__name__)
        if handler is None:
            return func(*args, **(kwargs or {}))
        stream = current_stream()
        event = ExternalEvent()
        event.wait(stream)
        event.reset(stream)
        call, args, kwargs = handler.prepare_capture(func, args, kwargs or {})
        _C._task_group_begin(stream.npu_stream)
        result = call(*args, **kwargs)
        group = _C._task_group_end(stream.npu_stream)
        # Without the tensors' owners: the graph keeps their memory itself, and shares it with other tensors.
        record = GraphDispatchRecord(event, group, [_unowned(a) for a in args], _unowned(kwargs), call)
        self.graph_dispatch_records.append(record)
        return handler.postprocess_result(result, kwargs)

    def update(self, inputs: list[dict[str, Any]]) -> None:
        """Gives the recorded calls, in their order, other arguments, and lets the waiting replay go on.

        Args:
            inputs: values by name for each call, or one such dict for all of them.
        """
        records = self.graph_dispatch_records
        if len(inputs) == 1:
            inputs = inputs * len(records)
        if len(inputs) != len(records):
            raise RuntimeError(
                f"NPUGraph.update: the graph has {len(records)} calls that can be updated, but {len(inputs)} updates "
                "were given; give one for each call, or a single one for all"
            )
        stream = self.update_stream
        with StreamContext(stream), torch.no_grad():
            for record, values in zip(records, inputs, strict=True):
                self._update_one(record, values, stream)

    def _update_one(self, record: GraphDispatchRecord, values: dict[str, Any], stream: Stream) -> None:
        name = getattr(record.op_cache_entry, "__name__", "")
        record.kwargs.update({key: value for key, value in values.items() if key in record.kwargs})
        _NPU_GRAPH_OP_HANDLERS[name].update_args(record, values)
        _C._task_update_begin(stream.npu_stream, record.handle)
        try:
            record.op_cache_entry(*record.args, **record.kwargs)
        finally:
            _C._task_update_end(stream.npu_stream)
        record.event.record(stream)


def _unowned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _C._weak_ref_tensor(value) if value.device.type == "npu" else value.clone()
    if isinstance(value, (list, tuple)):
        return type(value)(_unowned(v) for v in value)
    if isinstance(value, dict):
        return {key: _unowned(v) for key, v in value.items()}
    return value
