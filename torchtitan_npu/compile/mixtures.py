"""Mixtures of experts as transformers writes them become traceable when Dynamo begins with what contains them.

Their forward is a loop over the experts that have tokens: how many depends on data, and there Dynamo breaks the graph
before any pass sees it. So Dynamo's hook for the start of a compilation looks at the modules that the frame can reach.
A block that :func:`~torchtitan_npu.fused.mixture.mixture_of_experts` recognises, and whose fused form agrees with it on
a sample, gets a forward that is the fused one while Dynamo traces, and the class's own otherwise. Only where gradients
are off; other backends see the class's forward.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch._dynamo import callback_handler
from torch._dynamo.callback import CallbackArgs, CallbackTrigger
from torch._dynamo.eval_frame import innermost_backend
from torch.fx import GraphModule

from torchtitan_npu.compile import report
from torchtitan_npu.fused.mixture import mixture_of_experts, traceable
from torchtitan_npu.fused.offer import Refused
from torchtitan_npu.fused.optimize import Report, Swap, attempt, is_replaced

__all__ = ["NAME", "count_mixtures", "watch_mixtures"]

NAME = "fuse_mixtures"
_CONVERTER = "mixture_of_experts"

# Of each block that was looked at, whether it has a fused form.
_fits: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


def count_mixtures(module: GraphModule) -> int:
    """How many mixtures of Dynamo's graph run as grouped products."""
    return sum(n.target is torch.ops.npu.npu_moe_init_routing_v2 for n in module.graph.nodes)


def watch_mixtures(options_of: Callable[[Any], Mapping[str, bool] | None]) -> None:
    """Registers the hook, once; ``torch._dynamo.reset()`` forgets it, and the backend's next graph brings it back.

    Args:
        options_of: the option ``passes`` of a backend that Dynamo was given; None for backends of others.
    """
    if not any(getattr(c, "is_of_mixtures", False) for c in callback_handler.start_callbacks):

        def begin(args: CallbackArgs) -> None:
            if args.callback_trigger is CallbackTrigger.DYNAMO and (frame := _frame_of_dynamo()) is not None:
                passes = options_of(innermost_backend(frame["compiler_fn"]))
                _begin(frame, passes is not None and passes.get(NAME, True))

        begin.is_of_mixtures = True  # type: ignore[attr-defined]
        callback_handler.register_start_callback(begin)


def _frame_of_dynamo() -> Mapping[str, Any] | None:
    """What Dynamo is about to compile: variables of its function ``_compile``, which calls the hook."""
    caller = sys._getframe()
    while caller is not None:
        if caller.f_code.co_name == "_compile" and {"code", "locals", "compiler_fn"} <= caller.f_locals.keys():
            return caller.f_locals
        caller = caller.f_back  # type: ignore[assignment]
    return None


def _begin(frame: Mapping[str, Any], wanted: bool) -> None:
    for name, block in _blocks(frame):
        if not wanted:
            if _is_traceable(block):
                del block.forward  # the instance's; the class has its own
            continue
        if _is_traceable(block):  # also a copy of one that was looked at
            _fits[block] = True
        elif block not in _fits and not torch.is_grad_enabled():
            _fits[block] = _look_at(name, block)
        if _fits.get(block, False) and not is_replaced(block):
            block.forward = types.MethodType(traceable, block)


def _is_traceable(block: nn.Module) -> bool:
    return getattr(vars(block).get("forward"), "__func__", None) is traceable


def _blocks(frame: Mapping[str, Any]) -> Iterator[tuple[str, nn.Module]]:
    """Modules with experts that the frame's arguments, closure or globals hold."""
    names = (*frame["code"].co_names, *frame["code"].co_freevars)
    cells = (c.cell_contents for c in frame.get("closure") or () if c != types.CellType())
    values = [*frame["locals"].values(), *cells, *(frame["globals"].get(n) for n in names)]
    roots = {id(v): v for v in values if isinstance(v, nn.Module)}
    seen = {}
    for root in roots.values():
        for name, module in root.named_modules():
            if "experts" in module._modules and id(module) not in seen:
                seen[id(module)] = module
                yield name, module


def _look_at(name: str, block: nn.Module) -> bool:
    """Whether a block is a mixture with a fused form; what was found goes to the report."""
    kind, done = type(block).__name__, Report()
    try:
        offer = mixture_of_experts(block)
    except Refused as why:
        report.note_swap(Swap(name, kind, _CONVERTER, None, str(why)))
        return False
    if offer is None:
        return False
    swap = attempt(name, block, _CONVERTER, offer, None, done)
    report.note_swap(swap)
    if swap.kept:
        block._npu_mixture = vars(block)["forward"].choice
        done.undo()
    return swap.kept
