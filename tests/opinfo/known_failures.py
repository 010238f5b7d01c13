"""What is known to differ between npu and CPU, each with its reason.

A case that is listed and passes is reported as a failure, so that the list cannot outlive its reasons. Before adding an
entry, try to mend the operator.
"""

from __future__ import annotations

from dataclasses import dataclass

ALL_DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "bool", "complex64")


@dataclass(frozen=True)
class KnownFailure:
    """``aspects`` of ``op`` (as test ids name it) that fail for each of ``dtypes``."""

    op: str
    dtypes: tuple[str, ...]
    aspects: tuple[str, ...]
    reason: str


KNOWN_FAILURES: tuple[KnownFailure, ...] = ()


def known_aspects(op: str, dtype: str) -> dict[str, str]:
    """Aspect → reason, for one case."""
    return {a: k.reason for k in KNOWN_FAILURES if k.op == op and dtype in k.dtypes for a in k.aspects}
