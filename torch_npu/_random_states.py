"""Random operators that activation checkpointing computes again in compiled graphs.

AOTAutograd wraps them in ``run_and_save_rng_state`` and ``run_with_rng_state``. PyTorch lists the devices of both
inside of functions, without a hook, so that :func:`install` puts functions in front that know npu as well. Inside of a
capture the state is a position in the graph, which the backward's capture takes from its forward's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._higher_order_ops.utils import registered_hop_fake_fns
from torch._prims.rng_prims import get_device, run_and_save_rng_state, run_with_rng_state

Operator = Callable[..., Any]


def install() -> None:
    """Lets both take random operators of npu."""
    _put_in_front(run_and_save_rng_state.py_kernels, DispatchKey.BackendSelect, _run_and_save, 1)
    _put_in_front(run_with_rng_state.py_kernels, DispatchKey.BackendSelect, _run_with, 2)
    _put_in_front(registered_hop_fake_fns, run_and_save_rng_state, _run_and_save_fake, 1)


def _put_in_front(table: dict[Any, Operator], key: Any, ours: Operator, first: int) -> None:
    """``first``: where the arguments of the random operator begin."""
    theirs = table[key]

    def call(*args: Any, **kwargs: Any) -> Any:
        on_npu = get_device(args[first:], kwargs) == "npu"
        return (ours if on_npu else theirs)(*args, **kwargs)

    table[key] = call


def _run_and_save(operator: Operator, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
    return torch.npu.get_rng_state(), operator(*args, **kwargs)  # type: ignore[attr-defined]


def _run_and_save_fake(operator: Operator, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
    return torch.empty(16, dtype=torch.uint8), operator(*args, **kwargs)


def _run_with(state: Tensor, operator: Operator, *args: Any, **kwargs: Any) -> Any:
    current = torch.npu.get_rng_state()  # type: ignore[attr-defined]
    torch.npu.set_rng_state(state)  # type: ignore[attr-defined]
    try:
        return operator(*args, **kwargs)
    finally:
        torch.npu.set_rng_state(current)  # type: ignore[attr-defined]
