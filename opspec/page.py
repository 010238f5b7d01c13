"""Generated pages of the documentation."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def write_or_check(command: str, description: str | None, path: Path, page: Callable[[], str]) -> None:
    """``python -m command`` writes the page, ``--check`` ends with an error if the file is out of date."""
    parser = argparse.ArgumentParser(prog=f"python -m {command}", description=description)
    parser.add_argument("--check", action="store_true", help="fail if the page is out of date")
    if parser.parse_args().check:
        if not path.exists() or path.read_text() != page():
            sys.exit(f"{path} is out of date: run python -m {command}")
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text(page())
