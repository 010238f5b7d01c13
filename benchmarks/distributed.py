"""Collectives between two processes of one machine: npu over hccl against the CPU over gloo, one thread each."""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.nn.parallel import DistributedDataParallel

from benchmarks.memory import KiB, MiB, size_of
from benchmarks.result import Result
from benchmarks.timing import Work, announce

RANKS = 2
BACK_ENDS = {"cpu": "cpu, gloo", "npu": "npu, hccl"}


def all_reduce(nbytes: int) -> Callable[[str], Work]:
    def prepare(device: str) -> Work:
        x = torch.ones(nbytes // 4, device=device)
        return lambda: dist.all_reduce(x, dist.ReduceOp.MAX)  # whose values stay what they are

    return prepare


def all_gather(nbytes: int) -> Callable[[str], Work]:
    def prepare(device: str) -> Work:
        x = torch.ones(nbytes // 4, device=device)
        parts = [torch.empty_like(x) for _ in range(RANKS)]
        return lambda: dist.all_gather(parts, x)

    return prepare


def training_step(device: str) -> Work:
    """Of an MLP with 2.4 million parameters, on 16 samples a rank."""
    layers = [torch.nn.Linear(768, 1536), torch.nn.GELU(), torch.nn.Linear(1536, 768)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(16, 768).to(device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


PREPARE: dict[str, Callable[[str], Work]] = {
    **{f"all_reduce, {size_of(n)}": all_reduce(n) for n in (4 * KiB, MiB, 25 * MiB)},
    **{f"all_gather, {size_of(n)}": all_gather(n) for n in (4 * KiB, MiB)},
    "DistributedDataParallel, a training step": training_step,
}


def _one_rank(rank: int, port: int, name: str, rounds: int, results: multiprocessing.SimpleQueue) -> None:
    os.environ["LOCAL_WORLD_SIZE"] = str(RANKS)  # a device each
    import torch_npu  # noqa: F401

    torch.set_num_threads(1)
    torch.npu.set_device(rank)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("cpu:gloo,npu:hccl", init_method=address, rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    works = {device: PREPARE[name](device) for device in BACK_ENDS}
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for device, work in works.items():
            work()
            dist.barrier()
            start = time.perf_counter()
            work()
            torch.npu.synchronize()
            best[device] = min(best[device], time.perf_counter() - start)
    if rank == 0:
        results.put(best)
    dist.destroy_process_group()


@dataclass(frozen=True)
class TwoRanks:
    """A case that two processes run; the times are those of the first."""

    name: str
    group: str

    def measure(self, rounds: int) -> Result:
        """Best of ``rounds`` measurements with each back end, in turn."""
        announce(self.name)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        results = multiprocessing.get_context("spawn").SimpleQueue()
        multiprocessing.spawn(_one_rank, args=(port, self.name, rounds, results), nprocs=RANKS)
        best = results.get()
        return Result(self.name, self.group, {BACK_ENDS[device]: seconds for device, seconds in best.items()})


def cases() -> list[TwoRanks]:
    return [TwoRanks(name, "two processes") for name in PREPARE]
