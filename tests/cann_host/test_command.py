"""`python -m cann_host env` and `run`: a client of CANN finds the libraries by their names alone."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import cann_host

CLIENT = "import ctypes, sys; print([ctypes.CDLL(f'lib{name}.so')._name for name in sys.argv[1:]])"
NAMES = ("ascendcl", "hccl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel", "atb", "hcomm")
OTHER = {"ASCEND_HOME_PATH": "/nowhere", "ASCEND_TOOLKIT_HOME": "/nowhere", "LD_LIBRARY_PATH": "/nowhere/lib64"}


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    argv = [sys.executable, "-m", "cann_host", *arguments]
    return subprocess.run(argv, env=os.environ | environment, capture_output=True, text=True)


def test_run_finds_the_libraries_and_gives_the_exit_code() -> None:
    result = command("run", "--", sys.executable, "-c", CLIENT, *NAMES, **OTHER)
    assert result.returncode == 0, result.stderr
    assert "libhccl.so" in result.stdout
    assert command("run", sys.executable, "-c", "raise SystemExit(3)").returncode == 3


def test_env_is_what_a_shell_evaluates() -> None:
    exports = command("env", **OTHER).stdout
    assert f"export LD_LIBRARY_PATH={cann_host.root()}/lib64:/nowhere/lib64\n" in exports
    assert f"export ASCEND_HOME_PATH={cann_host.root()}\n" in exports
    assert "unset ASCEND_TOOLKIT_HOME\n" in exports
    client = shlex.join([sys.executable, "-c", CLIENT, "ascendcl"])
    script = f"{exports}{client}; echo ${{ASCEND_TOOLKIT_HOME-none}}"
    result = subprocess.run(["sh", "-c", script], env=os.environ | OTHER, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["['libascendcl.so']", "none"]


def test_environment_names_folders_that_exist() -> None:
    home = cann_host.environment()["ASCEND_HOME_PATH"]
    assert home is not None
    # What the vendor's plug-in looks for at import.
    for folder in ("runtime", "compiler", "opp", "lib64"):
        assert Path(home, folder).is_dir()


def test_refusals() -> None:
    assert "expected a command" in command("run", "--").stderr
    missing = command("run", "--", "no-such-program")
    assert missing.returncode == 1
    assert "no-such-program: No such file or directory" in missing.stderr


def test_environment_says_what_is_not_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cann_host, "root", lambda: tmp_path)
    with pytest.raises(FileNotFoundError, match="make build"):
        cann_host.environment()
