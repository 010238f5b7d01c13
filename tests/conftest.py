"""Shared by all tests."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Runs code in a Python process of its own, for what can be seen only at import or once a process.

    ``run_python(code, check=True, **environment)``; a value of None unsets the variable.
    """

    def run(code: str, check: bool = True, **environment: str | None) -> subprocess.CompletedProcess:
        env = {**os.environ, "OMP_NUM_THREADS": "1", **{k: v for k, v in environment.items() if v is not None}}
        for name in (k for k, v in environment.items() if v is None):
            env.pop(name, None)
        command = [sys.executable, "-c", textwrap.dedent(code)]
        # In a folder of its own, as Python would import a package of the current one before an installed one.
        result = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        if check:
            assert result.returncode == 0, result.stdout + result.stderr
        return result

    return run
