"""A graph's dump as a time line: tasks of a stream one after another, and none before what it waits for."""

import json
import re
from pathlib import Path
from typing import Any

__all__ = ["align_trace_json"]

_RECORD = re.compile(r"(?:EVENT_RECORD|MEM_WRITE_VALUE)_(.+)")
_WAIT = re.compile(r"(?:EVENT_WAIT|MEM_WAIT_VALUE)_(.+)")


def align_trace_json(path: str, output: str | None = None) -> str:
    """Writes the tasks of a dump (``NPUGraph.debug_dump``) with times under which a trace viewer shows their order.

    A dump has no times of its own: CANN numbers the tasks. Here each begins when its stream has done the one before,
    and a task that waits for an event when that event was recorded.

    Args:
        path: the dump.
        output: where to; ``graph.aligned.json`` beside ``graph.json`` without.

    Returns:
        The path of the new file.
    """
    contents = json.loads(Path(path).read_text())
    events = contents["traceEvents"] if isinstance(contents, dict) else contents
    target = Path(output) if output is not None else Path(path).with_suffix(".aligned.json")
    target.write_text(json.dumps(_aligned(events)))
    return str(target)


def _aligned(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ends: dict[str, float] = {}  # of the last task of each stream
    recorded: dict[str, float] = {}  # when each event was
    result = []
    for event in sorted(events, key=lambda e: e.get("ts", 0)):
        if event.get("ph") != "X":
            result.append(event)
            continue
        stream, name = event.get("tid", ""), event.get("name", "")
        begin = ends.get(stream, 0.0)
        if (wait := _WAIT.match(name)) and wait[1] in recorded:
            begin = max(begin, recorded[wait[1]])
        ends[stream] = begin + event.get("dur", 0)
        if record := _RECORD.match(name):
            recorded[record[1]] = ends[stream]
        result.append({**event, "ts": begin})
    return result
