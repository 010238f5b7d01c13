"""Runs the smoke set and the vendor's test files against one adapter over cann_host, and writes docs/conformance.md.

python tests/conformance/run_conformance.py --adapter vendor --python .venv-vendor/bin/python [--set runtime] …

The vendor's files are read from checkouts that two variables name: ASCEND_PYTORCH (github Ascend/pytorch) and
ASCEND_OP_PLUGIN (github Ascend/op-plugin); a set whose checkout is not named is left out. Each file runs in a process
of its own, with a time limit. The outcomes go to build/conformance as JSON, of which conformance_page.py makes the
page.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import conformance_page

import cann_host

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

# test/npu of Ascend/pytorch by subject: what a runtime has to do, without the compiler, the profiler and remote parts
RUNTIME = {
    "streams": "stream stream_check aclgraph_multi_stream multi_stream_lazy_reclaim",
    "events": "ipc_event npurt npu_sleep",
    "graphs": """aclgraph_dfx aclgraph_launch_host_func aclgraph_pin_memory aclgraph_rng_state aclgraph_support_blocking
        aclgraph_update aclnn_random_aclgraph graph_tree npugraph_handler""",
    "generators": "generators random_sampling torch_deterministicalgorithms deterministic_level",
    "memory": """allocator_envs custom_segment_size expandable_segments large_segment_size memory_viz mempool_destructor
        no_npu_memory_caching per_process_memory_fraction pin_memory_host_register pin_memory_withoutsetdevice
        roundup_power2_divisions swapped_memory_allocator torch_fill_uninitialized_memory""",
    "autocast": "amp check_over_flow",
    "tensors": """binary_cross_entropy_with_logits combine_tensors copy cpu_fallback_control device dlpack
        empty_strided_npu locally_disabling_gradient_omputation math_operations multi_devices_single_process npu
        npu_format optimizer_zero_grad option storage tensor tensor_ndim tensor_ndimension tensors torch_npu
        utilities""",
    "serialization": "serialization serialization_format save_async",
}


CHECKOUTS = {"runtime": "ASCEND_PYTORCH", "operators": "ASCEND_OP_PLUGIN", "fused": "ASCEND_OP_PLUGIN"}


def checkout(variable: str) -> Path:
    value = os.environ.get(variable, "")
    if not Path(value, "test").is_dir():
        sys.exit(f"{variable}={value}: expected the folder of a checkout, with a folder `test`")
    return Path(value).resolve()


def files_of(name: str) -> list[tuple[str, Path]]:
    """(subject, file) of a set: runtime, operators (of PyTorch) or fused (those of torch.ops.npu)."""
    if name == "runtime":
        folder = checkout("ASCEND_PYTORCH") / "test" / "npu"
        found = [(subject, folder / f"test_{stem}.py") for subject, stems in RUNTIME.items() for stem in stems.split()]
        return [(subject, file) for subject, file in found if file.exists()]
    folder = checkout("ASCEND_OP_PLUGIN") / "test" / {"operators": "test_base_ops", "fused": "test_custom_ops"}[name]
    return [(name, file) for file in sorted(folder.glob("test_*.py"))]


def environment(soc: str, home: Path) -> dict[str, str]:
    env = dict(os.environ)
    for name, value in cann_host.environment().items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    # Paths of this checkout would put its torch_npu before the installed one.
    env.pop("PYTHONPATH", None)
    return env | {
        "CANN_HOST_SOC": soc,
        "CANN_HOST_DEVICES": "2",
        "CANN_HOST_MEMORY": "64G",  # a 910B's; files reserve tens of GiB that they do not touch
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(home),
        "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
    }


def events_of(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


class Preloaded:
    """A process that has imported PyTorch and the plug-in, and forks for each file."""

    def __init__(self, arguments: argparse.Namespace, soc: str) -> None:
        self._process = subprocess.Popen(
            [arguments.python, str(HERE / "run_file.py"), "--serve"],
            env=adapter_environment(arguments, soc, Path(tempfile.gettempdir())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, request: dict[str, Any], time_limit: float) -> str:
        """How the process of the file ended."""
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        pid = self._answer()["pid"]
        late = threading.Event()

        def stop() -> None:
            late.set()
            kill_group(pid)

        timer = threading.Timer(time_limit, stop)
        timer.start()
        code = self._answer()["code"]
        timer.cancel()
        kill_group(pid)
        return f"longer than {time_limit} s" if late.is_set() else f"the process ended with {describe(code)}"

    def _answer(self) -> dict[str, int]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that imports the plug-in ended with {describe(self._process.wait())}")
        return json.loads(line)


def run_alone(arguments: argparse.Namespace, soc: str, request: dict[str, Any], time_limit: float) -> str:
    """The same in a new process."""
    command = [arguments.python, str(HERE / "run_file.py"), request["file"], request["events"]]
    env = adapter_environment(arguments, soc, Path(request["environment"]["HOME"]))
    with Path(request["output"]).open("w") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        ending = f"the process ended with {describe(process.wait(timeout=time_limit))}"
    except subprocess.TimeoutExpired:
        ending = f"longer than {time_limit} s"
    kill_group(process.pid)
    process.wait()
    return ending


def kill_group(pid: int) -> None:
    """Also what the tests started and left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def adapter_environment(arguments: argparse.Namespace, soc: str, home: Path) -> dict[str, str]:
    env = environment(soc, home)
    if arguments.adapter == "ours":
        env |= {"PYTHONPATH": str(HERE / "helpers"), "ASCEND_PYTORCH": str(checkout("ASCEND_PYTORCH"))}
    return env


def run_file(arguments: argparse.Namespace, soc: str, subject: str, file: Path) -> dict[str, Any]:
    """Outcome of every test of the file: {"file", "subject", "seconds", "tests": {name: [outcome, cause]}}."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        events, output = Path(folder) / "events", Path(folder) / "output"
        request = {
            "file": str(file),
            "events": str(events),
            "output": str(output),
            "environment": {"HOME": folder, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"},
        }
        if arguments.preload:
            ending = preloaded(arguments, soc).run(request, arguments.time_limit)
        else:
            ending = run_alone(arguments, soc, request, arguments.time_limit)
        if arguments.logs:
            arguments.logs.mkdir(parents=True, exist_ok=True)
            shutil.copy(output, arguments.logs / f"{file.stem}.log")
        tests = outcomes(events_of(events), ending)
    return {"file": file.name, "subject": subject, "seconds": round(time.monotonic() - began, 1), "tests": tests}


_of_thread = threading.local()


def preloaded(arguments: argparse.Namespace, soc: str) -> Preloaded:
    """The one of this thread."""
    if getattr(_of_thread, "soc", None) != soc:
        _of_thread.soc, _of_thread.process = soc, Preloaded(arguments, soc)
    return _of_thread.process


def outcomes(events: list[dict[str, Any]], ending: str) -> dict[str, list[str]]:
    tests: dict[str, list[str]] = {}
    running, complete = "(the file)", False
    for event in events:
        if "start" in event:
            running = event["start"]
        elif "test" in event:
            # A failed subtest stays failed.
            if tests.get(event["test"], [""])[0] != "failed":
                tests[event["test"]] = [event["outcome"], event["cause"]]
        else:
            complete = True
    if not complete:
        tests[running] = ["failed", ending]
    return tests


def describe(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"code {code}"


def run_set(arguments: argparse.Namespace, name: str, soc: str) -> Path:
    """Runs the files of a set, and returns where the outcomes are."""
    files = files_of(name)
    order = {file.name: place for place, (_, file) in enumerate(files)}
    if arguments.sample and arguments.sample < len(files):
        files = sorted(random.Random(arguments.seed).sample(files, arguments.sample))
    if arguments.only:
        files = [(subject, file) for subject, file in files if any(part in file.name for part in arguments.only)]

    def one(entry: tuple[str, Path]) -> dict[str, Any]:
        result = run_file(arguments, soc, *entry)
        count = {kind: sum(o == kind for o, _ in result["tests"].values()) for kind in ("passed", "failed", "skipped")}
        print(f"{soc} {result['file']:50} {result['seconds']:6.1f} s  {count}", flush=True)
        return result

    run = {"adapter": arguments.adapter, "set": name, "soc": soc, "sample": arguments.sample, "of": len(order)}
    out = arguments.out / f"{arguments.adapter}-{name}-{soc}.json"
    results: list[dict[str, Any]] = []
    if arguments.only and out.exists():  # the other files keep their outcomes
        again, before = {file.name for _, file in files}, json.loads(out.read_text())
        results = [result for result in before["files"] if result["file"] not in again]
        run["sample"] = before["sample"]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for result in pool.map(one, files):
            results.append(result)
            results.sort(key=lambda result: order.get(result["file"], len(order)))
            out.write_text(json.dumps(run | {"files": results}, indent=1))
    return out


def run_smoke(arguments: argparse.Namespace, soc: str) -> bool:
    # Not `-m pytest`, which would put the current folder, and with it this project's torch_npu, first.
    code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    command = [arguments.python, "-c", code, "-q", "-p", "no:cacheprovider", str(HERE / "test_smoke.py")]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(command, env=environment(soc, Path(folder)), cwd=folder).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapter", choices=("vendor", "ours"), required=True)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the adapter")
    parser.add_argument("--set", choices=CHECKOUTS, help="one set; all of them without")
    parser.add_argument("--soc", nargs="+", default=["Ascend910B3", "Ascend950"])
    parser.add_argument("--time-limit", type=int, default=300, help="seconds for one file")
    parser.add_argument("--sample", type=int, help="so many files, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="of the choice")
    parser.add_argument("--only", nargs="+", help="parts of names of files; the rest keeps its outcomes")
    parser.add_argument(
        "--preload", action="store_true", help="import the plug-in once, and fork for each file: several times as fast"
    )
    parser.add_argument("--no-smoke", action="store_true", help="leave out the smoke set")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--logs", type=Path, help="folder for the output of each file")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "conformance")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    smoke = [arguments.no_smoke or run_smoke(arguments, soc) for soc in arguments.soc]
    for name, variable in CHECKOUTS.items():
        if arguments.set not in (None, name):
            continue
        if arguments.set is None and variable not in os.environ:
            print(f"{variable} is not set: the test files of set `{name}` do not run")
            continue
        for soc in arguments.soc:
            run_set(arguments, name, soc)
    measured = sorted(arguments.out.glob("*.json"))
    if measured:
        (ROOT / "docs" / "conformance.md").write_text(conformance_page.page(measured))
    sys.exit(0 if all(smoke) else "the smoke set failed")


if __name__ == "__main__":
    main()
