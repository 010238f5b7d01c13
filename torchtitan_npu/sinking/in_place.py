"""Graphs that read the arguments of a call where they lie and write to memory that the caller gets: one launch a call.

Such a graph stands for addresses. Those of the first call get graphs at once. In a loop the allocator soon gives
arguments the same memory again and again: where ``follow_memory=True`` allows to run ``forward`` again, other addresses
that are met often get graphs, too, and an argument that has a new address in call after call is copied to a place where
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

MOST_GRAPHS = 6
"""Of one recording at a time."""
MOST_WITH_SAME_ADDRESSES = 2
"""Each has results of its own. A loop that keeps the last result while it makes the next one needs two; a caller that
keeps the results of more calls gets copies."""
OFTEN = 8
"""Calls with the same addresses from which a capture, which costs about as much as an eager call, is worth it."""
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

    def parts(self) -> tuple[Any, list[Tensor], list[tuple[Tensor, int]]]:
        """What a RecordedCall needs of it."""
        return self._graph, self._results, self._handed_out.unused()


class InPlaceGraphs:
    """The graphs of one recording, the least recently used first."""

    def __init__(self, arguments: int) -> None:
        self._graphs: list[InPlaceGraph] = []
        self._seen: OrderedDict[Key, int] = OrderedDict()
        self._seen_alone: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(arguments)]
        self._news = [0] * arguments
        self.captures = 0
        self.reason = ""
        """Why there are none: what their capture raised."""

    def addresses(self, arguments: Sequence[Tensor], follow: bool = False) -> Addresses:
        """What graphs are looked for by; ``follow``: and remembers it."""
        if not follow:
            return tuple(a.data_ptr() for a in arguments)
        found = []
        for number, argument in enumerate(arguments):
            address = argument.data_ptr()
            if self._news[number] > MOST_NEW_ADDRESSES:
                address = 0
            elif _meetings(self._seen_alone[number], address) == 1:
                self._news[number] += 1
            found.append(address)
        return tuple(found)

    def record(self, record: Callable[[], InPlaceGraph], count: int = 1) -> None:
        """Adds graphs that ``record`` makes, in place of those that were not used for longest."""
        for _ in range(count):
            self.captures += 1
            try:
                graph = record()
            except CannotSink as why:
                self.reason = str(why)
                return
            if len(self._graphs) == MOST_GRAPHS:
                self._graphs.pop(0)
            self._graphs.append(graph)

    def find(self, key: Key, record: Callable[[], InPlaceGraph] | None = None) -> InPlaceGraph | None:
        """A graph for these addresses whose results are free; ``record`` may make one when they are met often."""
        graph = self._free(key)
        if graph is not None or record is None or self.reason or self.captures >= MOST_CAPTURES:
            return graph
        fitting = sum(g.key == key for g in self._graphs)
        if fitting < MOST_WITH_SAME_ADDRESSES and _meetings(self._seen, key) >= OFTEN:
            self.record(record)
            return self._free(key)
        return None

    def of(self, key: Key) -> list[InPlaceGraph]:
        """All graphs for these addresses."""
        return [graph for graph in self._graphs if graph.key == key]

    def _free(self, key: Key) -> InPlaceGraph | None:
        for graph in list(self._graphs):
            if graph.key == key and graph.is_free():
                self._graphs.remove(graph)
                if not graph.is_spent():
                    self._graphs.append(graph)
                    return graph
        return None


def _meetings(seen: OrderedDict[Any, int], item: Any) -> int:
    """How often the item was met lately, with this time."""
    seen[item] = seen.get(item, 0) + 1
    seen.move_to_end(item)
    if len(seen) > REMEMBERED:
        seen.popitem(last=False)
    return seen[item]
