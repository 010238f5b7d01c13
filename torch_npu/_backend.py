"""Makes PyTorch know the device: its name, the module ``torch.npu``, and the methods ``Tensor.npu()`` and the like."""

import sys
from types import ModuleType

import torch


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
