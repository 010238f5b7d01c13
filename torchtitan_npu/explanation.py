"""``torchtitan_npu.explain(model, *inputs)``: what compilation does with a model, as text and as one HTML page."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchtitan_npu.compile import report
from torchtitan_npu.compile.backend import npu
from torchtitan_npu.compile.report import GraphReport


@dataclass(frozen=True)
class Explanation:
    """The graphs of a model as they were compiled; prints as text."""

    title: str
    graphs: tuple[GraphReport, ...]
    fallbacks: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.title}: {len(self.graphs)} compiled graph(s)"]
        for graph in self.graphs:
            lines += ["", str(graph), f"  {_summary(graph)}"]
        lines += [f"run as it is: {reason}" for reason in self.fallbacks]
        return "\n".join(lines)

    @property
    def html(self) -> str:
        """A page that needs no other file."""
        body = "\n".join(_graph_section(number, graph) for number, graph in enumerate(self.graphs))
        reasons = "".join(f"<li>{html.escape(reason)}</li>" for reason in self.fallbacks)
        fallbacks = f"<h2>Run as it is</h2><ul>{reasons}</ul>" if reasons else ""
        return _PAGE.format(title=html.escape(self.title), body=body + fallbacks)

    def save(self, path: Any) -> None:
        """Writes the page."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.html)

    def _repr_html_(self) -> str:
        return self.html


def explain(model: Callable[..., Any], *inputs: Any, **keywords: Any) -> Explanation:
    """Compiles the model for the inputs with backend ``npu``, runs it once, and says what was done and why.

    The compiled graphs of the process and their counters stay as they are.
    """
    before, before_fallbacks = len(report.reports()), len(report.fallbacks())
    compiled = torch.compile(model, backend=npu)
    compiled(*inputs, **keywords)
    title = type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", "function")
    return Explanation(title, tuple(report.reports()[before:]), tuple(report.fallbacks()[before_fallbacks:]))


def _summary(graph: GraphReport) -> str:
    text = f"launches {graph.operators} -> {graph.launches}; bytes moved {_size(graph.bytes_before)} -> "
    text += _size(graph.bytes_after)
    text += f"; intermediates {_size(graph.peak_bytes)} ({_size(graph.arena_bytes)} of it an arena)"
    return text + f" instead of {_size(graph.naive_bytes)}, {graph.in_place} in place"


def _size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} GiB"


def _graph_section(number: int, graph: GraphReport) -> str:
    kernels = "".join(
        f"<tr><td>{html.escape(k.name)}</td><td>{html.escape(' → '.join(k.operators))}</td>"
        f"<td>{k.reads}</td><td>{k.writes}</td><td>{html.escape(', '.join(k.checks))}</td></tr>"
        for k in graph.kernels
    )
    alone = "".join(
        f"<tr><td>{html.escape(u.operator)}</td><td>{html.escape(u.name)}</td><td>{html.escape(u.reason)}</td></tr>"
        for u in graph.unfused
    )
    passes = ", ".join(f"{name}: {count}" for name, count in graph.passes.items() if count) or "none applied"
    return f"""<h2>Graph {number}: {html.escape(graph.kind)}</h2>
<p>{html.escape(_summary(graph))}</p>
<p>Passes: {html.escape(passes)}</p>
<h3>Before and after</h3>
{_bars(graph)}
<h3>Kernels</h3>
<table><tr><th>kernel</th><th>operators</th><th>reads</th><th>writes</th><th>checks</th></tr>{kernels}</table>
<h3>Operators that run alone</h3>
<table><tr><th>operator</th><th>node</th><th>why</th></tr>{alone}</table>
<h3>Arena</h3>
{_memory_chart(graph)}
<details><summary>The graph before the passes</summary><pre>{html.escape(graph.graph_before)}</pre></details>
<details><summary>The graph after the passes</summary><pre>{html.escape(graph.graph_after)}</pre></details>"""


def _bars(graph: GraphReport) -> str:
    """Launches and bytes before and after, as bars."""
    rows: list[tuple[str, int, int, Callable[[int], str]]] = [
        ("launches", graph.operators, graph.launches, str),
        ("bytes moved", graph.bytes_before, graph.bytes_after, _size),
    ]
    parts = []
    for y, (name, before, after, text) in enumerate(rows):
        longest = max(before, after, 1)
        for row, (label, value, color) in enumerate((("before", before, "#b8c4d6"), ("after", after, "#2f6fb0"))):
            top, width = 50 * y + 20 * row, 400 * value / longest
            parts.append(f'<text x="0" y="{top + 14}">{name}, {label}</text>')
            parts.append(f'<rect x="160" y="{top + 2}" width="{width:.1f}" height="15" fill="{color}"/>')
            parts.append(f'<text x="{166 + width:.1f}" y="{top + 14}">{text(value)}</text>')
    return f'<svg width="700" height="100" font-size="12">{"".join(parts)}</svg>'


def _memory_chart(graph: GraphReport) -> str:
    """Each intermediate tensor as a box: steps to the right, offsets upwards."""
    if not graph.memory:
        return "<p>No kernel writes an intermediate.</p>"
    steps = max(box.last for box in graph.memory) + 1
    boxes = []
    for i, box in enumerate(graph.memory):
        x, width = 640 * box.first / steps, 640 * (box.last - box.first + 1) / steps
        height = max(200 * box.bytes / max(graph.peak_bytes, 1), 1)
        y = 200 - 200 * box.offset / max(graph.peak_bytes, 1) - height
        title = f"{box.name}: {_size(box.bytes)} at {box.offset}, steps {box.first} to {box.last}"
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        boxes.append(f'<rect {place} fill="hsl({i * 47 % 360},50%,65%)"><title>{html.escape(title)}</title></rect>')
    return f'<svg width="640" height="200" style="border:1px solid #999">{"".join(boxes)}</svg>'


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px sans-serif; margin: 2em auto; max-width: 60em; }}
table {{ border-collapse: collapse; }} td, th {{ border: 1px solid #ccc; padding: .2em .5em; text-align: left; }}
pre {{ overflow-x: auto; background: #f5f5f5; padding: 1em; }}
</style></head><body><h1>{title}</h1>
{body}
</body></html>
"""
