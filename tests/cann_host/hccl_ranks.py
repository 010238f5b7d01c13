"""Ranks of HCCL for tests: processes that each run one function as a rank of one communicator."""

from __future__ import annotations

import ctypes
import inspect
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import cann_host

FP16, FP32, INT64, INT32, BF16 = 3, 4, 5, 2, 11
SUM, PROD, MAX, MIN = 0, 1, 2, 3
PARAMETER, REMOTE, TIMEOUT = 1, 21, 9  # results

TYPES = {np.dtype(np.float16): FP16, np.dtype(np.float32): FP32, np.dtype(np.int64): INT64, np.dtype(np.int32): INT32}


class HcclError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Rank:
    """One rank; arrays of numpy are its device memory, as cann_host runs on the host."""

    def __init__(self, rank: int, ranks: int, root: bytes) -> None:
        self.rank, self.ranks = rank, ranks
        self._acl = ctypes.CDLL(str(cann_host.library()))
        self._acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
        self._hccl = ctypes.CDLL(str(cann_host.library("hccl")))
        assert self._acl.aclrtSetDevice(0) == 0
        self.comm = ctypes.c_void_p()
        self.call("HcclCommInitRootInfo", ctypes.c_uint32(ranks), root, ctypes.c_uint32(rank), ctypes.byref(self.comm))

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self._hccl, name)(*arguments)
        if code:
            raise HcclError(code, self._acl.aclGetRecentErrMsg().decode())

    def collective(self, name: str, *arguments: object) -> None:
        """Arrays become pointers, numbers 64-bit values; communicator and default stream are added."""
        converted = [
            ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else ctypes.c_uint64(a) for a in arguments
        ]
        self.call(name, *converted, self.comm, None)

    def destroy(self) -> None:
        self.call("HcclCommDestroy", self.comm)


def root_info() -> bytes:
    """Valid as long as this process has not ended or all ranks have joined."""
    info = ctypes.create_string_buffer(4108)
    assert ctypes.CDLL(str(cann_host.library("hccl"))).HcclGetRootInfo(info) == 0
    return info.raw


def main(file: str, function: str, rank: int, ranks: int, folder: Path) -> None:
    sys.path.insert(0, str(Path(file).parent))
    module = __import__(Path(file).stem)
    path = folder / "root"
    if rank == 0:
        (folder / "root.part").write_bytes(root_info())
        (folder / "root.part").rename(path)
    while not path.exists():
        time.sleep(0.01)
    inspect.unwrap(getattr(module, function))(Rank(rank, ranks, path.read_bytes()))


def on_ranks(count: int, **environment: str) -> Callable:
    """Runs the test, which takes a Rank, in `count` processes at once."""

    def decorate(test: Callable) -> Callable:
        def run() -> None:
            file = inspect.getfile(test)
            with tempfile.TemporaryDirectory() as folder:
                code = (
                    f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from pathlib import Path; "
                    f"import hccl_ranks; hccl_ranks.main({file!r}, {test.__name__!r}, int(sys.argv[1]), {count}, "
                    f"Path({folder!r}))"
                )
                processes = [
                    subprocess.Popen(
                        [sys.executable, "-c", code, str(rank)],
                        env=os.environ | {"HCCL_EXEC_TIMEOUT": "60", "OMP_NUM_THREADS": "1"} | environment,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        text=True,
                    )
                    for rank in range(count)
                ]
                outputs = [process.communicate(timeout=120)[0] for process in processes]
                for rank, process in enumerate(processes):
                    assert process.returncode == 0, f"rank {rank}:\n{outputs[rank]}"

        run.__name__ = test.__name__
        run.__doc__ = test.__doc__
        run.__wrapped__ = test  # type: ignore[attr-defined]
        run.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
        return run

    return decorate
