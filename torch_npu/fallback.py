"""What ran on the CPU for device npu: report and policy of the fallback ledger.

``TORCH_NPU_FALLBACK_CPU_DISABLE=1`` starts a program with the policy "error".
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Literal

from torch_npu import _C

__all__ = ["FallbackEntry", "FallbackReport", "clear_fallback_report", "fallback_policy", "fallback_report"]

Policy = Literal["allow", "warn", "error"]
_DISABLE = "TORCH_NPU_FALLBACK_CPU_DISABLE"

# c10's names of dtypes in torch's words.
_TORCH_NAME = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Byte": "uint8", "Char": "int8",
    "Short": "int16", "Int": "int32", "Long": "int64", "Bool": "bool", "ComplexHalf": "complex32",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128", "Undefined": "-",
}  # fmt: skip


@dataclass(frozen=True)
class FallbackEntry:
    """One operator and dtype that has no native kernel and ran on the CPU."""

    op: str  # "aten::cumprod"
    dtype: str  # of its first npu tensor, as in torch.float32
    calls: int
    bytes: int  # of all its tensor arguments, over all calls
    copied_bytes: int  # bytes that were copied for it; 0 where the host can address device memory
    seconds: float
    first_line: str  # the Python line that asked first; "" for calls of autograd's threads


class FallbackReport(list[FallbackEntry]):
    """The entries, most time first. Prints as a table."""

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table(title="operators that ran on the CPU for device npu")
        for name in ("op", "dtype", "calls", "MB", "copied MB", "ms", "first Python line"):
            table.add_column(name, justify="left" if name in ("op", "dtype", "first Python line") else "right")
        for e in self:
            megabytes = (f"{e.bytes / 1e6:.3f}", f"{e.copied_bytes / 1e6:.3f}")
            table.add_row(e.op, e.dtype, str(e.calls), *megabytes, f"{e.seconds * 1e3:.3f}", e.first_line)
        console = Console(width=160)
        with console.capture() as capture:
            console.print(table if self else "no operator ran on the CPU for device npu")
        return capture.get()


def fallback_report() -> FallbackReport:
    """Every operator that ran on the CPU for device npu since the start or the last :func:`clear_fallback_report`.

    ``print(torch_npu.fallback_report())`` shows a table; the entries are a list of :class:`FallbackEntry`.
    """
    entries = [
        FallbackEntry(
            e.op,
            _TORCH_NAME.get(e.dtype, e.dtype),
            e.calls,
            e.bytes,
            e.copied_bytes,
            e.seconds,
            e.first_line,
        )
        for e in _C._fallback_entries()
    ]
    return FallbackReport(sorted(entries, key=lambda e: -e.seconds))


def clear_fallback_report() -> None:
    """Empties the ledger."""
    _C._fallback_clear()


class _PolicyScope:
    """Returned by :func:`fallback_policy`; as a context manager it brings the earlier policy back at the end."""

    def __init__(self, earlier: _C._FallbackPolicy) -> None:
        self._earlier = earlier

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        _C._set_fallback_policy(self._earlier)


def fallback_policy(policy: Policy | None = None) -> _PolicyScope | Policy:
    """Says what happens when an operator has no native kernel on device npu.

    ``"allow"`` (default) runs it on the CPU, ``"warn"`` does so with one warning for each operator and dtype, and
    ``"error"`` raises NotImplementedError that names operator, dtype and Python line. Every case is in
    :func:`fallback_report`.

    A plain call is in force from then on, in all threads; ``with torch_npu.fallback_policy("error"):`` until the end of
    the block. Without an argument it returns the policy in force.

    Raises:
        ValueError: for any other policy.
    """
    if policy is None:
        return _C._fallback_policy().name
    if policy not in ("allow", "warn", "error"):
        raise ValueError(f"unknown fallback policy {policy!r}; expected 'allow', 'warn' or 'error'")
    return _PolicyScope(_C._set_fallback_policy(getattr(_C._FallbackPolicy, policy)))


def apply_environment() -> None:
    """Sets the policy that TORCH_NPU_FALLBACK_CPU_DISABLE asks for."""
    value = os.environ.get(_DISABLE, "0")
    if value == "1":
        fallback_policy("error")
    elif value != "0":
        warnings.warn(f"{_DISABLE}={value!r} is ignored: expected 0 or 1", stacklevel=2)
