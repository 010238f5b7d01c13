"""What of a module a graph depends on, besides the arguments of the call."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.nn.parallel import DistributedDataParallel

from torchtitan_npu.driver import ModuleState
from torchtitan_npu.sinking.reasons import CannotSink

__all__ = ["ModuleWatch", "computed_before", "unchanged_attributes"]

_recorded: ContextVar["ModuleWatch | None"] = ContextVar("recorded", default=None)

_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
_GLOBAL_HOOKS = [getattr(module_hooks, f"_global{name}") for name in _HOOKS]
_MEMBERS = ("_parameters", "_buffers", "_modules")


class ModuleWatch:
    """Tells whether a module still is what it was: the same submodules, parameters and buffers at the same addresses,
    the values of those that were folded, no hooks, and what each submodule's ``training`` is.

    It is asked before every replay, and therefore compares in native code. It keeps parameters and submodules alive,
    but not the module itself.
    """

    def __init__(self, module: nn.Module) -> None:
        self._submodules = list(module.modules())[1:]
        modules = [module, *self._submodules]
        for m in modules:
            if isinstance(m, torch.jit.ScriptModule):
                raise CannotSink("it is a TorchScript module")
            if isinstance(m, DistributedDataParallel):
                raise CannotSink(
                    "it contains a DistributedDataParallel, which prepares the reduction of gradients at each call; "
                    "where that one is called in the block itself, the module inside it is recorded"
                )
        members = [getattr(m, name) for m in modules for name in _MEMBERS]
        hooks = [getattr(m, name) for m in modules for name in _HOOKS]
        # Filling one that is empty changes what a call does, too.
        self.state = ModuleState(
            members=[d for d in members if d],
            empty=hooks + [d for d in members if not d] + _GLOBAL_HOOKS,
            attributes=list(map(vars, modules)),
            values=[t for m in modules for t in _folded_by(m)],
        )
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self._tensors = [v for d in members for v in d.values() if isinstance(v, Tensor)]

    def is_unchanged(self) -> bool:
        """False if the graphs of the module no longer stand for it."""
        return self.state.is_unchanged()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """The block records graphs that stand for the module as long as the watch sees no change."""
        token = _recorded.set(self)
        try:
            yield
        finally:
            _recorded.reset(token)

    def training(self) -> bytes:
        """Which of the modules are in train mode: part of a graph's key."""
        return self.state.training()

    def require_no_hooks(self, module: nn.Module) -> None:
        """Raises CannotSink: a replay would not run them."""
        for m in (module, *self._submodules):
            for name in _HOOKS:
                if getattr(m, name):
                    raise CannotSink(
                        f"{type(m).__name__} has {name.strip('_').replace('_', ' ')}, which a replay cannot run"
                    )
        for parameter in self.parameters:
            if parameter._backward_hooks:
                raise CannotSink("a parameter has gradient hooks, which a replay cannot run")

    def addresses(self) -> set[int]:
        """Of the memory of parameters and buffers."""
        return {t.untyped_storage().data_ptr() for t in self._tensors}


def computed_before(tensors: Sequence[Tensor]) -> bool:
    """Tells the graph that is being recorded that something was computed from these tensors before it.

    Returns:
        Whether that graph will be given up when one of them is written. If not (a graph of the caller's own, tensors
        of inference mode, which do not count writes), the computation has to be part of the graph.
    """
    watch = _recorded.get()
    if watch is None or any(t.is_inference() for t in tensors):
        return False
    watch.state.watch_values(tensors)
    return True


def _folded_by(module: nn.Module) -> list[Tensor]:
    """Tensors that a forward of ``torchtitan_npu.optimize`` computes with before: a replay only sees what it made of
    them.
    """
    return getattr(vars(module).get("forward"), "folds", [])


def require_no_global_hooks() -> None:
    """Raises CannotSink if hooks for all modules are registered."""
    if any(_GLOBAL_HOOKS):
        raise CannotSink("there are hooks for all modules (torch.nn.modules.module), which a replay cannot run")


@contextmanager
def unchanged_attributes(module: nn.Module) -> Iterator[None]:
    """Takes back what the block changes in attributes of submodules, and raises CannotSink at its end if there is any:
    a replay, which executes no Python, would not do it.
    """
    before = [(m, dict(vars(m)), [dict(getattr(m, name)) for name in _MEMBERS]) for m in module.modules()]
    try:
        yield
    finally:
        changes = [change for m, attributes, members in before for change in _restore(m, attributes, members)]
    if changes:
        raise CannotSink(f"its forward changes attributes, which a replay would not do: {', '.join(changes[:3])}")


def _restore(module: nn.Module, attributes: dict[str, Any], members: list[dict[str, Any]]) -> Iterator[str]:
    current = [(vars(module), attributes), *((getattr(module, n), m) for n, m in zip(_MEMBERS, members, strict=True))]
    for now, earlier in current:
        for name in [*now.keys() - earlier.keys(), *(n for n, v in earlier.items() if now.get(n, now) is not v)]:
            yield f"{type(module).__name__}.{name}"
            if name in earlier:
                now[name] = earlier[name]
            else:
                del now[name]
