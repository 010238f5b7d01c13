"""The PyTorch device ``npu`` on any machine.

On a machine with CANN and an Ascend NPU it drives the NPU, elsewhere the software CANN that is bundled (``cann_host``).
Importing touches neither: CANN is searched at the first question about devices and initialised at the first use of one.
:func:`cann_info` tells which one was taken and why.
"""


def _autoload() -> None:
    """Entry point of the group ``torch.backends``, called at the end of ``import torch``.

    The import of this module has done the work. The function stands first because ``import torch_npu`` as a program's
    first import lands here while this module is waiting for torch below. It never raises: see ``_load_error``.
    """


import importlib  # noqa: E402
import os  # noqa: E402
import warnings  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

# Imported when first asked for, so that `import torch` stays fast. torchtitan_npu builds on this package.
_LAZY_MODULES = {"contrib", "optim", "profiler", "utils"}
_LAZY_NAMES = {
    "Format": "torch_npu.formats",
    "check_races": "torch_npu.npu._sanitizer",
    "clear_unfused_report": "torch_npu.fusion",
    "enable_graph": "torchtitan_npu.sinking",
    "fusion_table": "torch_npu.fusion",
    "get_npu_format": "torch_npu.formats",
    "get_storage_size": "torch_npu.utils.combine_tensors",
    "graph_report": "torchtitan_npu.sinking",
    "npu_apply_adam": "torch_npu.composed.optimizers",
    "npu_apply_adam_w": "torch_npu.optim.adam_w",
    "npu_bert_apply_adam": "torch_npu.composed.optimizers",
    "npu_change_data_ptr": "torch_npu.utils.combine_tensors",
    "npu_hans_decode": "torch_npu.composed.hans",
    "npu_hans_encode": "torch_npu.composed.hans",
    "print_npugraph_tensor": "torch_npu.npu.graph_debug",
    "save_npugraph_tensor": "torch_npu.npu.graph_debug",
    "unfused_report": "torch_npu.fusion",
}

_load_error: str | None = None
try:
    from torch_npu import _C
except ImportError as error:
    # Raising would break `import torch` for programs that do not want the device at all.
    _load_error = f"the native library of torch_npu cannot be loaded, so there is no device npu: {error}"
    warnings.warn(_load_error, RuntimeWarning, stacklevel=2)
else:
    from torch_npu import atb, composed, distributed, npu  # noqa: F401
    from torch_npu._backend import register
    from torch_npu.fallback import (  # noqa: F401
        apply_environment,
        clear_fallback_report,
        fallback_policy,
        fallback_report,
    )
    from torch_npu.native import clear_native_calls, native_calls  # noqa: F401
    from torch_npu.npu.vm_pool import VMMemoryPool  # noqa: F401

    register(npu)
    npu.environment.apply()
    apply_environment()
    npu._c_names.install()
    if distributed.is_hccl_available():
        distributed.register()

    if os.environ.get("TORCH_NPU_SANITIZER") == "1":
        from torch_npu.npu._sanitizer import enable_npu_sanitizer

        enable_npu_sanitizer()

    if os.environ.get("TORCH_TRANSFER_TO_NPU") == "1":
        from torch_npu.contrib import transfer_to_npu  # noqa: F401


def cann_info() -> dict[str, Any]:
    """Tells which CANN is used and why. Looks for it if nothing has before, but initialises no device.

    Returns:
        ``root``: folder of the CANN in use, "" if none; ``chosen_by``: the environment variable that named it, or
        "bundled"; ``is_host``: whether it is the software CANN; ``device_count``; ``soc``: such as "Ascend910B3";
        ``libraries``: files that were loaded; ``refused``: the roots that were tried before, each with ``root`` and
        ``reason``; ``error``: why no CANN can be used, "" if one is.
    """
    if _load_error is not None:
        return {
            "root": "",
            "chosen_by": "",
            "is_host": False,
            "device_count": 0,
            "soc": "",
            "libraries": [],
            "refused": [],
            "error": _load_error,
        }
    return _C._cann_info()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("torch_npu")
    if _load_error is not None and not name.startswith("__"):
        raise ImportError(_load_error)
    if name in _LAZY_MODULES:
        return importlib.import_module(f"torch_npu.{name}")
    if name in _LAZY_NAMES:
        value = getattr(importlib.import_module(_LAZY_NAMES[name]), name)
    elif name in (numbers := importlib.import_module("torch_npu.dtypes").NUMBERS):
        value = numbers[name]
    elif not name.startswith("__") and hasattr(torch.ops.npu, name):  # docs/npu_operators.md, composed_operators.md
        value = getattr(torch.ops.npu, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # the next time nobody asks: this function costs more than a small operator
    return value
