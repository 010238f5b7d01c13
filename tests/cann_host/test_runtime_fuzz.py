"""Whatever functions of the runtime are given, they answer: with an error and a message, or a result; no crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).with_name("runtime_fuzz.py")


@pytest.mark.parametrize("seed", [1, 2])
def test_every_function_refuses_or_answers(seed: int, tmp_path: Path) -> None:
    """About 200 functions, 60 calls of each."""
    progress = tmp_path / "progress"
    result = subprocess.run(
        [sys.executable, str(FUZZ), str(seed), "60", str(progress)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    where = progress.read_text().strip() if progress.exists() else "at the start"
    assert result.returncode == 0, f"{where}: ended with {result.returncode}\n{result.stderr[-2000:]}"
    counts = json.loads(result.stdout.splitlines()[-1])
    assert counts["calls"] > 10_000
    # Both happen, or the calls are not what they are meant to be.
    assert counts["calls"] // 10 < counts["refused"] < counts["calls"]
