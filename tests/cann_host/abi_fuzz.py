"""Calls operators with arguments that nobody would pass. Run as a process of its own, as it may not come back.

python abi_fuzz.py SEED CALLS PROGRESS operator…

Before each call the operator's name goes to the file PROGRESS. Prints how many calls were made, and how many of them
were refused, as JSON.
"""

from __future__ import annotations

import ctypes as c
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cann_host
from opspec.generate import ACL_DTYPE
from opspec.table import Param, aclnn_ops

POOL = 1 << 20  # bytes of device memory that valid tensors lie in
SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (0,),
    (1,),
    (3,),
    (2, 3),
    (3, 2),
    (2, 3, 4),
    (1, 2, 4, 4),
    (2, 0, 3),
    (1,) * 9,
)
IMPOSSIBLE = ((-1,), (2, -3), (1 << 40,), (1 << 31, 1 << 31), (1 << 62, 4), (1 << 21,))
INTEGERS = (0, 1, -1, 2, 3, 7, -100, 1 << 31, (1 << 63) - 1, -(1 << 63))
NUMBERS = (0.0, 1.0, -1.5, 0.5, float("inf"), float("nan"), 1e30)
DTYPES = sorted(set(ACL_DTYPE.values()))
TEXTS = (b"", b"none", b"tanh", b"sum", b"no such mode", None)
ND, NZ = 2, 29


class Client:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.acl = c.CDLL(str(cann_host.library()), mode=c.RTLD_GLOBAL)
        self.opapi = c.CDLL(str(cann_host.library("opapi")))
        self.acl.aclGetRecentErrMsg.restype = c.c_char_p
        for kind in ("Tensor", "Scalar", "TensorList", "ScalarList", "IntArray", "FloatArray", "BoolArray"):
            getattr(self.opapi, f"aclCreate{kind}").restype = c.c_void_p
        assert self.acl.aclrtSetDevice(0) == 0
        self.memory = c.c_void_p()
        assert self.acl.aclrtMalloc(c.byref(self.memory), c.c_size_t(POOL), 0) == 0
        noise = np.random.default_rng(seed).integers(-3, 4, POOL // 8)
        c.memmove(self.memory.value, noise.ctypes.data, POOL)

    def tensor(self, wanted: tuple[int, ...] | None = None) -> c.c_void_p:
        pick = self.random.choice
        odd = self.random.random() < 0.15
        shape = pick(IMPOSSIBLE) if odd and self.random.random() < 0.5 else (wanted or pick(SHAPES))
        rank = len(shape)
        strides = [1] * rank
        for i in reversed(range(rank - 1)):
            strides[i] = max(-(2**62), min(2**62, strides[i + 1] * shape[i + 1]))
        if odd and rank and self.random.random() < 0.2:
            strides[pick(range(rank))] = pick(INTEGERS)
        dtype = pick((99, -7, 1 << 20)) if odd and self.random.random() < 0.3 else pick(self.dtypes)
        form = NZ if odd and self.random.random() < 0.2 else ND
        data = None if odd and self.random.random() < 0.3 else c.c_void_p(self.memory.value + 64 * pick(range(64)))
        array = c.c_int64 * max(rank, 1)
        sizes = array(*shape)
        offset = pick(INTEGERS) if odd and self.random.random() < 0.2 else 0
        return c.c_void_p(
            self.opapi.aclCreateTensor(
                sizes, c.c_uint64(rank), dtype, array(*strides), c.c_int64(offset), form, sizes, c.c_uint64(rank), data
            )
        )

    def scalar(self) -> c.c_void_p:
        integer = self.random.random() < 0.4
        value = c.c_int64(self.random.choice(INTEGERS)) if integer else c.c_double(self.random.choice(NUMBERS))
        return c.c_void_p(self.opapi.aclCreateScalar(c.byref(value), ACL_DTYPE["int64" if integer else "float64"]))

    def array(self, kind: str) -> c.c_void_p:
        count = self.random.choice((0, 1, 2, 2, 3, 4, 6))
        if kind == "int[]":
            values = (c.c_int64 * max(count, 1))(*[self.random.choice(INTEGERS) for _ in range(count)])
            return c.c_void_p(self.opapi.aclCreateIntArray(values, c.c_uint64(count)))
        if kind == "float[]":
            numbers = (c.c_float * max(count, 1))(*[self.random.choice(NUMBERS) for _ in range(count)])
            return c.c_void_p(self.opapi.aclCreateFloatArray(numbers, c.c_uint64(count)))
        flags = (c.c_bool * max(count, 1))(*[self.random.random() < 0.5 for _ in range(count)])
        return c.c_void_p(self.opapi.aclCreateBoolArray(flags, c.c_uint64(count)))

    def argument(self, param: Param, shape: tuple[int, ...] | None) -> Any:
        kind = param.kind.rstrip("?!^")
        plain = {
            "int": lambda: c.c_int64(self.random.choice(INTEGERS)),
            "int32": lambda: c.c_int32(self.random.choice((0, 1, -1, 2, 1 << 30))),
            "int8": lambda: c.c_int8(self.random.choice((0, 1, 2, -1, 127))),
            "bool": lambda: c.c_bool(self.random.random() < 0.5),
            "float": lambda: c.c_double(self.random.choice(NUMBERS)),
            "float32": lambda: c.c_float(self.random.choice(NUMBERS)),
            "dtype": lambda: c.c_int(self.random.choice((*DTYPES, 99, -1))),
            "str": lambda: c.c_char_p(self.random.choice(TEXTS)),
        }
        if kind in plain:
            return plain[kind]()
        if self.random.random() < 0.04:
            return None
        if kind == "Tensor":
            return self.tensor(shape)
        if kind == "Scalar":
            return self.scalar()
        if kind in ("int[]", "float[]", "bool[]"):
            return self.array(kind)
        element = "Tensor" if kind.startswith("Tensor") else "Scalar"
        made = [self.tensor(shape) if element == "Tensor" else self.scalar() for _ in range(self.random.randrange(4))]
        handles = (c.c_void_p * max(len(made), 1))(*made)
        return c.c_void_p(getattr(self.opapi, f"aclCreate{element}List")(handles, c.c_uint64(len(made))))

    def call(self, name: str, params: tuple[Param, ...]) -> bool:
        """Whether the call was refused. Descriptors are given up: they are few and small."""
        self.dtypes = (self.random.choice(DTYPES),) if self.random.random() < 0.6 else tuple(DTYPES)
        shape = self.random.choice(SHAPES) if self.random.random() < 0.6 else None
        arguments = [self.argument(param, shape) for param in params]
        size, executor = c.c_uint64(), c.c_void_p()
        code = getattr(self.opapi, f"aclnn{name}GetWorkspaceSize")(*arguments, c.byref(size), c.byref(executor))
        if code == 0:
            assert executor.value, f"aclnn{name} gave no executor and no error"
            code = getattr(self.opapi, f"aclnn{name}")(None, size, executor, None)
        if code:
            message = self.acl.aclGetRecentErrMsg().decode()
            assert f"aclnn{name}" in message, f"aclnn{name} was refused with {code} and the message {message!r}"
        return code != 0


def main() -> None:
    seed, calls, progress, names = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
    torch.set_num_threads(1)
    client, table, refused = Client(seed), aclnn_ops(), 0
    with progress.open("w") as file:
        for name in names:
            for index in range(calls):
                file.seek(0)
                file.write(f"aclnn{name} seed {seed} call {index}\n")
                file.truncate()
                file.flush()
                client.random.seed(f"{seed} {name} {index}")
                refused += client.call(name, table[name].params)
    print(json.dumps({"calls": calls * len(names), "refused": refused}))


if __name__ == "__main__":
    main()
