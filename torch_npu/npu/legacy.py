"""Tensor and storage types by name: ``torch.npu.FloatTensor``, ``torch.npu.HalfStorage`` and so on.

New code says ``torch.tensor(..., dtype=..., device="npu")``. These exist for ``isinstance``, ``Tensor.type()`` and the
old constructors.
"""

from numbers import Integral
from typing import Any

import torch
from torch._utils import classproperty

_DTYPES = {
    "BFloat16": torch.bfloat16,
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Short": torch.int16,
}


class _TensorType(type):
    """``isinstance(x, T)`` asks for npu and the dtype; ``T(...)`` makes such a tensor."""

    dtype: torch.dtype
    is_npu = True
    is_sparse = False

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.device.type == "npu" and instance.dtype == cls.dtype

    def __call__(cls, *args: Any, device: Any = "npu") -> torch.Tensor:
        """Sizes (ints, or one torch.Size) give uninitialised memory; a sequence, array or tensor its values."""
        if len(args) == 1 and not isinstance(args[0], (Integral, torch.SymInt, torch.Size)):
            return torch.as_tensor(args[0], dtype=cls.dtype, device=device)
        size = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args or (0,)
        return torch.empty(size, dtype=cls.dtype, device=device)


class _Storage(torch.storage._LegacyStorage):
    _npu_dtype: torch.dtype

    @classproperty
    def dtype(self) -> torch.dtype:
        torch.storage._warn_typed_storage_removal()
        return self._npu_dtype

    @classproperty
    def _dtype(self) -> torch.dtype:
        return self._npu_dtype


def _make_types() -> dict[str, type]:
    types: dict[str, type] = {}
    for name, dtype in _DTYPES.items():
        # Tensor.type(T) reads the type's name only, so that has to be the full one.
        namespace = {"dtype": dtype, "__module__": "torch.npu", "__qualname__": name + "Tensor"}
        types[name + "Tensor"] = _TensorType(f"torch.npu.{name}Tensor", (), namespace)
        # torch.storage takes the device from the last part of the module.
        types[name + "Storage"] = type(name + "Storage", (_Storage,), {"_npu_dtype": dtype, "__module__": "torch.npu"})
    return types


TYPES = _make_types()
