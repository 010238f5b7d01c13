"""The runner of the vendor's test files, on files made for the purpose."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest
from conformance_page import cause, kind, page
from run_conformance import checkout, run_file, run_set

FILE = """
import os, sys, time, unittest
from helper import five

class Tests(unittest.TestCase):
    def test_a_passes(self):
        self.assertEqual(five(), 5)
        self.assertEqual(os.environ["CANN_HOST_SOC"], "Ascend950")
    def test_b_fails(self):
        self.assertEqual(1, 2)
    @unittest.skip("not on this product")
    def test_c_skipped(self): ...
    def test_d_subtests(self):
        for i in range(3):
            with self.subTest(i=i):
                self.assertNotEqual(i, 1)
    def test_e_ends_the_process(self):
        {last}
    def test_f_does_not_run(self): ...
"""


@pytest.fixture(params=[False, True], ids=["alone", "preloaded"])
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> argparse.Namespace:
    folder = tmp_path / "test" / "test_base_ops"
    folder.mkdir(parents=True)
    (folder / "helper.py").write_text("def five():\n    return 5\n")
    monkeypatch.setenv("ASCEND_OP_PLUGIN", str(tmp_path))
    return argparse.Namespace(
        adapter="vendor",
        python=sys.executable,
        time_limit=20,
        logs=None,
        sample=None,
        only=None,
        jobs=1,
        out=tmp_path,
        preload=request.param,
    )


def write(arguments: argparse.Namespace, last: str) -> Path:
    file = arguments.out / "test" / "test_base_ops" / "test_made.py"
    file.write_text(FILE.replace("{last}", last))
    return file


def test_outcomes_of_a_file(arguments: argparse.Namespace) -> None:
    result = run_file(arguments, "Ascend950", "operators", write(arguments, "pass"))
    outcomes = {name.split(".")[-1]: outcome for name, (outcome, _) in result["tests"].items()}
    assert outcomes == {
        "test_a_passes": "passed",
        "test_b_fails": "failed",
        "test_c_skipped": "skipped",
        "test_d_subtests": "failed",
        "test_e_ends_the_process": "passed",
        "test_f_does_not_run": "passed",
    }


@pytest.mark.parametrize(
    ("last", "words"), [("os.abort()", "SIGABRT"), ("os._exit(3)", "code 3"), ("time.sleep(60)", "longer than 2 s")]
)
def test_a_process_that_ends_early(arguments: argparse.Namespace, last: str, words: str) -> None:
    arguments.time_limit = 2 if "sleep" in last else 20
    tests = run_file(arguments, "Ascend950", "operators", write(arguments, last))["tests"]
    outcome, why = tests["Tests.test_e_ends_the_process"]
    assert outcome == "failed"
    assert words in why
    assert "Tests.test_f_does_not_run" not in tests


def test_a_file_that_cannot_be_loaded_fails(arguments: argparse.Namespace) -> None:
    file = arguments.out / "test" / "test_base_ops" / "test_made.py"
    file.write_text("import no_such_module\n")
    tests = run_file(arguments, "Ascend950", "operators", file)["tests"]
    assert kind(tests) == "failed"
    assert cause(tests["(the file)"][1]) == "no module no_such_module"


def test_page(arguments: argparse.Namespace) -> None:
    write(arguments, "pass")
    text = page([run_set(arguments, "operators", "Ascend950")])
    assert "| Ascend950 | 1 | 0 (0 %) | 1 | 0 | 3 | 2 | 1 |" in text
    assert "| test_made.py | test_b_fails | assertion: 1 != 2 |" in text


def test_a_part_again_keeps_the_rest(arguments: argparse.Namespace) -> None:
    folder = write(arguments, "pass").parent
    for name in ("test_first.py", "test_last.py", "test_zz.py"):
        (folder / name).write_text("import unittest\nclass T(unittest.TestCase):\n    def test_it(self): ...\n")
    arguments.sample, arguments.seed = 3, 0
    chosen = [file["file"] for file in json.loads(run_set(arguments, "operators", "Ascend950").read_text())["files"]]
    assert len(chosen) == 3
    arguments.sample, arguments.only = None, [chosen[0]]
    again = json.loads((out := run_set(arguments, "operators", "Ascend950")).read_text())
    assert [file["file"] for file in again["files"]] == chosen
    assert (again["sample"], again["of"]) == (3, 4)
    assert "3 of 4 files at random" in page([out])


def test_causes_outside_of_cann_host(arguments: argparse.Namespace) -> None:
    folder = write(arguments, "pass").parent
    (folder / "test_made.py").write_text(
        "import unittest\nclass T(unittest.TestCase):\n    def test_d2d_copy3(self):\n        assert False\n"
    )
    text = page([run_set(arguments, "operators", "Ascend950")])
    assert "| test_made.py | test_d2d_copy3 | outside of cann_host: needs 32 GiB of memory |" in text


def test_kinds_and_causes() -> None:
    assert kind({"a": ["skipped", ""]}) == "skipped"
    assert kind({"a": ["skipped", ""], "b": ["passed", ""]}) == "passed"
    assert cause("RuntimeError: aclnnX or aclnnXGetWorkspaceSize not in libopapi.so") == "no operator aclnnX"
    assert (
        cause("RuntimeError: aclnnY: argument 'self' is int8; this operator takes float")
        == "aclnnY: self may not be int8"
    )
    assert cause("RuntimeError: x | y\nmore") == "RuntimeError: x \\| y more"


def test_a_missing_checkout_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_PYTORCH", "/nowhere")
    with pytest.raises(SystemExit, match="ASCEND_PYTORCH=/nowhere: expected the folder of a checkout"):
        checkout("ASCEND_PYTORCH")
