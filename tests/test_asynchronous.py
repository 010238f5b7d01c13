"""Other tests again, with streams that run on threads of their own and wait before each task."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = {
    "graphs": ["sinking"],
    "eager": [f"test_{n}.py" for n in ("nn_models", "semantics", "streams", "threads", "memory", "amp", "races")],
}


@pytest.mark.slow
@pytest.mark.parametrize("files", FILES)
def test_results_are_those_of_work_that_runs_at_once(files: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(HERE / f) for f in FILES[files])],
        env={**os.environ, "CANN_HOST_ASYNC": "1", "CANN_HOST_DELAY_US": "100"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
