"""Options of CANN, and the precision in which matrix products compute.

The names are torch_npu's. Operators here are CANN's compiled aclnn operators alone, so that the options of its online
compiler change nothing on a machine without an NPU; they are handed to CANN as they are (on Ascend hardware not run).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from torch_npu import _C
from torch_npu.npu.devices import is_initialized, synchronize

__all__ = [
    "CubeMathType",
    "aclnn",
    "are_compatible_impl_enabled",
    "config",
    "conv",
    "get_mm_bmm_format_nd",
    "is_jit_compile_false",
    "matmul",
    "set_aoe",
    "set_compile_mode",
    "set_mm_bmm_format_nd",
    "set_option",
    "use_compatible_impl",
]

# What an option may be, where it is not just any text.
_VALUES: dict[str, tuple[str, ...]] = {
    "ACL_PRECISION_MODE": ("allow_fp32_to_fp16", "must_keep_origin_dtype"),
    "ACL_OP_SELECT_IMPL_MODE": ("high_performance", "high_precision"),
    "ACL_AICORE_NUM": tuple(str(cores) for cores in range(1, 33)),
    "ACL_OP_DEBUG_LEVEL": ("0", "1", "2", "3", "4"),
    "ACL_OP_COMPILER_CACHE_MODE": ("disable", "enable", "force"),
    "jitCompile": ("enable", "disable"),
    "MM_BMM_ND_ENABLE": ("enable", "disable"),
}
# Options that ask for what is always so here.
_ALWAYS_SO = {
    "FORCE_ACLNN_OP_LIST": "every operator is an aclnn operator",
    "NPU_FUZZY_COMPILE_BLACKLIST": "no operator is compiled for a range of shapes",
}


class CubeMathType(IntEnum):
    """How CANN's matrix unit computes with float32."""

    KEEP_DTYPE = 0
    ALLOW_FP32_DOWN_PRECISION = 1
    USE_FP16 = 2
    USE_HF32 = 3
    USE_FP32_ADD = 4


def set_option(option: dict[str, Any]) -> None:
    """Sets options of CANN's operator compiler. Initialises CANN.

    Args:
        option: values by name, such as ``{"ACL_OP_DEBUG_LEVEL": "2"}``.

    Raises:
        TypeError: ``option`` is no dict.
        ValueError: an unknown name, or a value that the option cannot have. Nothing is set then.
    """
    if not isinstance(option, dict):
        raise TypeError(f"set_option: expected a dict, got {type(option).__name__}")
    known = [*_C._compile_options(), "MM_BMM_ND_ENABLE", *_ALWAYS_SO]
    for name, value in option.items():
        if name not in known:
            raise ValueError(f"set_option: unknown option {name!r}; known are {', '.join(sorted(known))}")
        if name in _VALUES and str(value) not in _VALUES[name]:
            raise ValueError(f"set_option: value of {name} should be in {list(_VALUES[name])}, but got {value!r}")
    for name, value in option.items():
        if name == "MM_BMM_ND_ENABLE":
            set_mm_bmm_format_nd(value == "enable")
        elif name not in _ALWAYS_SO:
            _C._set_compile_option(name, str(value))


def set_compile_mode(jit_compile: bool = False) -> None:
    """Whether CANN may compile operators for the shapes that it meets instead of taking those that it has compiled."""
    if is_initialized():
        synchronize()
    set_option({"jitCompile": "enable" if jit_compile else "disable"})


def is_jit_compile_false() -> bool:
    """Whether CANN takes its compiled operators. Initialises CANN."""
    return _C._compile_option("jitCompile") == "disable"


def set_aoe(dump_path: str) -> None:
    """Not supported: the Ascend Optimization Engine tunes graphs of legacy operators, and aclnn operators have none.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        f"set_aoe({dump_path!r}): it tunes graphs of legacy operators, but every operator here is an aclnn operator; "
        "leave the call out"
    )


_nd_matmul = True


def set_mm_bmm_format_nd(is_nd: bool = True) -> None:
    """Accepted: matrix products take their operands in the format that these have, which is ND unless cast."""
    global _nd_matmul
    _nd_matmul = is_nd


def get_mm_bmm_format_nd() -> bool:
    """What :func:`set_mm_bmm_format_nd` set."""
    return _nd_matmul


_compatible = False


def use_compatible_impl(is_enable: bool) -> None:
    """Accepted: the vendor's switch between operators that compute as those of older versions and those that compute as
    PyTorch's on CUDA. Operators here compute as PyTorch's whatever is set."""
    global _compatible
    _compatible = is_enable


def are_compatible_impl_enabled() -> bool:
    """What :func:`use_compatible_impl` set."""
    return _compatible


class _Config:
    """``torch.npu.config``.

    ``allow_internal_format`` is accepted and changes nothing: ``npu_format_cast`` packs matrices in FRACTAL_NZ where it
    is asked to, no operator does so by itself, and tensors do not have other private formats.
    """

    def __init__(self) -> None:
        self.allow_internal_format = True


class _CubePrecision:
    """``torch.npu.matmul`` and ``torch.npu.conv``: in which precision float32 is multiplied; in float32 by default.

    The software CANN computes in float32 whatever is set.
    """

    def __init__(self, get: Callable[[], int], put: Callable[[int], None]) -> None:
        self._get, self._put = get, put

    @property
    def allow_hf32(self) -> bool:
        """Whether the matrix unit may round float32 to HF32 (11 bits of mantissa) first."""
        return self._get() == CubeMathType.USE_HF32

    @allow_hf32.setter
    def allow_hf32(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"allow_hf32 must be a bool, but got {type(value).__name__}")
        self._put(CubeMathType.USE_HF32 if value else CubeMathType.KEEP_DTYPE)

    @property
    def cube_math_type(self) -> CubeMathType:
        return CubeMathType(self._get())

    @cube_math_type.setter
    def cube_math_type(self, value: CubeMathType) -> None:
        if not isinstance(value, CubeMathType):
            raise TypeError(f"cube_math_type must be a CubeMathType, but got {type(value).__name__}")
        self._put(value)


class _Aclnn:
    """``torch.npu.aclnn``: both precisions together."""

    @staticmethod
    def version() -> None:
        """None: CANN does not tell one for its operators. ``torch_npu.utils.get_cann_version()`` tells CANN's."""

    @property
    def allow_hf32(self) -> bool:
        return matmul.allow_hf32 and conv.allow_hf32

    @allow_hf32.setter
    def allow_hf32(self, value: bool) -> None:
        matmul.allow_hf32 = conv.allow_hf32 = value

    @contextmanager
    def flags(self, allow_hf32: bool = False) -> Iterator[None]:
        """``with torch.npu.aclnn.flags(allow_hf32=True):`` for a while."""
        before = matmul.cube_math_type, conv.cube_math_type
        self.allow_hf32 = allow_hf32
        try:
            yield
        finally:
            matmul.cube_math_type, conv.cube_math_type = before


config = _Config()
matmul = _CubePrecision(_C._matmul_math, _C._set_matmul_math)
conv = _CubePrecision(_C._convolution_math, _C._set_convolution_math)
aclnn = _Aclnn()
