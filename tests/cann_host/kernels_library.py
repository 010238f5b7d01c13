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
