"""Looks at tensors inside captured graphs: operators that print or save a tensor whenever the graph is replayed.

Each copies the tensor to the host in the stream's order; then a function on the host prints or saves the copy.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import has_side_effect

from torch_npu.npu.streams import _launch_host_func, current_stream

__all__ = ["print_npugraph_tensor", "save_npugraph_tensor"]

_library = torch.library.Library("npu", "FRAGMENT")
_counters: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


def print_npugraph_tensor(input: Tensor, *, tensor_name: str | None = None) -> None:
    """Prints the tensor, its shape and dtype, after ``tensor_name=``; in a capture at every replay."""
    torch.ops.npu.print_npugraph_tensor(input, tensor_name=tensor_name)


def save_npugraph_tensor(
    input: Tensor | list[Tensor], *, save_path: str | None = None, overwrite: bool = False
) -> None:
    """Saves the tensor, or the list of tensors, with :func:`torch.save`; in a capture at every replay.

    Args:
        input: one tensor or several of one device.
        save_path: the file; ``tensor.pt`` without. Of npu tensors the device's index goes into its name.
        overwrite: whether later calls use the same file. Else a number goes into the name, counted from 0 by call (not
            by replay).
    """
    packet = torch.ops.npu.save_npugraph_tensor
    # Named, as the search for the overload prints the tensors that one does not take, which no capture can record.
    overload = packet.default if isinstance(input, Tensor) else packet.tensor_list
    overload(input, save_path=save_path, overwrite=overwrite)


def _on_host(tensors: list[Tensor]) -> list[Tensor]:
    """Copies in pinned memory, which the stream fills."""
    copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    return copies


def _print(argument: tuple[str | None, Tensor]) -> None:
    name, tensor = argument
    print(
        f"{'' if name is None else name + '='}{tensor}, shape={tuple(tensor.shape)}, dtype={tensor.dtype}", flush=True
    )


def _print_on_npu(input: Tensor, *, tensor_name: str | None = None) -> None:
    _launch_host_func(current_stream(input.device), _print, (tensor_name, _on_host([input])[0]))


def _print_on_cpu(input: Tensor, *, tensor_name: str | None = None) -> None:
    _print((tensor_name, input))


def _path(save_path: str | None, overwrite: bool, device: torch.device) -> Path:
    path = Path(save_path or "tensor.pt")
    stem = path.stem if device.type == "cpu" else f"{path.stem}_device_{device.index}"
    suffix = path.suffix or ".pt"
    number = "" if overwrite else f"_{next(_counters[str(path.with_name(stem + suffix))])}"
    return path.with_name(f"{stem}{number}{suffix}")


def _save(argument: tuple[Any, Path]) -> None:
    contents, path = argument
    torch.save(contents, path)


def _save_list(input: list[Tensor], *, save_path: str | None = None, overwrite: bool = False) -> None:
    if not input or len({tensor.device for tensor in input}) != 1:
        raise ValueError(f"save_npugraph_tensor: expected tensors of one device, got {[str(t.device) for t in input]}")
    device = input[0].device
    path = _path(save_path, overwrite, device)
    if device.type == "cpu":
        return _save((list(input), path))
    _launch_host_func(current_stream(device), _save, (_on_host(list(input)), path))


def _save_one(input: Tensor, *, save_path: str | None = None, overwrite: bool = False) -> None:
    path = _path(save_path, overwrite, input.device)
    if input.device.type == "cpu":
        return _save((input, path))
    _launch_host_func(current_stream(input.device), _save, (_on_host([input])[0], path))


def _register(schema: str, **kernels: Any) -> None:
    _library.define(schema)
    name = schema.split("(")[0]
    for key, kernel in kernels.items():
        _library.impl(name, kernel, key)
    _library.impl(name, lambda *_, **__: None, "Meta")
    packet, _, overload = name.partition(".")
    has_side_effect(getattr(getattr(torch.ops.npu, packet), overload or "default"))


_register(
    "print_npugraph_tensor(Tensor input, *, str? tensor_name=None) -> ()", PrivateUse1=_print_on_npu, CPU=_print_on_cpu
)
_register(
    "save_npugraph_tensor(Tensor input, *, str? save_path=None, bool overwrite=False) -> ()",
    PrivateUse1=_save_one,
    CPU=_save_one,
)
_register(
    "save_npugraph_tensor.tensor_list(Tensor[] input, *, str? save_path=None, bool overwrite=False) -> ()",
    PrivateUse1=_save_list,
    CPU=_save_list,
)
