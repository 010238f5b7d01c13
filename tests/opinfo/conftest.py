"""Counts the cases of the sweep and writes the sums to build/opinfo.json, for the documentation."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """The operators are tiny; with several workers, threads would only get in each other's way."""
    import torch

    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.getreports(kind) if r.when == "call"]
    cases = [value for r in reports for name, value in r.user_properties if name == "opinfo"]
    if not cases:
        return
    native = sum(c["native"] for c in cases)
    sums = {
        "cases": len(cases),
        "passed": sum(c["passed"] and not c["known"] for c in cases),
        "known_failures": sum(c["known"] for c in cases),
        "failed": sum(not c["passed"] for c in cases),
        "native": native,
        "with_fallback": len(cases) - native,
    }
    terminalreporter.write_line("OpInfo on npu: " + ", ".join(f"{n} {name}" for name, n in sums.items()))
    if config.getoption("keyword") or any("::" in a for a in config.args):
        return  # a part of the sweep says nothing about the whole
    path = Path(config.rootpath) / "build" / "opinfo.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(sums, indent=1) + "\n")
