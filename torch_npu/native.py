"""What ran through CANN's operators: the counterpart of the fallback ledger."""

from torch_npu import _C

__all__ = ["clear_native_calls", "native_calls"]


def native_calls() -> dict[str, int]:
    """How often each aclnn operator was called since the start or the last :func:`clear_native_calls`.

    Example: ``{"aclnnAdd": 12, "aclnnMatmul": 4}``. Copies between devices and views are no operators of CANN's.
    """
    return _C._native_calls()


def clear_native_calls() -> None:
    """Sets all counts to zero."""
    _C._native_calls_clear()
