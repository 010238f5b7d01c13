"""Graphs that read the arguments of a call where they lie and write to memory that the caller gets: one launch a call.

Such a graph stands for addresses. In a loop the allocator soon gives arguments the same memory again: addresses that
are met a second time get a graph. An argument that has a new address in call after call is copied to a place where
graphs read it. The graphs hold no arguments: whenever a call has these addresses, the caller has the memory.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from torchtitan_npu.sinking.handed_out import HandedOut
from torchtitan_npu.sinking.reasons import CannotSink

__all__ = ["InPlaceGraph", "InPlaceGraphs", "Key"]

Addresses = tuple[int, ...]  # of the arguments; 0: it is copied
Key = tuple[bool, Addresses]  # whether the results are the caller's to keep

MOST_GRAPHS = 4
"""Of one recording at a time. A loop that keeps the last result while it makes the next one needs two."""
MOST_WITH_SAME_ADDRESSES = 2
"""Each has results of its own: a caller that keeps the results of more calls gets copies."""
MOST_CAPTURES = 16
"""Of one recording ever: each executes the module's ``forward`` once more."""
REMEMBERED = 16
"""Calls back, in which the same addresses are looked for."""
MOST_NEW_ADDRESSES = 8
"""Of one argument, before it is copied instead."""


class InPlaceGraph:
    """One of them, with its results."""

    def __init__(self, key: Key, graph: Any, results: list[Tensor]) -> None:
        self.key = key
        self._graph = graph
        self._results = results
        to_keep, _ = key
        self._handed_out = HandedOut(results if to_keep else ())

    def is_free(self) -> bool:
        """Whether nobody holds the results of its latest replay."""
        return self._handed_out.is_free()

    def is_spent(self) -> bool:
        return self._handed_out.is_spent()

    def replay(self) -> list[Tensor]:
        self._graph.replay()
        return [r.detach() for r in self._results]


class InPlaceGraphs:
    """The graphs of one recording, the least recently used first."""

    def __init__(self, arguments: int) -> None:
        self._graphs: list[InPlaceGraph] = []
        self._seen: OrderedDict[Key, None] = OrderedDict()
        self._seen_alone: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(arguments)]
        self._news = [0] * arguments
        self.captures = 0
        self.reason = ""
        """Why there are none: what their capture raised."""

    def addresses(self, arguments: Sequence[Tensor]) -> Addresses:
        """What graphs are looked for by."""
        found = []
        for number, argument in enumerate(arguments):
            address = argument.data_ptr()
            if self._news[number] > MOST_NEW_ADDRESSES:
                address = 0
            elif not _met_before(self._seen_alone[number], address):
                self._news[number] += 1
            found.append(address)
        return tuple(found)

    def find(self, key: Key, record: Callable[[], InPlaceGraph]) -> InPlaceGraph | None:
        """A graph for these addresses whose results are free; ``record`` makes one when they are met again."""
        fitting = [g for g in self._graphs if g.key == key]
        for graph in fitting:
            if not graph.is_free():
                continue
            self._graphs.remove(graph)
            if graph.is_spent():
                fitting.remove(graph)
                break
            self._graphs.append(graph)
            return graph
        if self.reason or self.captures == MOST_CAPTURES or len(fitting) == MOST_WITH_SAME_ADDRESSES:
            return None
        if not _met_before(self._seen, key):
            return None
        self.captures += 1
        try:
            graph = record()
        except CannotSink as why:
            self.reason = str(why)
            return None
        if len(self._graphs) == MOST_GRAPHS:
            self._graphs.pop(0)
        self._graphs.append(graph)
        return graph


def _met_before(seen: OrderedDict[Any, None], item: Any) -> bool:
    """And remembers that it is met now."""
    known = item in seen
    seen[item] = None
    seen.move_to_end(item)
    if len(seen) > REMEMBERED:
        seen.popitem(last=False)
    return known
