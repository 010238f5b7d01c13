"""Element types in memory and types of values in registers.

A tile program computes float16 and bfloat16 in float32, as an Ascend vector core and every CPU without such
arithmetic do; :attr:`DType.compute` says in which type a loaded element is a value.
"""

from __future__ import annotations

from enum import Enum


class DType(Enum):
    """An element type; the value is its name in PyTorch."""

    F64 = "float64"
    F32 = "float32"
    F16 = "float16"
    BF16 = "bfloat16"
    I64 = "int64"
    I32 = "int32"
    I16 = "int16"
    I8 = "int8"
    U8 = "uint8"
    BOOL = "bool"

    @property
    def compute(self) -> DType:
        """The type of a value that was loaded from elements of this type."""
        return DType.F32 if self in (DType.F16, DType.BF16) else self

    @property
    def is_float(self) -> bool:
        return self in (DType.F64, DType.F32, DType.F16, DType.BF16)

    @property
    def is_integer(self) -> bool:
        """Integers, without bool."""
        return not self.is_float and self is not DType.BOOL


F64, F32, F16, BF16 = DType.F64, DType.F32, DType.F16, DType.BF16
I64, I32, I16, I8, U8, BOOL = DType.I64, DType.I32, DType.I16, DType.I8, DType.U8, DType.BOOL

FLOATS = frozenset({F64, F32})
"""Float types of values."""
INTEGERS = frozenset({I64, I32, I16, I8, U8})
NUMBERS = FLOATS | INTEGERS
ANY = NUMBERS | {BOOL}
