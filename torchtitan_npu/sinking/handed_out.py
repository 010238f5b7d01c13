"""Memory of a graph's results that callers get as it is, and that the graph may fill again when they are done."""

from collections.abc import Iterable

import torch
from torch import Tensor

from torchtitan_npu.driver import used_on_other_streams

__all__ = ["HandedOut"]


class HandedOut:
    """The storages of some tensors, of which :meth:`is_free` tells whether only those that made this hold them."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        """To be called when each of the storages is held by whatever holds it as long as this object lives."""
        self._one_of_each = {t.untyped_storage()._cdata: t for t in tensors}
        self._unused = self._use_counts()

    def _use_counts(self) -> list[int]:
        return [torch._C._storage_Use_Count(storage) for storage in self._one_of_each]

    def unused(self) -> list[tuple[Tensor, int]]:
        """One tensor of each storage, and how many hold the storage when it is free."""
        return list(zip(self._one_of_each.values(), self._unused, strict=True))

    def is_free(self) -> bool:
        return self._use_counts() == self._unused

    def is_spent(self) -> bool:
        """Whether ``record_stream()`` was called on one: only the allocator knows when that stream is done with it."""
        return any(used_on_other_streams(t) for t in self._one_of_each.values())
