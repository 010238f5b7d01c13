"""One recorded call of a module: its graphs, and the static memory that they read and write."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils import _pytree as pytree

from torchtitan_npu.driver import borrow_in_graph, current_stream_handle, npu
from torchtitan_npu.sinking.capture import PoolId, capture
from torchtitan_npu.sinking.in_place import MOST_WITH_SAME_ADDRESSES, InPlaceGraph, InPlaceGraphs, Key
from torchtitan_npu.sinking.reasons import CannotSink
from torchtitan_npu.sinking.signature import _CONSTANTS, Arguments
from torchtitan_npu.sinking.watch import ModuleWatch, unchanged_attributes

__all__ = ["Lane", "Recording"]

Call = Callable[..., Any]


class Lane:
    """Memory that graphs share which never run at the same time.

    What a forward leaves for its backward lies there as well, so that between the two the lane is taken: another call
    uses another lane.
    """

    def __init__(self) -> None:
        self.pool: PoolId = npu.graph_pool_handle()
        self.awaits: weakref.ref[_AwaitedBackward] | None = None  # dies when autograd forgets the forward
        self._stream: torch.Stream | None = None  # that the lane was used on last
        self._handle: int | None = None  # of it

    def is_free(self) -> bool:
        awaited = self.awaits() if self.awaits is not None else None
        return awaited is None or awaited.done

    def order(self) -> None:
        """Makes the current stream wait for the last use of the lane."""
        handle = current_stream_handle()
        if handle == self._handle:
            return
        current = npu.current_stream()
        if self._stream is not None:
            current.wait_stream(self._stream)
        self._stream, self._handle = current, handle


class _AwaitedBackward:
    """A forward whose backward may come."""

    done = False


class Recording:
    """A signature of a module as graphs in one lane. Raises CannotSink if no graph can stand for the call."""

    def __init__(
        self, call: Call, module: nn.Module, watch: ModuleWatch, arguments: Arguments, lane: Lane, to_keep: bool
    ) -> None:
        """``to_keep``: whether results are the caller's to keep; a replay may ask for either."""
        self.lane = lane
        self.forward_graph = npu.NPUGraph()
        self.backward_graph: Any = None
        with torch.inference_mode(False):
            self.leaves = [_static(leaf) if isinstance(leaf, Tensor) else leaf for leaf in arguments.leaves]
        self.inputs = [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]
        self.in_place = InPlaceGraphs(len(self.inputs))
        versions = [i._version for i in self.inputs]
        args, kwargs = arguments.rebuild(self.leaves)
        with unchanged_attributes(module), _own_autocast_cache(), capture(self.forward_graph, lane.pool):
            outputs = call(*args, **kwargs)
        if [i._version for i in self.inputs] != versions:
            raise CannotSink("it changes its arguments in place, and a graph works on copies of them")
        leaves, self.spec = pytree.tree_flatten(outputs)
        self.outputs = self._plan_outputs(leaves, watch)
        self.results = [o.tensor for o in self.outputs if o.tensor is not None]
        if torch.is_grad_enabled() and any(r.requires_grad for r in self.results):
            self._record_backward(watch.parameters)
        self.results = [r.detach() for r in self.results]
        self.copies = len(self.inputs) + len(self.results)  # around the forward graph, in the latest replay
        if self.backward_graph is None:
            key = to_keep, self.in_place.addresses(arguments.tensors)
            count = MOST_WITH_SAME_ADDRESSES if to_keep and self.results else 1
            self.in_place.record(lambda: self._record_in_place(call, module, arguments, key), count)

    def _plan_outputs(self, leaves: list[Any], watch: ModuleWatch) -> list["_Output"]:
        inputs = {id(static): n for n, static in enumerate(self.inputs)}
        foreign = watch.addresses() | {i.untyped_storage().data_ptr() for i in self.inputs}
        foreign.discard(0)  # no memory at all
        return [_plan(leaf, inputs, foreign) for leaf in leaves]

    def _record_backward(self, parameters: Sequence[Tensor]) -> None:
        wanted = [*(i for i in self.inputs if i.requires_grad), *parameters]
        outputs = [r for r in self.results if r.requires_grad]
        _require_known_leaves(outputs, wanted)
        self.grad_outputs = [torch.empty_like(r) if r.requires_grad else None for r in self.results]
        self.backward_graph = npu.NPUGraph()
        with _own_autocast_cache(), capture(self.backward_graph, self.lane.pool), _nodes_on_the_capturing_stream():
            found = torch.autograd.grad(
                outputs, wanted, [g for g in self.grad_outputs if g is not None], allow_unused=True
            )
        self.grad_inputs = [None if g is None else g.detach() for g in found]

    # ---- what it costs

    @property
    def graphs(self) -> list[Any]:
        return [self.forward_graph] if self.backward_graph is None else [self.forward_graph, self.backward_graph]

    def launches(self) -> int:
        """Tasks of an eager run, which the graphs hold."""
        return sum(graph.node_count() for graph in self.graphs)

    def launches_of_replay(self) -> int:
        """Of the latest one: the graphs, and the copies of arguments, results and gradients around them."""
        launches = len(self.graphs) + self.copies
        if self.backward_graph is not None:
            launches += sum(g is not None for g in (*self.grad_outputs, *self.grad_inputs))
        return launches

    def peak_bytes(self) -> int:
        """Of the graphs' memory at one time; the backward's comes on top of what the forward leaves for it."""
        kept = peak = 0
        for graph in self.graphs:
            usage = graph.memory_usage()
            peak = max(peak, kept + usage["peak"])
            kept += usage["kept"]
        return peak

    def total_bytes(self) -> int:
        return sum(graph.memory_usage()["total"] for graph in self.graphs)

    # ---- replay

    def replay(self, call: Call, module: nn.Module, arguments: Arguments, watch: ModuleWatch, copy: bool) -> Any:
        """The outputs of the module for other values of the same signature."""
        given = arguments.tensors
        self.lane.order()
        if self.backward_graph is None:
            results = self._replay_forward(call, module, arguments, copy)
        else:
            with torch.no_grad():
                self._copy_in(given, [True] * len(given))
            # Their values are in the graph already: they are here for autograd to know them.
            differentiable = [*(v for v in given if v.requires_grad), *watch.parameters]
            results = _Replay.apply(self, copy, *differentiable)
        remaining = iter(results)
        leaves = [o.value(given, remaining) for o in self.outputs]
        return pytree.tree_unflatten(leaves, self.spec)

    def _replay_forward(self, call: Call, module: nn.Module, arguments: Arguments, copy: bool) -> list[Tensor]:
        given = arguments.tensors
        addresses = self.in_place.addresses(given)
        key = copy, addresses
        graph = self.in_place.find(key, lambda: self._record_in_place(call, module, arguments, key))
        with torch.no_grad():
            if graph is not None:
                self._copy_in(given, [not a for a in addresses])
                return graph.replay()
            self._copy_in(given, [True] * len(given))
            self.forward_graph.replay()
            if not copy:
                return self.results
            self.copies += len(self.results)
            return [_copied(r) for r in self.results]

    def _copy_in(self, given: Sequence[Tensor], moved: Sequence[bool]) -> None:
        self.copies = 0
        for static, value, has_moved in zip(self.inputs, given, moved, strict=True):
            if has_moved and static.data_ptr() != value.data_ptr():
                static.copy_(value)
                self.copies += 1

    def _record_in_place(self, call: Call, module: nn.Module, arguments: Arguments, key: Key) -> InPlaceGraph:
        """A graph of the same call that reads those arguments in place which have an address."""
        to_keep, addresses = key
        results = [torch.empty_like(r) for r in self.results] if to_keep else self.results
        places = zip(arguments.tensors, self.inputs, addresses, strict=True)
        with torch.inference_mode(False):
            given = [_same_memory(value) if address else static for value, static, address in places]
        graph = npu.NPUGraph()
        remaining = iter(given)
        leaves = [next(remaining) if isinstance(leaf, Tensor) else leaf for leaf in arguments.leaves]
        args, kwargs = arguments.rebuild(leaves)
        with unchanged_attributes(module), _own_autocast_cache(), capture(graph, self.lane.pool):
            for tensor, address in zip(given, addresses, strict=True):
                if address:
                    borrow_in_graph(tensor)
            outputs, spec = pytree.tree_flatten(call(*args, **kwargs))
            if spec != self.spec:
                raise CannotSink(f"its outputs were {self.spec} in one call and are {spec} in another one like it")
            made = [o for o, plan in zip(outputs, self.outputs, strict=True) if plan.tensor is not None]
            for result, output in zip(results, made, strict=True):
                result.copy_(output)
        return InPlaceGraph(key, graph, results)


class _Replay(torch.autograd.Function):
    """Forward and backward graph as one node of autograd."""

    @staticmethod
    def forward(ctx: Any, recording: Recording, copy: bool, *differentiable: Tensor) -> tuple[Tensor, ...]:
        ctx.recording, ctx.copy = recording, copy
        ctx.awaited = _AwaitedBackward()
        recording.lane.awaits = weakref.ref(ctx.awaited)
        # Lets autograd raise its usual error if one of them is changed before the backward.
        ctx.save_for_backward(*differentiable)
        recording.forward_graph.replay()
        results = [_copied(r) if copy else r.detach() for r in recording.results]
        recording.copies += len(results) if copy else 0
        ctx.mark_non_differentiable(*(r for r, g in zip(results, recording.grad_outputs, strict=True) if g is None))
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        recording: Recording = ctx.recording
        _ = ctx.saved_tensors
        if ctx.awaited.done:
            raise RuntimeError(
                "Trying to backward through a graph of enable_graph() a second time: its backward has overwritten what "
                "the forward left. Call the module once for each backward, or outside of enable_graph()."
            )
        recording.lane.order()
        for static, grad in zip(recording.grad_outputs, grads, strict=True):
            if static is not None:
                static.copy_(grad)
        recording.backward_graph.replay()
        ctx.awaited.done = True
        found = recording.grad_inputs
        return None, None, *([None if g is None else _copied(g) for g in found] if ctx.copy else found)


@dataclass(frozen=True)
class _Output:
    """One leaf of the outputs: a tensor of the graph, one of the arguments, or a constant."""

    tensor: Tensor | None = None
    argument: int | None = None
    constant: Any = None

    def value(self, given: list[Tensor], results: Iterator[Tensor]) -> Any:
        if self.tensor is not None:
            return next(results)
        return self.constant if self.argument is None else given[self.argument]


def _plan(leaf: Any, inputs: dict[int, int], foreign: set[int]) -> _Output:
    if isinstance(leaf, _CONSTANTS):
        return _Output(constant=leaf)
    if type(leaf) is not Tensor or leaf.device.type != "npu" or leaf.layout is not torch.strided:
        raise CannotSink(f"an output is a {type(leaf).__name__}; expected dense npu tensors and constants")
    if id(leaf) in inputs:
        return _Output(argument=inputs[id(leaf)])
    if leaf.untyped_storage().data_ptr() in foreign:
        raise CannotSink("an output is a view of an argument, a parameter or a buffer, and a graph gives copies")
    return _Output(tensor=leaf)


def _static(value: Tensor) -> Tensor:
    """A tensor of the graph's own in place of an argument."""
    static = value.detach().clone()
    return static.requires_grad_(value.requires_grad)


def _same_memory(value: Tensor) -> Tensor:
    """A tensor of its own to autograd, and with its own version, in the memory of `value`."""
    same = torch.empty(0, dtype=value.dtype, device=value.device)
    same.set_(value.untyped_storage(), value.storage_offset(), value.shape, value.stride())
    return same.requires_grad_(value.requires_grad)


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _require_known_leaves(outputs: list[Tensor], wanted: list[Tensor]) -> None:
    """Raises CannotSink if gradients would have to go elsewhere than to the module's parameters and arguments."""
    known = {id(w) for w in wanted}
    pending: list[Node] = [o.grad_fn for o in outputs if o.grad_fn is not None]
    seen = set(pending)
    while pending:
        node = pending.pop()
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor) and id(variable) not in known:
            raise CannotSink("a gradient goes to a tensor that is neither a parameter of the module nor an argument")
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)


@contextmanager
def _own_autocast_cache() -> Iterator[None]:
    """What autocast has cast before is not taken into the graph, which has to see later values of a parameter, and
    what it casts in the graph is not used outside.
    """
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


@contextmanager
def _nodes_on_the_capturing_stream() -> Iterator[None]:
    """Parameters have nodes of autograd that remember the stream on which the eager run used them first."""
    torch.autograd.graph.set_override_stale_capture_stream(True)
    try:
        yield
    finally:
        torch.autograd.graph.set_override_stale_capture_stream(False)
