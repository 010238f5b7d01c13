"""The native library: its functions are private, typed where torch_npu.npu wraps them."""

from typing import Any

def __getattr__(name: str) -> Any: ...
