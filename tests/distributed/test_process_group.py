"""The back end hccl of torch.distributed: two processes run the cases of program.py, each against what one computes."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from program import CASES

PROGRAM = Path(__file__).with_name("program.py")
RANKS = 2
NAMES = [name for name, function in CASES.items() if function.__module__ == "program"]


def run_ranks(
    names: list[str], program: Path = PROGRAM, ranks: int = RANKS, **environment: str
) -> list[dict[str, str]]:
    """What went wrong in each case on each rank; a case that was not reached is missing."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    shared["LOCAL_WORLD_SIZE"] = str(ranks)
    # A rank that waits for one that has failed ends by itself.
    limits = {"HCCL_CONNECT_TIMEOUT": "60", "HCCL_EXEC_TIMEOUT": "60"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), *names],
            env={**os.environ, **shared, **limits, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    outcomes = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=240)
            lines = [line for line in out.splitlines() if line.startswith("outcomes: ")]
            assert lines, f"a rank ended with {process.returncode} and no outcome:\n{out}\n{err}"
            outcomes.append(json.loads(lines[0].removeprefix("outcomes: ")))
    finally:
        for process in processes:
            process.kill()
    return outcomes


def check(outcomes: list[dict[str, str]], name: str) -> None:
    failures = [f"rank {rank}:\n{found[name]}" for rank, found in enumerate(outcomes) if found.get(name)]
    assert not failures, "\n".join(failures)
    assert all(name in found for found in outcomes), "not reached, as a case before it failed"


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, str]]:
    return run_ranks(NAMES)


@pytest.mark.slow
@pytest.mark.xdist_group("distributed")
@pytest.mark.parametrize("name", NAMES)
def test_two_ranks(name: str, outcomes: list[dict[str, str]]) -> None:
    check(outcomes, name)


@pytest.mark.slow
@pytest.mark.xdist_group("distributed")
def test_streams_that_run_asynchronously() -> None:
    """With delays, so that a stream that does not wait for another one is seen."""
    names = ["work_and_futures", "gathering", "data_parallel_trains_as_one_process_with_all_data"]
    found = run_ranks(names, CANN_HOST_ASYNC="1", CANN_HOST_DELAY_US="200")
    for name in names:
        check(found, name)


@pytest.mark.slow
@pytest.mark.xdist_group("distributed")
@pytest.mark.parametrize("backend", ["hccl", "cpu:gloo,npu:hccl"])
def test_back_ends_by_name(backend: str) -> None:
    names = ["data_parallel_trains_as_one_process_with_all_data", "objects"]
    found = run_ranks(names, BACKEND=backend)
    for name in names:
        check(found, name)


@pytest.mark.slow
@pytest.mark.xdist_group("distributed")
def test_groups_that_are_bound_to_a_device() -> None:
    names = ["groups", "groups_split_off_another", "tensors_spread_over_a_mesh"]
    found = run_ranks(names, BOUND="1")
    for name in names:
        check(found, name)


@pytest.mark.slow
@pytest.mark.xdist_group("distributed")
def test_a_rank_that_ends_is_an_error_of_the_other(run_python: Callable[..., subprocess.CompletedProcess]) -> None:
    code = """
        import os, torch, torch.distributed as dist, torch.multiprocessing as processes

        def rank_of_two(rank, port):
            dist.init_process_group(init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
            x = torch.ones(3, device="npu")
            dist.all_reduce(x)
            dist.barrier()
            if rank == 1:
                os._exit(0)
            try:
                dist.all_reduce(x)
                print(x.tolist())
            except Exception as error:
                print(type(error).__name__, "HcclAllReduce" in str(error))
            os._exit(0)

        if __name__ == "__main__":
            import socket
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            ranks = [processes.get_context("fork").Process(target=rank_of_two, args=(rank, port)) for rank in (0, 1)]
            for rank in ranks: rank.start()
            for rank in ranks: rank.join()
    """
    assert "Error True" in run_python(code, HCCL_EXEC_TIMEOUT="20").stdout


@pytest.mark.slow
@pytest.mark.xdist_group("distributed")
def test_example() -> None:
    example = Path(__file__).parents[2] / "examples" / "data_parallel.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(example)]
    out = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    assert re.fullmatch(r"2 processes on Ascend\w+: loss 0\.\d+, same parameters: True", out.strip())


def test_a_group_of_one(run_python: Callable[..., subprocess.CompletedProcess]) -> None:
    code = """
        import torch, torch.distributed as dist
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("npu:0"))
        x = torch.arange(3.0, device="npu")
        dist.all_reduce(x)
        try:
            dist.all_reduce(torch.ones(2))
        except RuntimeError as error:
            print("cpu" in str(error))
        try:
            dist.new_group([0], pg_options=dist.ProcessGroupGloo._Options())
        except TypeError as error:
            print("ProcessGroupHCCL.Options" in str(error))
        print(x.tolist(), dist.get_backend(), dist.is_backend_available("hccl"))
        dist.destroy_process_group()
    """
    assert run_python(code).stdout.split("\n")[:3] == ["True", "True", "[0.0, 1.0, 2.0] hccl True"]
