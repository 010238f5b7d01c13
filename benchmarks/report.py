"""Results as a table, as JSON and as a picture."""

import json
from dataclasses import asdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from benchmarks.machine import Machine
from benchmarks.timing import Result


def format_time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.2f} us"


def format_ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.4f}"


def print_table(title: str, machine: Machine, results: list[Result]) -> None:
    """Ratios above the aim are red, others green. Further competitors and the share of the bandwidth stand behind."""
    table = Table(title=title)
    table.add_column("case")
    competitors = list(dict.fromkeys(name for r in results for name in r.others))
    shows_bytes = any(r.bytes_moved for r in results)
    for name in ("cpu", "npu", "npu / cpu", "aim", "native", "fallback", *(f"npu / {c}" for c in competitors)):
        table.add_column(name, justify="right")
    if shows_bytes:
        table.add_column("of bandwidth", justify="right")
    group = None
    for r in results:
        if r.group != group:
            table.add_section()
            table.add_row(f"[bold]{r.group}")
            group = r.group
        color = {None: "default", True: "green", False: "red"}[r.reached]
        aim = "" if r.aim is None else format_ratio(r.aim)
        calls = (str(sum(r.native_calls.values())), str(sum(r.fallback_calls.values())))
        times = (format_time(r.cpu_seconds), format_time(r.npu_seconds))
        more = [format_ratio(r.npu_seconds / r.others[c]) if c in r.others else "" for c in competitors]
        if shows_bytes:
            share = r.bytes_moved / r.npu_seconds / 1e9 / machine.read_gb_per_second
            more.append(f"{share:.0%}" if r.bytes_moved else "")
        table.add_row(r.name, *times, f"[{color}]{format_ratio(r.ratio)}", aim, *calls, *more)
    Console(width=120).print(table)


def write_results(folder: Path, name: str, machine: Machine, results: list[Result]) -> list[Path]:
    """Writes NAME.json and NAME.png and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {
        "machine": asdict(machine),
        "results": [{**asdict(r), "ratio": r.ratio, "reached": r.reached} for r in results],
    }
    json_path = folder / f"{name}.json"
    json_path.write_text(json.dumps(data, indent=1) + "\n")
    picture_path = folder / f"{name}.png"
    draw(picture_path, name, machine, results)
    return [json_path, picture_path]


def draw(path: Path, name: str, machine: Machine, results: list[Result]) -> None:
    """One bar a case: time on npu over time on the CPU; a line at 1 and a mark at each aim."""
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.28 * len(results)), layout="constrained")
    colors = {None: "tab:gray", True: "tab:green", False: "tab:red"}
    positions = range(len(results), 0, -1)
    axes.barh(positions, [r.ratio for r in results], color=[colors[r.reached] for r in results])
    aims = [(p, r.aim) for p, r in zip(positions, results, strict=True) if r.aim is not None]
    axes.plot([a for _, a in aims], [p for p, _ in aims], "k|", markersize=12, label="aim")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(positions, [r.name for r in results], fontsize=8)
    axes.set_xlabel("time on npu / time on cpu")
    axes.set_title(f"{name}: {machine.processor}, {machine.threads} threads, {machine.cann}", fontsize=9)
    if aims:
        axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
