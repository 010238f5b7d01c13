"""Graphs: device work that is recorded once and then runs as often as wanted, without Python.

The names and signatures are those of ``torch.cuda``. Different from CUDA: a graph keeps every block of memory that its
work uses until :meth:`NPUGraph.reset`, whatever becomes of the tensors; generators need no registration.
"""

import gc
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from torch_npu import _C
from torch_npu.npu import _npugraph_utils
from torch_npu.npu import graph_debug as graph_debug
from torch_npu.npu import paged_attention as paged_attention
from torch_npu.npu import quantized_paged_attention as quantized_paged_attention
from torch_npu.npu import transformer_library as transformer_library
from torch_npu.npu._host_tensor import BUFFER_MARKER as _NPUGRAPH_TENSOR_BUFFER_SPEC_MARKER  # noqa: F401
from torch_npu.npu._host_tensor import POINTER_MARKER as _NPUGRAPH_TENSOR_PTR_SPEC_MARKER  # noqa: F401
from torch_npu.npu._host_tensor import from_buffer as _materialize_npugraph_tensor_arg  # noqa: F401
from torch_npu.npu._host_tensor import pointer_of as _make_npugraph_tensor_ptr_spec  # noqa: F401
from torch_npu.npu._npugraph_handlers.dispatch import GraphDispatchMode
from torch_npu.npu.devices import _lazy_init, current_device, synchronize
from torch_npu.npu.memory import empty_cache, host_empty_cache
from torch_npu.npu.streams import Stream, StreamContext, stream

__all__ = [
    "NPUGraph",
    "graph",
    "graph_pool_handle",
    "graph_task_group_begin",
    "graph_task_group_end",
    "graph_task_update_begin",
    "graph_task_update_end",
    "is_current_stream_capturing",
    "make_graphed_callables",
]

PoolId = tuple[int, int]
Callables = nn.Module | Callable[..., Any]


def is_current_stream_capturing() -> bool:
    """Whether work put on the current stream is recorded instead of run. Initialises no device."""
    return _C._is_current_stream_capturing()


def graph_pool_handle() -> PoolId:
    """The id of a new memory pool, which graphs share that are captured with ``pool=`` this id.

    Graphs may share a pool if they are replayed in the order of their capture, and never two at a time.
    """
    return _C._graph_pool_handle()


def graph_task_group_begin(stream: Stream) -> None:
    """From here to :func:`graph_task_group_end`, work captured on the stream is a group that can be updated."""
    _C._task_group_begin(stream.npu_stream)


def graph_task_group_end(stream: Stream) -> int:
    """Ends the group; the handle names it to :func:`graph_task_update_begin`."""
    return _C._task_group_end(stream.npu_stream)


def graph_task_update_begin(stream: Stream, handle: int) -> None:
    """From here to :func:`graph_task_update_end`, work put on the stream replaces that of the captured group.

    It must be the same operators on tensors of the same shapes; lengths and other numbers may differ.
    """
    _C._task_update_begin(stream.npu_stream, handle)


def graph_task_update_end(stream: Stream) -> None:
    """Ends the update. Raises, and changes nothing, if it had another number of tasks than the group."""
    _C._task_update_end(stream.npu_stream)


class NPUGraph(_C._NPUGraph):
    """Work captured on a stream, which :meth:`replay` runs again on the same memory.

    Use it through :class:`torch.npu.graph` or :func:`make_graphed_callables`.

    Args:
        keep_graph: accepted as in ``torch.cuda``; CANN's models are ready to run when their capture ends.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        _lazy_init()
        super().__init__(keep_graph)
        self.graph_dispatch_mode = GraphDispatchMode()
        self.auto_dispatch_capture = False

    def capture_begin(
        self, pool: PoolId | None = None, capture_error_mode: str = "global", check_input_liveness: bool = False
    ) -> None:
        """Starts to record the work of the current stream, and of streams that wait for it.

        Args:
            pool: whose memory it may share: :func:`graph_pool_handle` or another graph's :meth:`pool`.
            capture_error_mode: which calls raise that would run at once instead of being recorded: those of all
                threads ("global"), of this thread ("thread_local"), none ("relaxed").
            check_input_liveness: accepted; there is nothing to check, as a graph keeps the memory of its inputs.

        Raises:
            RuntimeError: on the default stream; if the graph is captured already.
        """
        super().capture_begin(pool, capture_error_mode)

    def capture_end(self) -> None:
        """Ends the capture; on the stream and in the thread that began it, unless the mode is "relaxed".

        Raises:
            RuntimeError: work of another stream was not waited for. The graph is empty then.
        """
        super().capture_end()

    def instantiate(self) -> None:
        """Nothing but a check that a captured graph is there: CANN's models are ready to run."""
        super().instantiate()

    def replay(self) -> None:
        """Puts the recorded work on the current stream. Random numbers go on from the generators' states."""
        super().replay()

    def reset(self) -> None:
        """Gives up the recorded work and its memory. During a capture, ends it and forgets what it has."""
        super().reset()

    def pool(self) -> PoolId:
        """The id of the graph's memory pool."""
        return super().pool()

    def enable_debug_mode(self) -> None:
        """Accepted as in ``torch.cuda``: :meth:`debug_dump` needs no preparation."""
        super().enable_debug_mode()

    def debug_dump(self, debug_path: str) -> None:
        """Writes the recorded tasks to a JSON file, and beside it ``….aligned.json``, a time line for trace viewers.

        Warns, and writes nothing, where nothing was captured.
        """
        if self.node_count() == 0:
            warnings.warn("NPUGraph.debug_dump: nothing was captured, so that no file is written", stacklevel=2)
            return
        super().debug_dump(debug_path)
        try:
            _npugraph_utils.align_trace_json(debug_path, None)
        except Exception as error:  # whatever the CANN in use wrote, the dump itself is there
            warnings.warn(f"NPUGraph.debug_dump: no time line could be made of {debug_path}: {error}", stacklevel=2)

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Accepted as in ``torch.cuda``: operators make the generators known that they draw from."""
        super().register_generator_state(generator)

    def update(self, cpu_update_input: list[dict[str, Any]]) -> None:
        """Gives attention over a cache, or what else has a handler, other lengths for the next replay.

        Every replay of a graph that was captured with ``auto_dispatch_capture=True`` waits for such an update.

        Args:
            cpu_update_input: for each such call, in the order of the capture, the new values by their names, such as
                ``{"actual_seq_lengths_kv": [17]}``; or one such dict for all calls.

        Raises:
            RuntimeError: the graph was captured without ``auto_dispatch_capture``, or the list has another length.
        """
        if not self.auto_dispatch_capture:
            raise RuntimeError(
                "NPUGraph.update: the graph was captured without auto_dispatch_capture=True, so that it has no calls "
                "that can be updated; capture it with torch.npu.graph(g, auto_dispatch_capture=True)"
            )
        self.graph_dispatch_mode.update(cpu_update_input)

    def node_count(self) -> int:
        """How many operators, copies and other tasks a replay runs."""
        return super().node_count()

    def memory_usage(self) -> dict[str, int]:
        """Bytes of the pool that the captured work takes.

        ``peak`` at one time, ``kept`` by tensors that were alive at the end of the capture, and ``total`` of all its
        tensors, which is what they would take if none shared memory.
        """
        return super().memory_usage()


class graph:
    """Context manager that captures the work of its block into a graph.

    Args:
        npu_graph: to capture into.
        pool: whose memory it may share, see :meth:`NPUGraph.capture_begin`.
        stream: to capture on; by default one that is made for this purpose, one a device.
        capture_error_mode: see :meth:`NPUGraph.capture_begin`.
        check_input_liveness: see :meth:`NPUGraph.capture_begin`.
        auto_dispatch_capture: whether calls that have a handler (:func:`register_npu_graph_handler`), such as
            npu_fused_infer_attention_score, are captured so that :meth:`NPUGraph.update` can change their arguments.

    If the block raises, the graph is reset.
    """

    default_capture_streams: dict[int, Stream] = {}

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: PoolId | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
        auto_dispatch_capture: bool = False,
    ) -> None:
        if stream is None:
            stream = self.default_capture_streams.setdefault(current_device(), Stream())
        self.npu_graph = npu_graph
        self.pool = pool
        self.capture_stream = stream
        self.capture_error_mode = capture_error_mode
        self._on_stream = StreamContext(stream)
        self.npu_graph.auto_dispatch_capture = auto_dispatch_capture

    def __enter__(self) -> None:
        synchronize()
        if torch.compiler.config.force_cudagraph_gc:
            gc.collect()
        empty_cache()
        host_empty_cache()
        self._on_stream.__enter__()
        try:
            self.npu_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:
            self._on_stream.__exit__()
            raise
        if self.npu_graph.auto_dispatch_capture:
            self.npu_graph.graph_dispatch_mode.__enter__()

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self.npu_graph.auto_dispatch_capture:
            self.npu_graph.graph_dispatch_mode.__exit__(None, None, None)
        try:
            if error is None:
                self.npu_graph.capture_end()
                if self.npu_graph.node_count() == 0:
                    warnings.warn(
                        "The NPU Graph is empty. This usually means that the graph was attempted to be captured on "
                        "wrong device or stream.",
                        stacklevel=2,
                    )
            else:
                self.npu_graph.reset()
        finally:
            self._on_stream.__exit__()


def make_graphed_callables(
    callables: Callables | tuple[Callables, ...],
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: PoolId | None = None,
) -> Callables | tuple[Callables, ...]:
    """Callables whose forward is one graph and whose backward is another, for use in a training loop.

    Args:
        callables: a module or function, or several, in the order in which the loop runs them. A module gets a new
            ``forward`` that is used as long as its ``training`` stays what it is.
        sample_args: for a single callable a tuple of arguments, else a tuple of such tuples: nests of tensors with the
            shapes, dtypes and ``requires_grad`` of the later ones.
        num_warmup_iters: how often each runs before it is captured.
        allow_unused_input: whether inputs may have no influence on the outputs; their gradient is None then.
        pool: whose memory the graphs may share.

    Outputs and gradients are the graphs' own memory, which the next call overwrites. The results have no second
    derivative. A module's parameters must stay the same tensors.

    Raises:
        RuntimeError: under autocast with its cache; for modules with hooks or trainable buffers; for arguments that
            are no tensors.
    """
    if torch.is_autocast_enabled("npu") and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables under autocast needs cache_enabled=False: the graph would read parameters that "
            "were cast once, and not see later values"
        )
    is_single = not isinstance(callables, tuple)
    functions: tuple[Callables, ...] = (callables,) if is_single else callables  # type: ignore[assignment]
    parts = [
        _GraphedCallable(function, args, allow_unused_input)
        for function, args in zip(functions, (sample_args,) if is_single else sample_args, strict=True)
    ]
    pool = graph_pool_handle() if pool is None else pool
    synchronize()
    with stream(Stream()):
        for part in parts:
            part.warm_up(num_warmup_iters)
    synchronize()
    # In the order of the later replays, so that what one graph leaves for another is not overwritten in between.
    for part in parts:
        part.capture_forward(pool)
    for part in reversed(parts):
        part.capture_backward(pool)
    results = tuple(part.install() for part in parts)
    return results[0] if is_single else results


class _GraphedCallable:
    """One callable of :func:`make_graphed_callables`."""

    def __init__(self, function: Callables, args: tuple[Any, ...], allow_unused: bool) -> None:
        self.function = function
        self.args = args
        self.allow_unused = allow_unused
        self.parameters: tuple[Tensor, ...] = ()
        if isinstance(function, nn.Module):
            _require_graphable(function)
            self.parameters = tuple(function.parameters())
        self.arguments = tuple(pytree.arg_tree_leaves(*args))
        if not all(isinstance(argument, Tensor) for argument in self.arguments):
            raise RuntimeError("make_graphed_callables: sample_args must contain tensors and nothing else")
        self.inputs = self.arguments + self.parameters
        self.differentiable = tuple(i for i in self.inputs if i.requires_grad)
        self.forward_graph, self.backward_graph = NPUGraph(), NPUGraph()
        self.has_backward = False

    def warm_up(self, iterations: int) -> None:
        for _ in range(iterations):
            outputs = pytree.tree_leaves(self.function(*self.args))
            self.gradients(outputs, [torch.empty_like(o) if o.requires_grad else None for o in outputs])

    def gradients(self, outputs: Any, grad_outputs: Any) -> tuple[Tensor | None, ...]:
        """With respect to the inputs that require one."""
        wanted = [(o, g) for o, g in zip(outputs, grad_outputs, strict=True) if g is not None]
        if not wanted or not self.differentiable:
            return ()
        return torch.autograd.grad(
            [o for o, _ in wanted], self.differentiable, [g for _, g in wanted], allow_unused=self.allow_unused
        )

    def capture_forward(self, pool: PoolId) -> None:
        with graph(self.forward_graph, pool):
            outputs = self.function(*self.args)
        leaves, self.output_spec = pytree.tree_flatten(outputs)
        self.outputs = tuple(leaves)

    def capture_backward(self, pool: PoolId) -> None:
        self.grad_outputs = tuple(torch.empty_like(o) if o.requires_grad else None for o in self.outputs)
        found: tuple[Tensor | None, ...] = ()
        self.has_backward = bool(self.differentiable) and any(g is not None for g in self.grad_outputs)
        if self.has_backward:
            with graph(self.backward_graph, pool):
                self.backward_graph._continue_random_numbers_of(self.forward_graph)
                found = self.gradients(self.outputs, self.grad_outputs)
        # A place for every input: None for those that want no gradient.
        remaining = iter(found)
        self.grad_inputs = tuple(next(remaining, None) if i.requires_grad else None for i in self.inputs)
        self.outputs = tuple(o.detach() for o in self.outputs)

    def install(self) -> Callables:
        """The graphed callable: a function, or the module itself with another forward."""
        function = self.function
        if not isinstance(function, nn.Module):
            return self
        module, mode, original = function, function.training, function.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            return self(*args, **kwargs) if module.training == mode else original(*args, **kwargs)

        module.forward = forward
        return module

    def __call__(self, *args: Any) -> Any:
        results = _Replay.apply(self, *pytree.arg_tree_leaves(*args), *self.parameters)
        return pytree.tree_unflatten(results, self.output_spec)


class _Replay(torch.autograd.Function):
    """Forward and backward of a graphed callable as one node of autograd."""

    @staticmethod
    def forward(ctx: Any, part: _GraphedCallable, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.part = part
        for static, given in zip(part.arguments, inputs, strict=False):
            if static.data_ptr() != given.data_ptr():
                static.copy_(given)
        part.forward_graph.replay()
        results = tuple(o.detach() for o in part.outputs)
        ctx.mark_non_differentiable(*(r for r, g in zip(results, part.grad_outputs, strict=True) if g is None))
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        part = ctx.part
        for static, given in zip(part.grad_outputs, grads, strict=True):
            if static is not None and static.data_ptr() != given.data_ptr():
                static.copy_(given)
        if part.has_backward:
            part.backward_graph.replay()
        return None, *(None if g is None else g.detach() for g in part.grad_inputs)


def _require_graphable(module: nn.Module) -> None:
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        raise RuntimeError(
            "make_graphed_callables: the module has hooks, which a replay would not run; register them afterwards"
        )
    if any(buffer.requires_grad for buffer in module.buffers()):
        raise RuntimeError("make_graphed_callables: a buffer of the module requires grad; only parameters may")
