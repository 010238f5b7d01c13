"""The host kernels of cann_host, called through their test library. Tensors are contiguous CPU tensors."""

import ctypes
from pathlib import Path

import torch  # loads the OpenMP runtime that the library shares with torch

LIBRARY = Path(__file__).parents[2] / "cann_host" / "lib64" / "libcann_kernels_test.so"
_library = ctypes.CDLL(str(LIBRARY))  # `make build` makes it

ISAS = {"baseline": 0, "avx2": 1, "avx512": 2}
DATA_TYPES = {  # aclDataType
    torch.float32: 0,
    torch.float16: 1,
    torch.int8: 2,
    torch.int32: 3,
    torch.uint8: 4,
    torch.int16: 6,
    torch.int64: 9,
    torch.float64: 11,
    torch.bool: 12,
    torch.bfloat16: 27,
}
DISTRIBUTIONS = ["uniform", "normal", "log_normal", "cauchy", "exponential", "geometric", "bernoulli"]


BINARY_OPS = ["add", "sub", "mul", "div", "maximum", "minimum"]
COMPARE_OPS = ["eq", "ne", "lt", "le", "gt", "ge"]
UNARY_OPS = ["neg", "abs", "relu", "sqrt", "rsqrt", "reciprocal", "exp", "log", "tanh", "sigmoid", "silu", "erf"]
UNARY_OPS += ["gelu_erf", "gelu_tanh", "fast_gelu"]


def limit_isa(isa: str) -> bool:
    """Makes the kernels use `isa`; False if this machine lacks it (then the best that it has is in use)."""
    return _library.limit_isa(ISAS[isa]) == ISAS[isa]


def _call(name: str, *arguments) -> bool:
    """int → int64, float → double, tensor → pointer, dtype → aclDataType; ctypes objects are passed as they are."""
    converted = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            assert argument.is_contiguous()
            argument = ctypes.c_void_p(argument.data_ptr())
        elif isinstance(argument, torch.dtype):
            argument = ctypes.c_int(DATA_TYPES[argument])
        elif isinstance(argument, float):
            argument = ctypes.c_double(argument)
        elif isinstance(argument, int):
            argument = ctypes.c_int64(argument)
        converted.append(argument)
    function = getattr(_library, name)
    function.restype = ctypes.c_bool
    return function(*converted)


def _u64(value: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(value)


def _numbers(value: float | int) -> tuple[float, int]:
    """A Scalar: its real and its integer member."""
    return float(value), int(value) if abs(value) < 2**63 else 0


# ---- Element-wise operations. They return None if the kernel refuses the types; `out` serves to compute in place. ----


def binary(op, a, b, alpha=1, out=None) -> torch.Tensor | None:
    """One of a and b may be a number."""
    tensor = a if isinstance(a, torch.Tensor) else b
    out = torch.empty_like(tensor) if out is None else out
    index = ctypes.c_int(BINARY_OPS.index(op))
    if not isinstance(b, torch.Tensor):
        done = _call("binary_scalar", index, a.dtype, a, *_numbers(b), out, a.numel(), *_numbers(alpha))
    elif not isinstance(a, torch.Tensor):
        done = _call("scalar_binary", index, b.dtype, *_numbers(a), b, out, b.numel(), *_numbers(alpha))
    else:
        done = _call("binary", index, a.dtype, a, b, out, a.numel(), *_numbers(alpha))
    return out if done else None


def compare(op, a, b) -> torch.Tensor | None:
    """b may be a number."""
    out = torch.empty(a.numel(), dtype=torch.bool)
    index = ctypes.c_int(COMPARE_OPS.index(op))
    if isinstance(b, torch.Tensor):
        done = _call("compare", index, a.dtype, a, b, out, a.numel())
    else:
        done = _call("compare_scalar", index, a.dtype, a, *_numbers(b), out, a.numel())
    return out if done else None


def unary(op, a, out=None) -> torch.Tensor | None:
    out = torch.empty_like(a) if out is None else out
    return out if _call("unary", ctypes.c_int(UNARY_OPS.index(op)), a.dtype, a, out, a.numel()) else None


def cast(a, dtype) -> torch.Tensor | None:
    out = torch.empty(a.numel(), dtype=dtype)
    return out if _call("cast", a.dtype, a, dtype, out, a.numel()) else None


def fill(out, value) -> bool:
    return _call("fill", out.dtype, *_numbers(value), out, out.numel())


# ---- FRACTAL_NZ ----


def pack(matrix, out) -> None:
    _call("pack", matrix.element_size(), 1, *matrix.shape, matrix, out)


def unpack(packed, shape) -> torch.Tensor:
    out = torch.empty(shape, dtype=packed.dtype)
    _call("unpack", packed.element_size(), 1, *shape, packed, out)
    return out


# ---- Random numbers ----


def fill_random(distribution, dtype, n, a, b=0.0, seed=1234, offset=0) -> torch.Tensor | None:
    """None if the kernel refuses the dtype."""
    out = torch.zeros(n, dtype=dtype)
    index = ctypes.c_int(DISTRIBUTIONS.index(distribution))
    done = _call("fill_random", index, dtype, out, n, _u64(seed), _u64(offset), float(a), float(b))
    return out if done else None


def bernoulli(dtype, p: torch.Tensor, seed=1234, offset=0) -> torch.Tensor:
    out = torch.zeros(p.numel(), dtype=dtype)
    assert _call("bernoulli", dtype, out, p.dtype, p, p.numel(), _u64(seed), _u64(offset))
    return out


def random_integers(dtype, n, low, high, seed=1234, offset=0) -> torch.Tensor:
    """[low, high); high - low may be 2**64."""
    out = torch.zeros(n, dtype=dtype)
    span = _u64((high - low) % 2**64)
    assert _call("random_integers", dtype, out, n, _u64(seed), _u64(offset), low, span)
    return out


def random_permutation(n, dtype=torch.int64, seed=1234, offset=0) -> torch.Tensor:
    out = torch.zeros(n, dtype=dtype)
    assert _call("random_permutation", dtype, out, n, _u64(seed), _u64(offset))
    return out


def dropout_mask(n, p, seed=1234, offset=0) -> torch.Tensor:
    mask = torch.full(((n + 7) // 8,), 0xAA, dtype=torch.uint8)
    _call("dropout_mask", mask, n, _u64(seed), _u64(offset), float(p))
    return mask


def dropout_apply(x: torch.Tensor, mask: torch.Tensor, p) -> torch.Tensor:
    out = torch.empty_like(x)
    assert _call("dropout_apply", x.dtype, x, mask, out, x.numel(), float(p))
    return out


def dropout(x: torch.Tensor, p, seed=1234, offset=0) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty_like(x)
    mask = torch.full(((x.numel() + 7) // 8,), 0xAA, dtype=torch.uint8)
    assert _call("dropout", x.dtype, x, out, mask, x.numel(), _u64(seed), _u64(offset), float(p))
    return out, mask
