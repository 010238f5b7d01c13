"""Makes PyTorch know the device: its name, the module ``torch.npu``, and the methods ``Tensor.npu()`` and the like."""

import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

import torch

from torch_npu import _flex_attention, _inductor, _random_states


def register(module: ModuleType) -> None:
    """Names the device ``npu`` and makes ``module`` available as ``torch.npu``, its submodules too."""
    torch.utils.rename_privateuse1_backend("npu")
    torch._register_device_module("npu", module)
    prefix = module.__name__ + "."
    for name, submodule in list(sys.modules.items()):
        # Without this `import torch.npu.amp` would execute the file a second time under the other name.
        if name.startswith(prefix):
            sys.modules["torch.npu." + name.removeprefix(prefix)] = submodule
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _inductor.install()
    _flex_attention.install()
    _random_states.install()
    setattr(torch.Tensor, "__dlpack_device__", _with_npu(torch.Tensor.__dlpack_device__))  # noqa: B010


def _with_npu(dlpack_device: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """``Tensor.__dlpack_device__`` that knows npu tensors.

    PyTorch's compares with the name "privateuse1", which no device has once its backend is renamed; there is no hook.
    """

    @wraps(dlpack_device)
    def device_of(self: torch.Tensor) -> Any:
        if self.device.type != "npu":
            return dlpack_device(self)
        from torch.utils.dlpack import DLDeviceType

        return DLDeviceType.kDLExtDev, self.device.index

    return device_of
