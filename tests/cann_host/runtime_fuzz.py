"""Calls functions of the runtime with arguments that nobody would pass. Run as a process of its own.

python runtime_fuzz.py SEED CALLS PROGRESS

The functions and the types of their parameters are those of the header acl.h. What a C function cannot check is left
out: pointers that are not null point to memory of some kind, and objects without a table (descriptors of tensors) are
such objects. Before each call the function's name goes to the file PROGRESS. Prints how many calls were made, and how
many of them were refused, as JSON.
"""

from __future__ import annotations

import ctypes as c
import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cann_host

POOL = 1 << 21  # bytes of device memory, and of page-locked host memory
SCRATCH = 1 << 16  # bytes that outputs are written to
INTEGERS = (0, 1, 2, 3, -1, -2, 7, 100, 1 << 31, -(1 << 31), (1 << 63) - 1)
SIZES = (0, 1, 4, 4096, POOL, POOL + 1, 1 << 40, (1 << 64) - 1)
TEXTS = (None, b"", b"name", b"a" * 5000, b"Add", b"Slice", b"/no/such/file")
HANDLES = ("aclrtStream", "aclrtEvent", "aclrtContext", "aclmdlRI", "aclrtTaskGrp", "aclrtBinHandle", "aclrtFuncHandle",
           "aclrtDrvMemHandle")  # fmt: skip
OBJECTS = ("aclTensorDesc", "aclDataBuffer", "aclopAttr", "aclTensor", "aclScalar", "aclIntArray", "aclFloatArray",
           "aclBoolArray", "aclTensorList", "aclScalarList")  # fmt: skip
# Lengths of plain memory, which nobody can check.
SHORT = {
    "aclSetTensorConst",
    "aclrtBinaryLoadFromData",
    "aclCreateTensorDesc",
    "aclCreateTensor",
    "aclCreateIntArray",
    "aclCreateFloatArray",
    "aclCreateBoolArray",
    "aclCreateTensorList",
    "aclCreateScalarList",
    "aclGetCompileopt",
    "aclopSetAttrListListInt",
    "aclrtMemcpyBatch",
    "aclrtMemcpyBatchAsync",
    "aclrtHostRegister",
    "aclrtHostRegisterV2",
    "aclmdlRIGetName",
}
# They wait for somebody, by contract; take a list of arguments of any types; or belong to our own adapter.
LEFT_OUT = {"aclrtValueWait", "aclAppLog", "aclrtFreeHost", "aclrtProcessReport"}


def functions() -> list[tuple[str, bool, list[str]]]:
    """(name, whether it returns a pointer, types of parameters)."""
    text = (cann_host.root() / "include" / "cann" / "acl.h").read_text()
    source = re.sub(r"//[^\n]*", "", text)
    found = re.findall(r"^([A-Za-z][\w ]*[ *]+)(\w+)\(([^;{]*)\);", source, re.MULTILINE)
    result = []
    for returned, name, parameters in found:
        if name in LEFT_OUT or name.startswith("cannHost"):
            continue
        types = [re.sub(r"\s+", " ", p).strip() for p in parameters.split(",")]
        result.append((name, "*" in returned, [t for t in types if t not in ("void", "")]))
    return result


class Client:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.acl = c.CDLL(str(cann_host.library()), mode=c.RTLD_GLOBAL)
        self.opapi = c.CDLL(str(cann_host.library("opapi")))
        self.opapi.aclGetRecentErrMsg.restype = c.c_char_p
        assert self.acl.aclrtSetDevice(0) == 0
        self.device, self.host = c.c_void_p(), c.c_void_p()
        assert self.acl.aclrtMalloc(c.byref(self.device), c.c_size_t(POOL), 0) == 0
        assert self.acl.aclrtMallocHost(c.byref(self.host), c.c_size_t(POOL)) == 0
        self.scratch = c.create_string_buffer(SCRATCH)
        self.callback = c.CFUNCTYPE(None, c.c_void_p)(lambda _: None)
        self.kept: list[Any] = []
        self.handles: dict[str, list[int]] = {kind: [] for kind in HANDLES}
        for kind, create in (("aclrtStream", "aclrtCreateStream"), ("aclrtEvent", "aclrtCreateEvent")):
            for _ in range(3):
                handle = c.c_void_p()
                assert getattr(self.acl, create)(c.byref(handle)) == 0
                self.handles[kind].append(handle.value or 0)
        self.makers: dict[str, Callable[[], int]] = {
            "aclTensorDesc": lambda: self.make("aclCreateTensorDesc", 0, 1, (c.c_int64 * 1)(4), 2),
            "aclDataBuffer": lambda: self.make("aclCreateDataBuffer", self.device, c.c_size_t(16)),
            "aclopAttr": lambda: self.make("aclopCreateAttr"),
            "aclIntArray": lambda: self.make("aclCreateIntArray", (c.c_int64 * 2)(1, 2), c.c_uint64(2)),
            "aclFloatArray": lambda: self.make("aclCreateFloatArray", (c.c_float * 2)(1, 2), c.c_uint64(2)),
            "aclBoolArray": lambda: self.make("aclCreateBoolArray", (c.c_bool * 2)(1, 0), c.c_uint64(2)),
            "aclScalar": lambda: self.make("aclCreateScalar", (c.c_int64 * 1)(3), 9),
            "aclTensor": lambda: self.make("aclCreateTensor", (c.c_int64 * 1)(4), c.c_uint64(1), 0, (c.c_int64 * 1)(1),
                                           c.c_int64(0), 2, (c.c_int64 * 1)(4), c.c_uint64(1), self.device),
            "aclTensorList": lambda: self.make("aclCreateTensorList", (c.c_void_p * 1)(self.makers["aclTensor"]()),
                                               c.c_uint64(1)),
            "aclScalarList": lambda: self.make("aclCreateScalarList", (c.c_void_p * 1)(self.makers["aclScalar"]()),
                                               c.c_uint64(1)),
        }  # fmt: skip

    def make(self, create: str, *arguments: Any) -> int:
        function = getattr(self.opapi, create)
        function.restype = c.c_void_p
        return function(*arguments)

    def handle(self, kind: str) -> Any:
        pick = self.random.choice
        others = [h for k in HANDLES for h in self.handles[k]]
        return c.c_void_p(pick((pick(self.handles[kind] or [0]), pick(self.handles[kind] or [0]), None, 1, 0xDEAD,
                                pick(others), self.device.value)))  # fmt: skip

    def memory(self, name: str) -> Any:
        pick = self.random.choice
        if name == "aclrtFree":
            return c.c_void_p(pick((None, 8, self.device.value + 512, self.host.value)))
        places = (None, self.device.value, self.device.value + POOL - 4, self.host.value, self.host.value)
        return c.c_void_p(pick(places))

    def objects(self, kind: str) -> Any:
        made = (c.c_void_p * 4)(*[self.random.choice((None, self.makers[kind]())) for _ in range(4)])
        self.kept.append(made)
        return made

    def argument(self, name: str, declared: str) -> Any:
        """A value for a parameter as the header declares it: `const void* src`."""
        pick = self.random.choice
        kind = re.sub(r"\bconst\b", "", re.sub(r"\w+(\[\])?$", "", declared)).replace(" ", "")
        base, stars = kind.rstrip("*"), kind.count("*") + declared.endswith("[]")
        if base in OBJECTS:
            if stars >= 2:
                return pick((None, self.objects(base)))
            # A null pointer is refused; one that is given away by a destructor is not used again.
            return c.c_void_p(pick((None, self.makers[base]())))
        if base == "char" and stars == 1:
            return c.c_char_p(pick(TEXTS)) if "const" in declared else pick((None, self.scratch))
        if base == "void" and stars == 1:
            return self.memory(name)
        if stars:
            c.memset(self.scratch, pick((0, 0, 1)) if name not in SHORT else 0, 64)
            return pick((None, self.scratch, self.scratch))
        if base in HANDLES:
            return self.handle(base)
        if base in ("aclrtHostFunc", "aclrtCallback"):
            return pick((None, self.callback))
        if base in ("size_t", "uint64_t"):
            return c.c_uint64(pick((0, 1, 2) if name in SHORT else SIZES))
        if base == "float":
            return c.c_float(pick((0.0, -1.0, float("nan"))))
        if base in ("int64_t",):
            return c.c_int64(pick(INTEGERS))
        if base == "int" or name in SHORT:
            return c.c_int(pick((-1, 0, 1, 2, 3)))
        if "timeout" in declared.lower():
            return c.c_int32(pick((0, 1, -5)))
        return c.c_int32(pick(INTEGERS) & 0xFFFFFFFF)

    def call(self, name: str, returns_pointer: bool, parameters: list[str]) -> bool:
        """Whether the call was refused."""
        self.acl.aclrtSetDevice(0)
        self.kept.clear()
        function = getattr(self.opapi, name)
        function.restype = c.c_void_p if returns_pointer else c.c_int
        arguments = [self.argument(name, declared) for declared in parameters]
        code = function(*arguments)
        if name.startswith(("aclrtCreate", "aclmdlRICaptureEnd")) and code == 0:
            kind = next((k for k in HANDLES if k.removeprefix("aclrt") in name), "aclmdlRI")
            self.handles[kind].append(c.c_void_p.from_buffer(self.scratch).value or 0)
        refused = not returns_pointer and code > 100000
        if refused:
            assert self.opapi.aclGetRecentErrMsg(), f"{name} was refused with {code} and no message"
        return refused


def main() -> None:
    seed, calls, progress = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    client, table, refused = Client(seed), functions(), 0
    with progress.open("w") as file:
        for index in range(calls):
            for name, returns_pointer, parameters in table:
                file.seek(0)
                file.write(f"{name} seed {seed} round {index}\n")
                file.truncate()
                file.flush()
                refused += client.call(name, returns_pointer, parameters)
    print(json.dumps({"calls": calls * len(table), "refused": refused}))


if __name__ == "__main__":
    main()
