"""Every operator that PyTorch describes in its OpInfo database, on npu against the CPU.

One test is one operator and dtype; ``aspects.py`` says what is compared. A failure names the aspects and the
command that runs the case again. ``known_failures.py`` lists what is known to differ.
"""

from __future__ import annotations

import os
import sys

import pytest
import torch
from aspects import failures
from known_failures import KNOWN_FAILURES, known_aspects
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

import torch_npu

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64)

# In float64 npu has few kernels of its own: these show that it is not computed, or returned, in another dtype.
FLOAT64 = [
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "exp",
    "log",
    "sqrt",
    "sigmoid",
    "tanh",
    "erf",
    "sum",
    "mean",
    "var",
    "std",
    "amax",
    "cumsum",
    "mm",
    "bmm",
    "addmm",
    "matmul",
    "einsum",
    "softmax",
    "log_softmax",
    "layer_norm",
    "batch_norm",
    "nn.functional.linear",
    "nn.functional.conv2d",
    "nn.functional.gelu",
    "where",
    "clamp",
    "index_select",
    "gather",
    "scatter_add",
    "cat",
    "sort",
    "topk",
    "linalg.svd",
    "linalg.solve",
    "fft.fft",
]

# A minute's worth: one of each family.
QUICK = [
    "add",
    "mul",
    "div",
    "exp",
    "sigmoid",
    "sum",
    "mean",
    "amax",
    "cumsum",
    "mm",
    "bmm",
    "addmm",
    "matmul",
    "softmax",
    "where",
    "clamp",
    "index_select",
    "gather",
    "scatter_add",
    "index_put",
    "cat",
    "sort",
    "topk",
    "transpose",
    "view",
    "as_strided",
    "expand",
    "unbind",
    "nn.functional.linear",
    "nn.functional.conv2d",
    "nn.functional.gelu",
    "nn.functional.layer_norm",
    "nn.functional.batch_norm",
    "nn.functional.embedding",
    "nn.functional.max_pool2d",
    "nn.functional.cross_entropy",
    "nn.functional.dropout",
]


def name_of(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def cases() -> list[object]:
    """pytest parameters; all but a few are marked slow."""
    result = []
    for op in op_db:
        name = name_of(op)
        wanted = DTYPES if op.name not in FLOAT64 else (*DTYPES, torch.float64)
        for dtype in (d for d in wanted if d in op.dtypes):
            quick = name in QUICK and dtype in (torch.float32, torch.bfloat16)
            marks = () if quick else pytest.mark.slow
            result.append(pytest.param(op, dtype, id=f"{name}-{dtype_name(dtype)}", marks=marks))
    return result


@pytest.mark.parametrize(("op", "dtype"), cases())
def test_op(op: OpInfo, dtype: torch.dtype, request: pytest.FixtureRequest) -> None:
    torch_npu.clear_fallback_report()
    found = failures(op, dtype)
    known = known_aspects(name_of(op), dtype_name(dtype))
    unexpected = {a: message for a, message in found.items() if a not in known}
    vanished = [a for a in known if a not in found]
    summary = {
        "known": bool(known),
        "native": not torch_npu.fallback_report(),
        "passed": not unexpected and not vanished,
    }
    request.node.user_properties.append(("opinfo", summary))
    file = os.path.relpath(__file__)
    rerun = f"\nrerun: {sys.executable} -m pytest '{file}::{request.node.name}'"
    assert not unexpected, "\n".join(f"{a}: {message}" for a, message in unexpected.items()) + rerun
    assert not vanished, f"known to fail, but passed: {vanished}; remove it from known_failures.py{rerun}"


def test_known_failures_name_existing_cases() -> None:
    existing = {name_of(op) for op in op_db}
    assert [k.op for k in KNOWN_FAILURES if k.op not in existing] == []
