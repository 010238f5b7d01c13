"""Calls aclnn operators as a C client does, over the memory of torch CPU tensors. Signatures are the op table's."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from typing import Any

import torch

import cann_host
from opspec.generate import ACL_DTYPE
from opspec.table import Param, aclnn_ops

_ND, _FRACTAL_NZ = 2, 29  # aclFormat
_HANDLES = ("Tensor", "Scalar", "TensorList", "IntArray", "FloatArray", "BoolArray")
_PLAIN = {
    "int": c.c_int64,
    "int32": c.c_int32,
    "int8": c.c_int8,
    "bool": c.c_bool,
    "float": c.c_double,
    "float32": c.c_float,
}

c.CDLL(str(cann_host.root() / "lib64/libascendcl.so"), mode=c.RTLD_GLOBAL)
_library = c.CDLL(str(cann_host.root() / "lib64/libopapi.so"), mode=c.RTLD_GLOBAL)
_library.aclGetRecentErrMsg.restype = c.c_char_p
for _name in _HANDLES:
    getattr(_library, f"aclCreate{_name}").restype = c.c_void_p
assert _library.aclrtSetDevice(0) == 0


def acl_dtype(dtype: torch.dtype) -> int:
    return ACL_DTYPE[str(dtype).removeprefix("torch.")]


def _int64s(values: Sequence[int]) -> c.Array:
    return (c.c_int64 * len(values))(*values)


class Packed:
    """Contiguous matrices that lie in FRACTAL_NZ: columns of blocks of 16 rows and 16 columns (32 of int8)."""

    def __init__(self, matrices: torch.Tensor) -> None:
        self.plain = matrices
        columns = 32 if matrices.element_size() == 1 else 16
        padding = (0, -matrices.shape[-1] % columns, 0, -matrices.shape[-2] % 16)
        blocks = torch.nn.functional.pad(matrices, padding).unflatten(-1, (-1, columns)).unflatten(-3, (-1, 16))
        self.storage = blocks.movedim(-2, -4).contiguous()


def _packed(p: Packed) -> c.c_void_p:
    sizes, strides, rank = _int64s(p.plain.shape), _int64s(p.plain.stride()), c.c_uint64(p.plain.dim())
    storage, length = _int64s(p.storage.shape), c.c_uint64(p.storage.dim())
    dtype, data = acl_dtype(p.plain.dtype), c.c_void_p(p.storage.data_ptr())
    zero = c.c_int64(0)
    return c.c_void_p(_library.aclCreateTensor(sizes, rank, dtype, strides, zero, _FRACTAL_NZ, storage, length, data))


def _tensor(t: torch.Tensor | Packed) -> c.c_void_p:
    """A descriptor over the tensor's own memory."""
    if isinstance(t, Packed):
        return _packed(t)
    sizes, strides, rank = _int64s(t.shape), _int64s(t.stride()), c.c_uint64(t.dim())
    storage = _int64s([t.untyped_storage().nbytes() // t.element_size()])
    data = c.c_void_p(t.untyped_storage().data_ptr() or 8)
    offset = c.c_int64(t.storage_offset())
    dtype = acl_dtype(t.dtype)
    return c.c_void_p(_library.aclCreateTensor(sizes, rank, dtype, strides, offset, _ND, storage, c.c_uint64(1), data))


def _scalar(value: float | int | bool) -> c.c_void_p:
    dtype = torch.bool if isinstance(value, bool) else torch.int64 if isinstance(value, int) else torch.float64
    number = torch.tensor(value, dtype=dtype)
    return c.c_void_p(_library.aclCreateScalar(c.c_void_p(number.data_ptr()), acl_dtype(dtype)))


def _argument(param: Param, value: Any) -> Any:
    kind = param.kind.rstrip("?!^")
    if value is None:
        return None
    if kind in _PLAIN:
        return _PLAIN[kind](value)
    if kind == "dtype":
        return c.c_int(acl_dtype(value))
    if kind == "str":
        return c.c_char_p(value.encode())
    if kind == "Tensor":
        return _tensor(value)
    if kind == "Scalar":
        return _scalar(value)
    if kind == "int[]":
        return c.c_void_p(_library.aclCreateIntArray(_int64s(value), c.c_uint64(len(value))))
    if kind.startswith("Tensor") and kind.endswith("[]"):
        handles = (c.c_void_p * len(value))(*[_tensor(t) for t in value])
        return c.c_void_p(_library.aclCreateTensorList(handles, c.c_uint64(len(value))))
    raise NotImplementedError(f"arguments of kind {param.kind}")


def call(op: str, *values: Any) -> dict[str, tuple[int, ...]]:
    """Runs `aclnn<op>`, which writes into the given output tensors.

    Returns the shapes that the operator found for its outputs of unknown shape, by name.

    Raises:
        RuntimeError: with CANN's message for whatever phase 1 or phase 2 refuses.
    """
    params = aclnn_ops()[op].params
    arguments = [_argument(p, v) for p, v in zip(params, values, strict=True)]
    size, executor = c.c_uint64(), c.c_void_p()
    code = getattr(_library, f"aclnn{op}GetWorkspaceSize")(*arguments, c.byref(size), c.byref(executor))
    code = code or getattr(_library, f"aclnn{op}")(None, size, executor, None)
    if code != 0:
        raise RuntimeError(f"{code}: {_library.aclGetRecentErrMsg().decode()}")
    return {p.name: _shape(a) for p, a in zip(params, arguments, strict=True) if p.kind == "Tensor^"}


def _shape(tensor: c.c_void_p) -> tuple[int, ...]:
    sizes, rank = c.POINTER(c.c_int64)(), c.c_uint64()
    assert _library.aclGetViewShape(tensor, c.byref(sizes), c.byref(rank)) == 0
    return tuple(sizes[: rank.value])
