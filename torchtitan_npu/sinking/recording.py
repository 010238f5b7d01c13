"""One recorded call of a module: its graphs, and the static memory that they read and write."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils import _pytree as pytree

from torchtitan_npu.driver import Lane, TrainingGraphs, borrow_in_graph, npu
from torchtitan_npu.sinking.capture import capture
from torchtitan_npu.sinking.in_place import MOST_WITH_SAME_ADDRESSES, InPlaceGraph, InPlaceGraphs, Key
from torchtitan_npu.sinking.reasons import CannotSink
from torchtitan_npu.sinking.signature import _CONSTANTS, Arguments
from torchtitan_npu.sinking.watch import ModuleWatch, unchanged_attributes

__all__ = ["Recording"]

Call = Callable[..., Any]


class Recording:
    """A signature of a module as graphs in one lane. Raises CannotSink if no graph can stand for the call."""

    def __init__(
        self, call: Call, module: nn.Module, watch: ModuleWatch, arguments: Arguments, lane: Lane, to_keep: bool
    ) -> None:
        """``to_keep``: whether results are the caller's to keep; a replay may ask for either."""
        self.lane = lane
        self.forward_graph = npu.NPUGraph()
        self.backward_graph: Any = None
        self._training: Any = None  # both graphs as a node of autograd
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
        grad_results = [torch.empty_like(r) if r.requires_grad else None for r in self.results]
        self.backward_graph = npu.NPUGraph()
        with _own_autocast_cache(), capture(self.backward_graph, self.lane.pool), _nodes_on_the_capturing_stream():
            # Activation checkpointing draws the forward's numbers again.
            self.backward_graph._continue_random_numbers_of(self.forward_graph)
            grads = torch.autograd.grad(outputs, wanted, [g for g in grad_results if g is not None], allow_unused=True)
        self._training = TrainingGraphs(
            lane=self.lane,
            forward=self.forward_graph,
            backward=self.backward_graph,
            inputs=[i.detach() for i in self.inputs],
            results=[r.detach() for r in self.results],
            grad_results=grad_results,
            grads=[None if g is None else g.detach() for g in grads],
        )

    # ---- what it costs

    @property
    def graphs(self) -> list[Any]:
        return [self.forward_graph] if self.backward_graph is None else [self.forward_graph, self.backward_graph]

    def launches(self) -> int:
        """Tasks of an eager run, which the graphs hold."""
        return sum(graph.node_count() for graph in self.graphs)

    def launches_of_replay(self) -> int:
        """Of the latest one: the graphs, and the copies of arguments, results and gradients around them."""
        return 1 + self.copies if self._training is None else self._training.launches()

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

    def replay(
        self, call: Call, module: nn.Module, arguments: Arguments, watch: ModuleWatch, copy: bool, follow: bool
    ) -> Any:
        """The outputs of the module for other values of the same signature.

        ``follow``: memory that arguments often come back to may get a graph, for which ``forward`` is executed.
        """
        given = arguments.tensors
        if self._training is None:
            self.lane.order()
            record = functools.partial(self._record_in_place, call, module, arguments) if follow else None
            results = self._replay_forward(given, copy, record)
        else:
            results = self._training.replay(given, [*(v for v in given if v.requires_grad), *watch.parameters], copy)
        return self.outputs_of(given, results)

    def outputs_of(self, given: list[Tensor], results: list[Tensor]) -> Any:
        """What the module returns, for these arguments, where the graph's results are these."""
        remaining = iter(results)
        leaves = [o.value(given, remaining) for o in self.outputs]
        return pytree.tree_unflatten(leaves, self.spec)

    def in_place_graphs(self, given: Sequence[Tensor], copy: bool) -> list[InPlaceGraph]:
        """Those that read all of these arguments where they lie."""
        return self.in_place.of((copy, tuple(t.data_ptr() for t in given)))

    def _replay_forward(
        self, given: Sequence[Tensor], copy: bool, record: Callable[[Key], InPlaceGraph] | None
    ) -> list[Tensor]:
        addresses = self.in_place.addresses(given, follow=record is not None)
        key = copy, addresses
        graph = self.in_place.find(key, record and functools.partial(record, key))
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
