"""Results as a table, as JSON and as a picture."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from benchmarks.machine import Machine
from benchmarks.result import Result

COLORS = {None: "default", True: "green", False: "red"}


def format_time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.2f} us"


def format_factor(factor: float) -> str:
    return f"{factor:.0f}" if factor >= 100 else f"{factor:.1f}" if factor >= 10 else f"{factor:.2f}"


def all_ways(results: list[Result]) -> list[str]:
    """In the order in which they appear, the champion last."""
    others = dict.fromkeys(way for r in results for way in r.others)
    return [*others, *dict.fromkeys(r.champion for r in results)]


def print_table(title: str, machine: Machine, results: list[Result]) -> None:
    """A column for each way with its time; in brackets how many times faster the last way is, and the aim: green where
    it is reached, red where not."""
    ways, notes = all_ways(results), list(dict.fromkeys(note for r in results for note in r.notes))
    table = Table(title=f"{title}: time (how many times faster {ways[-1]} is; aim)")
    table.add_column("case")
    shares = ["of read bandwidth"] if any(r.bytes_moved for r in results) else []
    for column in (*ways, *shares, *notes):
        table.add_column(column, justify="right")
    for group in dict.fromkeys(r.group for r in results):
        table.add_section()
        table.add_row(f"[bold]{group}")
        for r in (r for r in results if r.group == group):
            share = [_share(r, machine)] if shares else []
            table.add_row(r.name, *(_cell(r, way) for way in ways), *share, *(str(r.notes.get(n, "")) for n in notes))
    console = Console(width=160)
    console.print(table)
    for line in geometric_means(results):
        console.print(line)


def _cell(result: Result, way: str) -> str:
    if way not in result.seconds:
        return ""
    time = format_time(result.seconds[way])
    if way == result.champion:
        return f"[bold]{time}"
    aim = f"; {format_factor(result.aims[way])}" if way in result.aims else ""
    return f"{time} [{COLORS[result.reached(way)]}]({format_factor(result.speedup(way))}{aim})"


def _share(result: Result, machine: Machine) -> str:
    if not result.bytes_moved:
        return ""
    return f"{result.bytes_moved / result.seconds[result.champion] / 1e9 / machine.read_gb_per_second:.0%}"


def geometric_means(results: list[Result]) -> Iterator[str]:
    """A line for each group of three cases and more."""
    for group in dict.fromkeys(r.group for r in results):
        members = [r for r in results if r.group == group]
        factors = {way: [r.speedup(way) for r in members if way in r.others] for way in all_ways(members)[:-1]}
        means = [
            f"{format_factor(math.exp(sum(map(math.log, f)) / len(f)))} times faster than {way}"
            for way, f in factors.items()
            if len(f) >= 3
        ]
        if means:
            yield f"{group}, geometric mean: {', '.join(means)}"


def write_results(folder: Path, name: str, machine: Machine, results: list[Result]) -> list[Path]:
    """Writes NAME.json and NAME.png and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {
        "machine": asdict(machine),
        "results": [{**asdict(r), "speedup": {way: r.speedup(way) for way in r.others}} for r in results],
    }
    json_path = folder / f"{name}.json"
    json_path.write_text(json.dumps(data, indent=1) + "\n")
    picture_path = folder / f"{name}.png"
    draw(picture_path, name, machine, results)
    return [json_path, picture_path]


def draw(path: Path, name: str, machine: Machine, results: list[Result]) -> None:
    """A group of bars for each case: how many times faster the champion is; a mark at each aim."""
    ways = all_ways(results)[:-1]
    figure, axes = plt.subplots(figsize=(9, 1.4 + 0.25 * len(results) * len(ways)), layout="constrained")
    height = 0.8 / max(len(ways), 1)
    for n, way in enumerate(ways):
        shown = [(i, r) for i, r in enumerate(results) if way in r.others]
        axes.barh([-i - n * height for i, _ in shown], [r.speedup(way) for _, r in shown], height, label=f"than {way}")
        aims = [(-i - n * height, r.aims[way]) for i, r in shown if way in r.aims]
        axes.plot([a for _, a in aims], [p for p, _ in aims], "k|", markersize=10)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks([-i - 0.4 + height / 2 for i in range(len(results))], [r.name for r in results], fontsize=8)
    axes.set_xscale("log")
    axes.set_xlabel(f"how many times faster {results[0].champion} is (| is the aim)")
    axes.set_title(f"{name}: {machine.processor}, {machine.threads} threads, {machine.cann}", fontsize=9)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)
