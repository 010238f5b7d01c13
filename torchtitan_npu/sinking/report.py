"""What is sunk, as data and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchtitan_npu.driver import npu
from torchtitan_npu.sinking.cache import ModuleGraphs, Sunk, all_graphs

__all__ = ["GraphEntry", "GraphReport", "graph_report"]


@dataclass(frozen=True)
class GraphEntry:
    """One signature of a module."""

    module: str  # its class
    signature: str  # "float32[1, 3, 224, 224]"
    mode: str  # "forward" or "forward + backward"
    nodes: int  # operators, copies and other tasks that the graphs hold
    replays: int
    captures: int  # how often `forward` was executed to record it, in addition to the first call
    bytes: int  # that the module's graphs have reserved, all signatures together
    peak_bytes: int  # that this signature's tensors take at one time; lifetimes that do not overlap share memory
    total_bytes: int  # that they would take if none shared
    launches_eager: int  # from host to device in one eager run: one a node
    launches: int  # in the latest replay: the graphs, and the copies of inputs and outputs around them
    reason_for_copies: str  # why no graph could be recorded that works on the caller's memory; "" if none failed
    reason: str  # why the module runs eagerly instead; "" if it does not


class GraphReport(list[GraphEntry]):
    """The entries, by module and then as they were used last. Prints as a table."""

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table(title="graphs of enable_graph()")
        right = ("nodes", "replays", "peak MB", "launches eager", "launches")
        for name in ("module", "signature", "graphs", *right, "runs eagerly because"):
            table.add_column(name, justify="right" if name in right else "left")
        for e in self:
            counts = (e.nodes, e.replays, f"{e.peak_bytes / 1e6:.2f}", e.launches_eager, e.launches)
            numbers = ("", "", "", "", "") if e.reason else map(str, counts)
            table.add_row(e.module, e.signature, "" if e.reason else e.mode, *numbers, e.reason)
        console = Console(width=160)
        with console.capture() as capture:
            console.print(table if self else "no module ran under enable_graph()")
        return capture.get()


def graph_report() -> GraphReport:
    """Every signature that ``enable_graph()`` has seen and still knows."""
    entries = []
    for graphs in all_graphs():
        with graphs.lock:
            reserved = sum(_reserved_bytes(lane.pool) for lane in graphs.lanes)
            entries += [_entry(graphs, sunk, reserved) for sunk in graphs.sunk.values()]
    return GraphReport(entries)


def _entry(graphs: ModuleGraphs, sunk: Sunk, reserved: int) -> GraphEntry:
    recording = next(iter(sunk.recordings.values()), None)
    if recording is None:
        return GraphEntry(graphs.name, sunk.text, "", 0, 0, 0, 0, 0, 0, 0, 0, "", sunk.reason)
    nodes = recording.launches()
    has_backward = recording.backward_graph is not None
    return GraphEntry(
        module=graphs.name,
        signature=sunk.text,
        mode="forward + backward" if has_backward else "forward",
        nodes=nodes,
        replays=sunk.replays,
        captures=sum(1 + r.in_place.captures for r in sunk.recordings.values()),
        bytes=reserved,
        peak_bytes=recording.peak_bytes(),
        total_bytes=recording.total_bytes(),
        launches_eager=nodes,
        launches=recording.launches_of_replay(),
        reason_for_copies=recording.in_place.reason,
        reason="",
    )


def _reserved_bytes(pool: tuple[int, int]) -> int:
    segments: list[dict[str, Any]] = npu.memory_snapshot(pool)
    return sum(segment["total_size"] for segment in segments)
