"""Timing of the same work done in several ways, in turn, so that all see the same machine."""

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

import torch_npu
from benchmarks.result import Result

# Short work is repeated until one measurement takes this long: far above the clock's resolution and short enough to
# fall between two interruptions of a busy machine.
MEASUREMENT_SECONDS = 2e-3
# Short work is repeated so long before a measurement: where it matters it runs again and again, and its first calls
# after other ways have run find the caches full of their data.
WARM_UP_SECONDS = 10e-3
LONGEST_CASE_SECONDS = 20.0

Work = Callable[[], object]


def announce(name: str) -> None:
    """Shows which case is measured."""
    print(f"  {name} …", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Case:
    """The CPU against device npu: ``prepare(device)`` makes inputs there and returns the work to be timed."""

    name: str
    group: str
    prepare: Callable[[str], Work]
    aim: float | None = None  # how many times faster npu should be
    grad: bool = False

    def measure(self, rounds: int) -> Result:
        """Best of ``rounds`` measurements on each device, fewer where that would take very long."""
        announce(self.name)
        works = {}
        for device in ("cpu", "npu"):
            torch.manual_seed(0)
            works[device] = self.prepare(device)
        with torch.set_grad_enabled(self.grad):
            calls = count_calls(works["npu"])
            seconds = interleaved(works, rounds)
        return Result(self.name, self.group, seconds, {} if self.aim is None else {"cpu": self.aim}, calls)


@dataclass(frozen=True)
class Contest:
    """Several ways against the last of them: ``prepare()`` makes the inputs and returns the ways by name."""

    name: str
    group: str
    prepare: Callable[[], dict[str, Work]]
    aims: dict[str, float]  # how many times faster than another way the last one should be
    grad: bool = False
    longest: float = LONGEST_CASE_SECONDS

    def measure(self, rounds: int) -> Result:
        """Best of ``rounds`` measurements that alternate between the ways."""
        announce(self.name)
        torch.manual_seed(0)
        with torch.set_grad_enabled(self.grad):
            seconds = interleaved(self.prepare(), rounds, self.longest)
        return Result(self.name, self.group, seconds, self.aims)


def count_calls(work: Work) -> dict[str, int]:
    """How many operators of CANN and how many on the CPU one call of the work runs."""
    work()
    torch_npu.clear_native_calls()
    torch_npu.clear_fallback_report()
    work()
    fallback = sum(entry.calls for entry in torch_npu.fallback_report())
    return {"native": sum(torch_npu.native_calls().values()), "fallback": fallback}


def interleaved(works: dict[str, Work], rounds: int, longest: float = LONGEST_CASE_SECONDS) -> dict[str, float]:
    """Seconds of one call of each work: the least of ``rounds`` measurements that alternate between them.

    Short work is warmed up before each measurement. After ``longest`` seconds three rounds are enough.
    """
    once = {name: _seconds_of_one(work) for name, work in works.items()}
    best = dict.fromkeys(works, float("inf"))
    deadline = time.perf_counter() + longest
    collecting = gc.isenabled()
    gc.disable()
    try:
        for done in range(rounds):
            if done >= 3 and time.perf_counter() > deadline:
                break
            for name, work in works.items():
                _seconds(work, int(WARM_UP_SECONDS / once[name]))
                best[name] = min(best[name], _seconds(work, max(1, int(MEASUREMENT_SECONDS / once[name]))))
    finally:
        if collecting:
            gc.enable()
    return best


def _seconds(work: Work, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / max(1, repeats)


def _seconds_of_one(work: Work) -> float:
    work()
    return min(_seconds(work, 1) for _ in range(3))
