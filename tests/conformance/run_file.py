"""Runs one test file of the vendor's in this process and writes what happened, a line of JSON for each event.

python run_file.py FILE EVENTS

Events: {"start": test}, {"test": test, "outcome": "passed" | "failed" | "skipped", "cause": text}, {"end": true}. A
test that started and has no outcome is the one in which the process ended.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import traceback
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import numpy


class Recorder(unittest.TestResult):
    """Writes each outcome as it comes, as the process may not live to the end."""

    def __init__(self, events: TextIO) -> None:
        super().__init__()
        self.events = events

    def write(self, **event: Any) -> None:
        print(json.dumps(event), file=self.events, flush=True)

    def outcome(self, test: unittest.TestCase, outcome: str, cause: str = "") -> None:
        self.write(test=test.id().split(".", 1)[-1], outcome=outcome, cause=cause)

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.write(start=test.id().split(".", 1)[-1])

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.outcome(test, "passed")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.outcome(test, "failed", text_of(err))

    addError = addFailure

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.outcome(test, "failed", text_of(err))

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.outcome(test, "skipped", reason)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.outcome(test, "passed")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.outcome(test, "failed", "passed, which was not expected")


def text_of(err: Any) -> str:
    kind, value, _ = err
    return "".join(traceback.format_exception_only(kind, value)).strip()


def load(file: Path) -> ModuleType:
    """The file as the main script: files that start processes or look for their name expect it."""
    if not hasattr(numpy, "trapz"):  # numpy 2.4 took the name away, which files compare with
        setattr(numpy, "trapz", numpy.trapezoid)  # noqa: B010
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("events", type=Path)
    arguments = parser.parse_args()
    file = arguments.file.resolve()
    sys.argv = [str(file)]
    sys.path[0] = str(file.parent)
    os.chdir(file.parent)
    with arguments.events.open("w") as events:
        recorder = Recorder(events)
        try:
            suite = unittest.defaultTestLoader.loadTestsFromModule(load(file))
        except unittest.SkipTest as skip:
            recorder.write(test="(the file)", outcome="skipped", cause=str(skip))
        except BaseException:
            recorder.write(test="(the file)", outcome="failed", cause=text_of(sys.exc_info()))
        else:
            suite.run(recorder)
        recorder.write(end=True)


if __name__ == "__main__":
    main()
