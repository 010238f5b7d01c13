"""Runs a program that was written for CUDA on npu: ``from torch_npu.contrib import transfer_to_npu``, before it starts.

The import replaces functions of torch for the whole process (``TORCH_TRANSFER_TO_NPU=1`` does so without a change of
the program): ``torch.cuda.*`` becomes ``torch.npu.*``, ``.cuda()`` becomes ``.npu()``, and as an argument "cuda" means
"npu". ``print(transfer_to_npu.report())`` shows which calls that concerned. See docs/transfer_to_npu.md.
"""

import importlib
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch
from torch.utils._device import DeviceContext, _device_constructors

from torch_npu import npu
from torch_npu.contrib.redirect import activities, backend, class_on_npu, clear_report, function_on_npu, note, report
from torch_npu.contrib.redirect import npu as on_npu
from torch_npu.npu import _utils

__all__ = ["clear_report", "report"]

# Modules of torch.cuda, and those whose public names they get.
_MODULES = {
    "torch.cuda": "torch_npu.npu",
    "torch.cuda.memory": "torch_npu.npu.memory",
    "torch.cuda.random": "torch_npu.npu.random",
    "torch.cuda.streams": "torch_npu.npu.streams",
    "torch.cuda.graphs": "torch_npu.npu.graphs",
    "torch.cuda.amp": "torch_npu.npu.amp",
    "torch.cuda.amp.autocast_mode": "torch_npu.npu.amp.autocast_mode",
    "torch.cuda.amp.grad_scaler": "torch_npu.npu.amp.grad_scaler",
    "torch.cuda.nvtx": "torch_npu.contrib.ranges",
}
# Private names that PyTorch itself or programs call.
_PRIVATE = (
    "_lazy_init",
    "_is_in_bad_fork",
    "_get_device_index",
    "_record_memory_history",
    "_snapshot",
    "_dump_snapshot",
    "_get_rng_state_offset",
    "_set_rng_state_offset",
)
_RENAMED = {"CUDAGraph": "NPUGraph", "CUDAPluggableAllocator": "NPUPluggableAllocator"}

# What takes a device beside the constructors of tensors: owner, its name, and the functions' names.
_FUNCTIONS: list[tuple[Any, str, str]] = [
    (
        torch,
        "torch",
        """empty_like full_like ones_like rand_like randn_like randint_like zeros_like normal from_file load
        set_default_device get_device_module is_autocast_enabled get_autocast_dtype set_autocast_enabled
        set_autocast_dtype""",
    ),
    (
        torch.Tensor,
        "torch.Tensor",
        "to type new_empty new_empty_strided new_full new_ones new_tensor new_zeros pin_memory is_pinned",
    ),
    (torch.nn.Module, "torch.nn.Module", "to to_empty type"),
    (torch.UntypedStorage, "torch.UntypedStorage", "to pin_memory is_pinned"),
    (torch.TypedStorage, "torch.TypedStorage", "to pin_memory is_pinned"),
    (torch.amp.autocast_mode.autocast, "torch.autocast", "__init__"),
    (torch.amp.GradScaler, "torch.amp.GradScaler", "__init__"),
    (torch.amp, "torch.amp", "custom_fwd custom_bwd is_autocast_available"),
    (torch.random, "torch.random", "fork_rng"),
    (torch.utils.data.DataLoader, "torch.utils.data.DataLoader", "__init__"),
    (DeviceContext, "torch.device", "__init__"),  # with torch.device("cuda"):
]
_CLASSES = ("Generator", "Event", "Stream")


def _replace(owner: Any, names: Iterable[str], label: str, *translation: Any) -> None:
    for name in names:
        full = label if name == "__init__" else f"{label}.{name}"
        setattr(owner, name, function_on_npu(getattr(owner, name), full, *translation))


def _replace_constructors() -> None:
    originals = _device_constructors()  # cached: `with torch.device(…)` goes on to compare with the originals
    for module in (torch, torch.fft, torch.nested):
        for name, value in list(vars(module).items()):
            if callable(value) and getattr(value, "__hash__", None) and value in originals:
                _replace(module, [name], module.__name__)


def _replace_cuda_modules() -> None:
    for target_name, source_name in _MODULES.items():
        target, source = importlib.import_module(target_name), importlib.import_module(source_name)
        public = set(source.__all__) if hasattr(source, "__all__") else set(vars(target)) & set(vars(source))
        types = npu._TYPES if target is torch.cuda else ()
        for name in (*public, *(n for n in _PRIVATE if hasattr(source, n)), *types):
            value = getattr(source, name)
            if not isinstance(value, ModuleType) and not name.startswith("__"):
                setattr(target, name, value)
        for name, renamed in _RENAMED.items():
            if hasattr(target, name):
                setattr(target, name, getattr(npu, renamed))
    setattr(torch.cuda, "default_generators", npu.random._default_generators())  # noqa: B010


def _moves_to_npu(owner: Any, label: str) -> None:
    """``owner.cuda`` as ``owner.npu``."""
    to_npu = owner.npu

    def cuda(self: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            given = "cuda" if device is None else device
            note(f"{label}.cuda", given, on_npu(given))
        return to_npu(self, on_npu(device), *args, **kwargs)

    cuda.__doc__ = to_npu.__doc__
    owner.cuda = cuda
    if hasattr(owner, "is_cuda"):
        owner.is_cuda = property(lambda self: self.device.type in ("npu", "cuda"))


def _replace_distributed() -> None:
    distributed = torch.distributed
    if not distributed.is_available():
        return
    from torch.distributed import device_mesh

    _replace(distributed, ["init_process_group", "new_group"], "torch.distributed", backend)
    _replace(device_mesh, ["init_device_mesh"], "torch.distributed.device_mesh")
    distributed.init_device_mesh = device_mesh.init_device_mesh
    _replace(device_mesh.DeviceMesh, ["__init__"], "torch.distributed.DeviceMesh")


def _install() -> None:
    _utils.DEVICE_TYPES.add("cuda")
    _replace_cuda_modules()
    _replace_constructors()
    for owner, label, names in _FUNCTIONS:
        _replace(owner, names.split(), label)
    for name in _CLASSES:
        setattr(torch, name, class_on_npu(getattr(torch, name), f"torch.{name}"))
    for owner in (torch.Tensor, torch.nn.Module, torch.UntypedStorage, torch.TypedStorage):
        _moves_to_npu(owner, f"torch.{owner.__name__}" if owner is not torch.nn.Module else "torch.nn.Module")
    _replace_distributed()
    _replace(
        torch.profiler.profiler._KinetoProfile,
        ["__init__"],
        "torch.profiler.profile",
        activities,
        frozenset({list, tuple, set}),
    )


_install()
