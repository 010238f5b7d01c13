"""``with enable_graph():`` and the decorator: how module calls get to the graphs."""

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn
from torch._C._dynamo import eval_frame
from torch.nn.parallel import DistributedDataParallel

from torchtitan_npu.sinking.cache import Options, run

__all__ = ["enable_graph"]

Function = TypeVar("Function", bound=Callable[..., Any])


class _Thread(threading.local):
    """What a thread is inside of."""

    options: Options | None = None


_thread = _Thread()
_lock = threading.Lock()
_open_blocks = 0


def _plain_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The module's call as if no block were open."""
    compiled = vars(self).get("_compiled_call_impl")  # of Module.compile()
    return (self._call_impl if compiled is None else compiled)(*args, **kwargs)


def _call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    options = _thread.options
    if options is None:
        _leave_modules_alone()
        return _plain_call(self, *args, **kwargs)
    if isinstance(self, DistributedDataParallel):
        # It prepares the reduction of gradients at each call, which a replay would not: its module is what is recorded.
        return _plain_call(self, *args, **kwargs)
    _thread.options = None  # modules inside are part of this call
    try:
        return run(functools.partial(_plain_call, self), self, args, kwargs, options)
    finally:
        _thread.options = options


class _CallOfEveryModule:
    """From the first block on, every module has `_call` as its `_compiled_call_impl`, which `nn.Module.__call__` calls
    in place of `_call_impl`, until a module is called outside of all blocks.

    PyTorch's global forward hooks see a call but cannot take its place; and replacing `nn.Module.__call__`, a slot that
    all subclasses inherit, takes about 100 us where many are defined. Setting this attribute costs about 14 us, as
    Python forgets what it remembers of the attributes of modules: a loop over blocks pays that once. It is a data
    descriptor, and thereby also stands before what Module.compile() sets on a module of its own.
    """

    def __get__(self, module: nn.Module | None, owner: type) -> Any:
        return None if module is None else functools.partial(_call, module)

    def __set__(self, module: nn.Module, value: Any) -> None:
        vars(module)["_compiled_call_impl"] = value


_call_of_every_module = _CallOfEveryModule()

# A module under torch.compile is called through these: Dynamo does not compile them, but what they call. Its own
# function for that, torch._dynamo.skip, would import all of Dynamo, which takes seconds.
for _function in (_plain_call, _call, _CallOfEveryModule.__get__):
    eval_frame.set_code_exec_strategy(
        _function.__code__, eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT)
    )


def _open() -> None:
    global _open_blocks
    with _lock:
        _open_blocks += 1
        if vars(nn.Module)["_compiled_call_impl"] is None:
            nn.Module._compiled_call_impl = _call_of_every_module  # type: ignore[assignment]


def _close() -> None:
    global _open_blocks
    with _lock:
        _open_blocks -= 1


def _leave_modules_alone() -> None:
    with _lock:
        if _open_blocks == 0:
            nn.Module._compiled_call_impl = None


class enable_graph:
    """Runs the outermost module calls of a block as graphs: recorded at the first call, replayed afterwards.

    ``with torch_npu.enable_graph(): y = model(x)``, or ``@torch_npu.enable_graph()`` over a function. A graph stands
    for a module, the shapes, dtypes, strides and devices of its tensor arguments, the values of its other arguments,
    the modes of its submodules (train or eval), grad mode and autocast. The first such call runs as always and is then
    recorded, for which ``forward`` is executed again without effect on any tensor: once for forward and backward, which
    are a graph each, or three times without gradients. Later calls execute no Python of the model.

    Without gradients, arguments in the memory of the first call are read where they lie; others are copied first.

    Of a ``DistributedDataParallel`` the module inside is recorded, so that gradients are reduced after each backward.

    A module that no graph can stand for (hooks, control flow that depends on data, operators that cannot be recorded, a
    ``forward`` that changes attributes, …) runs as always, with one warning that says why.

    Args:
        strict: raise :class:`CannotSink` instead.
        copy_outputs: outputs and gradients are the caller's to keep. False: they are the graph's own memory, which the
            module's next call overwrites; saves copies.
        cache_limit: how many signatures of one module are kept; the least recently used goes first.
        follow_memory: other memory that arguments come back to eight times gets a graph as well, which reads them
            there. Saves copies where large arguments move, but a later call then executes ``forward`` once more, 16
            times at most.

    Raises:
        ValueError: ``cache_limit`` is less than 1.
    """

    def __init__(
        self, *, strict: bool = False, copy_outputs: bool = True, cache_limit: int = 8, follow_memory: bool = False
    ) -> None:
        if cache_limit < 1:
            raise ValueError(f"cache_limit must be 1 or more, but is {cache_limit}")
        self._options = Options(strict, copy_outputs, cache_limit, follow_memory)
        self._outer = threading.local()

    def __enter__(self) -> None:
        outer = self._outer.__dict__.setdefault("stack", [])
        outer.append(_thread.options)
        _open()
        _thread.options = self._options

    def __exit__(self, *_: object) -> None:
        _thread.options = self._outer.stack.pop()
        _close()

    def __call__(self, function: Function) -> Function:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]
