"""What the layers need of the device beyond torch's public API: the one place that knows the plug-in underneath."""

from __future__ import annotations

from typing import Any

import torch

import torch_npu
import torch_npu._C

# torch.npu, which torch's types do not know.
npu: Any = torch.get_device_module("npu")

# ModuleState(members, empty, attributes, values): whether dictionaries hold what they held, tensors their memory, and
# the tensors `values` what is in it (is_unchanged()), and which modules are in train mode (training()).
ModuleState: Any = torch_npu._C._ModuleState
# RecordedCall(state, lane, args, kwargs, graphs): a call that graphs stand for as long as nothing differs; `graphs`: of
# each the graph, the memory of its results, and for each storage in it a tensor and the count of its uses when no
# caller holds it. replay(args, kwargs) gives results, or None where something differs.
RecordedCall: Any = torch_npu._C._RecordedCall
# Addresses(addresses).are_those_of(tensors): whether each tensor of a list lies there; 0 stands for any address.
Addresses: Any = torch_npu._C._Addresses
# RecordedPlan(addresses, places, graph, results, handed_out): a captured plan. replay(inputs, stream) gives the
# results, or None, and nothing was done, where inputs lie elsewhere, results are in use or the stream is another one.
RecordedPlan: Any = torch_npu._C._RecordedPlan
# Lane(): memory that graphs share which never run at the same time. `pool` names it; is_free() says whether no forward
# in it waits for its backward; order() makes the current stream wait for its last use.
Lane: Any = torch_npu._C._Lane
# TrainingGraphs(lane, forward, backward, inputs, results, grad_results, grads): two captured graphs and the memory that
# they read and write, as one node of autograd. replay(inputs, differentiable, copy) gives the results; launches().
TrainingGraphs: Any = torch_npu._C._TrainingGraphs
# keep_in_graph(tensor): the graph that is being captured holds its memory; for kernels launched with addresses.
keep_in_graph: Any = torch_npu._C._graph_keep
# borrow_in_graph(tensor): that graph does not hold its memory: the tensor is there whenever the graph is replayed.
borrow_in_graph: Any = torch_npu._C._graph_borrow
# used_on_other_streams(tensor): whether record_stream() was called on it, or on another one of the same storage.
used_on_other_streams: Any = torch_npu._C._has_recorded_streams
# count_in_graph(nodes): that graph has so many nodes more, which were launched with addresses.
count_in_graph: Any = torch_npu._C._graph_count_nodes

_handles: dict[tuple[int, int], int] = {}


def require_plain_format(tensor: torch.Tensor) -> None:
    """Raises for a tensor in a packed memory format, which a kernel that gets an address would take for a plain one.

    Raises:
        NotImplementedError: the tensor is in FRACTAL_NZ.
    """
    if (format := torch_npu.get_npu_format(tensor)) is torch_npu.Format.FRACTAL_NZ:
        raise NotImplementedError(
            f"a fused kernel reads a tensor of shape {list(tensor.shape)} in {format}, expected a plain one; matrix "
            "products alone read packed tensors. Cast it back: torch_npu.npu_format_cast(t, 2)"
        )


def current_stream_handle() -> int:
    """The aclrtStream that work of the calling thread goes to."""
    # torch.accelerator.current_stream() without its layers of Python: every call of a compiled graph asks.
    stream = torch._C._accelerator_getStream(torch._C._accelerator_getDeviceIndex())
    key = stream.device_index, stream.stream_id
    handle = _handles.get(key)
    if handle is None:
        handle = _handles[key] = npu.current_stream().npu_stream
    return handle
