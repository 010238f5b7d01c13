"""Timing of one piece of work on the CPU and on device npu, in turn, so that both see the same machine."""

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

import torch_npu

# Short work is repeated until one measurement takes this long: far above the clock's resolution and short enough to
# fall between two interruptions of a busy machine.
MEASUREMENT_SECONDS = 2e-3
LONGEST_CASE_SECONDS = 20.0

Work = Callable[[], object]


@dataclass(frozen=True)
class Result:
    name: str
    group: str
    aim: float | None  # largest ratio wanted; None: only observed
    cpu_seconds: float
    npu_seconds: float
    native_calls: dict[str, int] = field(repr=False)  # in one call of the work
    fallback_calls: dict[str, int] = field(repr=False)
    others: dict[str, float] = field(default_factory=dict)  # seconds of further competitors on the CPU
    bytes_moved: int = 0  # by an implementation that reads and writes everything once; 0: not known

    @property
    def ratio(self) -> float:
        return self.npu_seconds / self.cpu_seconds

    @property
    def reached(self) -> bool | None:
        return None if self.aim is None else self.ratio <= self.aim


@dataclass(frozen=True)
class Case:
    """``prepare(device)`` makes inputs there and returns the work to be timed."""

    name: str
    group: str
    prepare: Callable[[str], Work]
    aim: float | None = None
    grad: bool = False

    def measure(self, rounds: int) -> Result:
        """Best of ``rounds`` measurements on each device, fewer where that would take very long."""
        print(f"  {self.name} …", file=sys.stderr, flush=True)
        works = {}
        for device in ("cpu", "npu"):
            torch.manual_seed(0)
            works[device] = self.prepare(device)
        with torch.set_grad_enabled(self.grad):
            native, fallback = count_calls(works["npu"])
            best = interleaved(works, rounds)
        return Result(self.name, self.group, self.aim, best["cpu"], best["npu"], native, fallback)


def count_calls(work: Work) -> tuple[dict[str, int], dict[str, int]]:
    """Calls of CANN's operators and of operators on the CPU in one call of the work."""
    work()
    torch_npu.clear_native_calls()
    torch_npu.clear_fallback_report()
    work()
    fallback = {f"{entry.op} {entry.dtype}": entry.calls for entry in torch_npu.fallback_report()}
    return torch_npu.native_calls(), fallback


def interleaved(works: dict[str, Work], rounds: int) -> dict[str, float]:
    """Seconds of one call of each work: the least of ``rounds`` measurements that alternate between them."""
    repeats = {name: _repeats(work) for name, work in works.items()}
    best = dict.fromkeys(works, float("inf"))
    deadline = time.perf_counter() + LONGEST_CASE_SECONDS
    collecting = gc.isenabled()
    gc.disable()
    try:
        for done in range(rounds):
            if done >= 3 and time.perf_counter() > deadline:
                break
            for name, work in works.items():
                best[name] = min(best[name], _seconds(work, repeats[name]))
    finally:
        if collecting:
            gc.enable()
    return best


def _seconds(work: Work, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def _repeats(work: Work) -> int:
    work()
    once = min(_seconds(work, 1) for _ in range(3))
    return max(1, int(MEASUREMENT_SECONDS / once))
