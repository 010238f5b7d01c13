"""How far a result on device npu may be from its reference. All tests take their tolerances from here.

Three kinds of references are used.

*The same computation on the CPU.* Operators of the software CANN that run ATen's own CPU kernel give the same bits;
operators with kernels of their own (vectorised elementwise functions, attention, fused optimizers) sum or round in
another order. ``TOLERANCE`` holds for both: an error of one unit in the last place per operation, a handful of
operations deep.

*A reference in float64.* The error then is that of the dtype itself; reductions over ``n`` terms grow it, at random,
with ``sqrt(n)``: pass ``terms=n``.

*PyTorch's own error.* Where several operations below float64 follow one another, both devices are off by more than one
operation's error. ``assert_no_worse`` then asks that npu is no further from a float64 reference than
the CPU is, but for the last rounding.

Integers and bools are exact, always.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch


@dataclass(frozen=True)
class Tolerance:
    """``|actual - expected| <= absolute + relative * |expected|``, as torch.testing.assert_close has it."""

    relative: float
    absolute: float


# float32: 2^-23 = 1.2e-7 is one unit; a polynomial exp or a blocked sum is good for about ten of them.
# float16: 2^-10 = 1e-3 is one unit; results are computed in float32 and rounded once.
# bfloat16: 2^-7 = 7.8e-3 is one unit, and two roundings (of the operand and of the result) may differ.
# float64: only ATen computes in it, on both sides, so that 1e-7 would hide a detour over float32; 1e-12 does not.
# Absolute parts are for results near zero that are differences of terms near one.
TOLERANCE: dict[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(1e-12, 1e-12),
    torch.float32: Tolerance(1.3e-6, 1e-5),
    torch.float16: Tolerance(1e-3, 1e-5),
    torch.bfloat16: Tolerance(1.6e-2, 1e-5),
    torch.complex32: Tolerance(1e-3, 1e-5),
    torch.complex64: Tolerance(1.3e-6, 1e-5),
    torch.complex128: Tolerance(1e-12, 1e-12),
}
EXACT = Tolerance(0.0, 0.0)


def tolerance(dtype: torch.dtype, terms: int = 1) -> Tolerance:
    """The tolerance for results in ``dtype``; ``terms``: how many terms are summed into one result."""
    base = TOLERANCE.get(dtype, EXACT)
    growth = sqrt(max(terms, 1))
    return Tolerance(base.relative * growth, base.absolute * growth)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, *, terms: int = 1, **options: Any) -> None:
    """torch.testing.assert_close within the stated tolerance of ``actual``'s dtype.

    ``expected`` may be on the CPU and may be float64 (a reference); the values are compared on the CPU.
    """
    allowed = tolerance(actual.dtype, terms)
    if expected.dtype == torch.float64 and actual.dtype != torch.float64:
        options.setdefault("check_dtype", False)
    options = {"rtol": allowed.relative, "atol": allowed.absolute, "equal_nan": True} | options
    torch.testing.assert_close(actual.cpu(), expected.cpu(), **options)


def assert_no_worse(actual: torch.Tensor, expected: torch.Tensor, reference: torch.Tensor, factor: float = 1.0) -> None:
    """The largest error of ``actual`` against the float64 ``reference`` is at most ``factor`` times ``expected``'s.

    Both are in less than float64. One unit in the last place of the largest value is granted: the last rounding may go
    either way. What is not finite in ``expected`` must be the same in ``actual``.
    """
    finite = expected.isfinite()
    torch.testing.assert_close(actual[~finite], expected[~finite], equal_nan=True)
    ours, theirs = ((t.double() - reference)[finite].abs().max().item() for t in (actual, expected))
    unit = torch.finfo(actual.dtype).eps * reference[finite].abs().max().item()
    assert ours <= factor * theirs + unit, f"largest error against float64 is {ours:.3g}, on the CPU {theirs:.3g}"
