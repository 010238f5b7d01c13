"""Whatever an operator is given, it answers: with an error that names it, or with a result, and never with a crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from opspec.table import aclnn_ops

FUZZ = Path(__file__).with_name("abi_fuzz.py")
OPERATORS = sorted(aclnn_ops())
FAMILIES = sorted({op.family for op in aclnn_ops().values()})


def fuzz(names: list[str], calls: int, seed: int, folder: Path) -> dict[str, int]:
    """Calls each operator so many times in a process of its own."""
    progress = folder / "progress"
    command = [sys.executable, str(FUZZ), str(seed), str(calls), str(progress), *names]
    result = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    where = progress.read_text().strip() if progress.exists() else "at the start"
    assert result.returncode == 0, f"{where}: ended with {result.returncode}\n{result.stderr[-2000:]}"
    return json.loads(result.stdout.splitlines()[-1])


def test_every_operator_refuses_or_answers(tmp_path: Path) -> None:
    counts = fuzz(OPERATORS, 2, 1, tmp_path)
    assert counts["calls"] == 2 * len(OPERATORS)
    # Both happen, or the calls are not what they are meant to be.
    assert 0 < counts["refused"] < counts["calls"]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_many_calls(family: str, tmp_path: Path) -> None:
    """More than 10 000 calls over all families."""
    fuzz([name for name in OPERATORS if aclnn_ops()[name].family == family], 20, 2, tmp_path)
