"""Cases in which several ways of doing the same work compete: timing, table, JSON and picture."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.machine import Machine
from benchmarks.report import format_time
from benchmarks.timing import Work, interleaved


@dataclass(frozen=True)
class Contest:
    """``prepare()`` makes the inputs and returns the ways by name; ``champion`` is the one whose speed is asked for."""

    name: str
    champion: str
    prepare: Callable[[], dict[str, Work]]
    aims: dict[str, float]  # how many times faster than another way the champion should be
    grad: bool = False

    def measure(self, rounds: int) -> "ContestResult":
        """Best of ``rounds`` measurements that alternate between the ways."""
        print(f"  {self.name} …", file=sys.stderr, flush=True)
        torch.manual_seed(0)
        with torch.set_grad_enabled(self.grad):
            works = self.prepare()
            seconds = interleaved(works, rounds)
        return ContestResult(self.name, self.champion, seconds, self.aims)


@dataclass(frozen=True)
class ContestResult:
    name: str
    champion: str
    seconds: dict[str, float]
    aims: dict[str, float]

    def speedup(self, other: str) -> float:
        """How many times faster the champion is."""
        return self.seconds[other] / self.seconds[self.champion]

    def reached(self, other: str) -> bool | None:
        return self.speedup(other) >= self.aims[other] if other in self.aims else None


def print_table(title: str, results: list[ContestResult]) -> None:
    """A column for each way with its time; in brackets how many times faster the champion is: green where the aim is
    reached, red where not."""
    table = Table(title=f"{title}: time, (how many times faster the last column is, aim)")
    ways = list(dict.fromkeys(way for r in results for way in r.seconds))
    table.add_column("case")
    for way in ways:
        table.add_column(way, justify="right")
    for r in results:
        table.add_row(r.name, *(_cell(r, way) for way in ways))
    Console(width=140).print(table)


def _cell(result: ContestResult, way: str) -> str:
    if way not in result.seconds:
        return ""
    time = format_time(result.seconds[way])
    if way == result.champion:
        return f"[bold]{time}"
    color = {None: "default", True: "green", False: "red"}[result.reached(way)]
    aim = f", {result.aims[way]:g}" if way in result.aims else ""
    return f"{time} [{color}]({result.speedup(way):.1f}{aim})"


def write_results(folder: Path, name: str, machine: Machine, results: list[ContestResult]) -> list[Path]:
    """Writes NAME.json and NAME.png and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {
        "machine": asdict(machine),
        "results": [
            {**asdict(r), "speedup": {way: r.speedup(way) for way in r.seconds if way != r.champion}} for r in results
        ],
    }
    json_path = folder / f"{name}.json"
    json_path.write_text(json.dumps(data, indent=1) + "\n")
    picture_path = folder / f"{name}.png"
    draw(picture_path, name, machine, results)
    return [json_path, picture_path]


def draw(path: Path, name: str, machine: Machine, results: list[ContestResult]) -> None:
    """A group of bars for each case: how many times faster the champion is; a mark at each aim."""
    ways = list(dict.fromkeys(way for r in results for way in r.seconds if way != r.champion))
    figure, axes = plt.subplots(figsize=(9, 1.4 + 0.25 * len(results) * len(ways)), layout="constrained")
    height = 0.8 / max(len(ways), 1)
    for n, way in enumerate(ways):
        shown = [(i, r) for i, r in enumerate(results) if way in r.seconds]
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
