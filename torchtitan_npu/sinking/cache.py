"""The graphs of each module, and the decision between replay, recording and running as always."""

import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchtitan_npu.driver import Lane, npu
from torchtitan_npu.sinking.latest import LatestCall
from torchtitan_npu.sinking.reasons import CannotSink, GraphSinkingWarning
from torchtitan_npu.sinking.recording import Recording
from torchtitan_npu.sinking.signature import Arguments, describe_leaf, flatten, modes
from torchtitan_npu.sinking.watch import ModuleWatch, require_no_global_hooks

__all__ = ["ModuleGraphs", "Options", "Sunk", "all_graphs", "clear_graphs", "run"]

# Forwards of one module whose backwards may come later: each needs memory of its own.
MAX_LANES = 4


@dataclass(frozen=True)
class Options:
    """Of one ``enable_graph()``."""

    strict: bool
    copy_outputs: bool
    cache_limit: int
    follow_memory: bool


@dataclass
class Sunk:
    """One signature of a module: its recordings by lane, or why it has none."""

    text: str
    recordings: dict[int, Recording] = field(default_factory=dict)
    replays: int = 0
    reason: str = ""


class ModuleGraphs:
    """All that is known of one module. Used under its lock, so that threads take turns with its static memory."""

    def __init__(self, module: nn.Module) -> None:
        self.lock = threading.RLock()
        self.name = type(module).__name__
        self.watch = ModuleWatch(module)
        self.lanes: list[Lane] = []
        self.sunk: OrderedDict[Hashable, Sunk] = OrderedDict()
        self.latest: dict[bool, LatestCall] = {}  # with outputs to keep, and without

    def refresh(self, module: nn.Module) -> None:
        """Forgets the graphs if the module is not what it was."""
        if not self.watch.is_unchanged():
            self.sunk.clear()
            self.latest.clear()
            self.watch = ModuleWatch(module)
            self.watch.require_no_hooks(module)

    def find(self, key: Hashable, arguments: Arguments, limit: int) -> Sunk:
        found = self.sunk.get(key)
        if found is None:
            found = self.sunk[key] = Sunk(", ".join(map(describe_leaf, arguments.leaves)))
        self.sunk.move_to_end(key)
        while len(self.sunk) > limit:
            _, gone = self.sunk.popitem(last=False)
            self.latest = {keep: call for keep, call in self.latest.items() if call.sunk is not gone}
        return found

    def remember(
        self, sunk: Sunk, recording: Recording, arguments: Arguments, args: Any, kwargs: Any, keep: bool
    ) -> None:
        """Makes this the call that is looked for first, if graphs read its arguments where they lie."""
        graphs = recording.in_place_graphs(arguments.tensors, keep)
        latest = self.latest.get(keep)
        if graphs and LatestCall.applies_to(arguments) and not (latest is not None and latest.has(graphs)):
            self.latest[keep] = LatestCall(sunk, recording, graphs, self.watch, args, kwargs)

    def free_lane(self, preferred: dict[int, Recording]) -> int:
        """One that has a recording already, else one that exists, else a new one."""
        free = [n for n, lane in enumerate(self.lanes) if lane.is_free()]
        for n in (*(n for n in free if n in preferred), *free):
            return n
        if len(self.lanes) == MAX_LANES:
            raise CannotSink(f"{MAX_LANES} earlier calls wait for their backward, and each holds its own memory")
        self.lanes.append(Lane())
        return len(self.lanes) - 1


_graphs: weakref.WeakKeyDictionary[nn.Module, ModuleGraphs] = weakref.WeakKeyDictionary()
_refused: weakref.WeakKeyDictionary[nn.Module, set[str]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def all_graphs() -> list[ModuleGraphs]:
    with _lock:
        return list(_graphs.values())


def clear_graphs(module: nn.Module | None = None) -> None:
    """Gives up the graphs of a module and their memory; None: those of all modules."""
    with _lock:
        if module is None:
            _graphs.clear()
        else:
            _graphs.pop(module, None)


def _of(module: nn.Module) -> ModuleGraphs:
    with _lock:
        found = _graphs.get(module)
        if found is None:
            found = ModuleGraphs(module)
            found.watch.require_no_hooks(module)
            _graphs[module] = found
        return found


def run(
    call: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
) -> Any:
    """The result of a module call, from a graph where one can stand for it."""
    known = _graphs.get(module)
    if known is not None and (latest := known.latest.get(options.copy_outputs)) is not None:
        with known.lock:
            outputs = latest.replay(args, kwargs)
        if outputs is not None:
            return outputs[0]
    if not _concerns_npu(module, args, kwargs) or npu.is_current_stream_capturing():
        return call(*args, **kwargs)
    try:
        _require_plain_autograd()
        require_no_global_hooks()
        arguments = flatten(args, kwargs)
        graphs = _of(module)
        with graphs.lock:
            return _replay_or_record(call, module, graphs, args, kwargs, arguments, options)
    except CannotSink as why:
        reason = why
    if options.strict:
        raise reason
    _warn(module, str(reason), stacklevel=5)
    return call(*args, **kwargs)


def _replay_or_record(
    call: Callable[..., Any],
    module: nn.Module,
    graphs: ModuleGraphs,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    arguments: Arguments,
    options: Options,
) -> Any:
    graphs.refresh(module)
    key = (arguments.key, graphs.watch.training(), modes())
    sunk = graphs.find(key, arguments, options.cache_limit)
    if sunk.reason:
        raise CannotSink(sunk.reason)
    number = graphs.free_lane(sunk.recordings)
    recording = sunk.recordings.get(number)
    if recording is not None:
        sunk.replays += 1
        graphs.remember(sunk, recording, arguments, args, kwargs, options.copy_outputs)
        with graphs.watch.recording():  # for memory that it is to follow
            return recording.replay(call, module, arguments, graphs.watch, options.copy_outputs, options.follow_memory)
    result = call(*args, **kwargs)
    try:
        with graphs.watch.recording():
            sunk.recordings[number] = Recording(
                call, module, graphs.watch, arguments, graphs.lanes[number], options.copy_outputs
            )
    except CannotSink as why:
        sunk.reason = str(why)
        if options.strict:
            raise
        _warn(module, sunk.reason, stacklevel=6)
    return result


def _concerns_npu(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether there is something to record: modules of other devices run as always, without a word."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.device.type == "npu":
            return True
    first = next(module.parameters(), None)
    return first is not None and first.device.type == "npu"


def _require_plain_autograd() -> None:
    if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
        raise CannotSink(
            "a dispatch mode or a function transform wants to see the operators, of which a replay has none"
        )


def _warn(module: nn.Module, reason: str, stacklevel: int) -> None:
    """Once for a module and reason."""
    with _lock:
        told = _refused.setdefault(module, set())
        if reason in told:
            return
        told.add(reason)
    warnings.warn(f"{type(module).__name__} runs without a graph: {reason}", GraphSinkingWarning, stacklevel=stacklevel)
