"""Runs one test file of the vendor's in this process and writes what happened, a line of JSON for each event.

python run_file.py FILE EVENTS
python run_file.py --serve

The second way imports PyTorch and the plug-in once and then runs each file in a fork of itself, in a fraction of the
time. A line {"file", "events", "output", "environment"} on the input is one file; the answers are {"pid"} and, when
the process has ended, {"code"} (negative: a signal).

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


def run(file: Path, events_file: Path) -> None:
    file = file.resolve()
    sys.argv = [str(file)]
    sys.path[0] = str(file.parent)
    os.chdir(file.parent)
    with events_file.open("w") as events:
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


def serve() -> None:
    # Nothing of it starts the device, which would not survive the fork.
    import torch.testing._internal.common_device_type
    import torch.testing._internal.common_utils  # noqa: F401

    import torch_npu  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.environ.update(request["environment"])
            run(Path(request["file"]), Path(request["events"]))
            sys.exit()  # the rest of main(), as in a process of its own
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("events", type=Path, nargs="?")
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
    elif arguments.events is None:
        parser.error("expected FILE and EVENTS, or --serve")
    else:
        run(arguments.file, arguments.events)


if __name__ == "__main__":
    main()
