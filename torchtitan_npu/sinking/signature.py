"""What of the arguments of a call a graph depends on."""

import enum
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchtitan_npu.sinking.reasons import CannotSink

__all__ = ["Arguments", "describe_leaf", "flatten", "modes"]

# Values that are baked into a graph and therefore part of its key.
_CONSTANTS = (
    type(None), bool, int, float, complex, str, bytes,
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, enum.Enum,
)  # fmt: skip


@dataclass
class Arguments:
    """Arguments in one row, and the key of all but the values of the tensors."""

    leaves: list[Any]
    spec: Any  # puts them together again
    key: Hashable

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]

    def rebuild(self, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if isinstance(self.spec, tuple):
            count, names = self.spec
            return tuple(leaves[:count]), dict(zip(names, leaves[count:], strict=True))
        return pytree.tree_unflatten(leaves, self.spec)


def flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Raises CannotSink for an argument that no key stands for."""
    leaves = [*args, *kwargs.values()]
    spec: Any = (len(args), tuple(kwargs))
    if not all(isinstance(leaf, (Tensor, *_CONSTANTS)) for leaf in leaves):
        leaves, spec = pytree.tree_flatten((args, kwargs))
    return Arguments(leaves, spec, (spec, tuple(map(_leaf_key, leaves))))


def _leaf_key(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        if leaf.device.type != "npu" or leaf.layout is not torch.strided:
            raise CannotSink(
                f"an argument is a {leaf.layout} tensor on {leaf.device}; expected dense tensors on an npu"
            )
        if type(leaf) is not Tensor and type(leaf) is not torch.nn.Parameter:
            raise CannotSink(
                f"an argument is a {type(leaf).__name__}, a subclass of Tensor with a behaviour of its own"
            )
        if leaf.is_conj() or leaf.is_neg():
            raise CannotSink("an argument is a lazily conjugated or negated tensor")
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad
    if isinstance(leaf, float):
        return float, leaf.hex()  # tells 0.0 from -0.0, and finds nan again
    if isinstance(leaf, _CONSTANTS):
        return type(leaf), leaf
    raise CannotSink(f"an argument is a {type(leaf).__name__}, of which a graph cannot tell whether it changed")


def modes() -> Hashable:
    """The state of PyTorch that decides what an operator does."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("npu") and torch.get_autocast_dtype("npu"),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
    )


def describe_leaf(leaf: Any) -> str:
    """For reports: ``float32[2, 3]``, or the value of a constant."""
    if not isinstance(leaf, Tensor):
        return repr(leaf)
    grad = " grad" if leaf.requires_grad else ""
    return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}{grad}"
