"""The public calls: patterns by name, kernels for the host and for Ascend, refusals."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import graph_autofusion
from graph_autofusion import F32, FusedKernel, Stride, TileBuilder, detect_fusion_pattern, jit_compile


@pytest.mark.parametrize(
    ("text", "anchor", "fused"),
    [
        ("Conv2d -> GELU -> Add", "convolution", ("gelu", "add")),
        ("Linear->SiLU", "linear", ("silu",)),
        ("add -> Mul -> softmax", "", ("add", "mul", "softmax")),
    ],
)
def test_pattern_by_name(text: str, anchor: str, fused: tuple[str, ...]) -> None:
    pattern = detect_fusion_pattern(text)
    assert (pattern.anchor, pattern.fused) == (anchor, fused)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Conv2d", "names nothing to fuse"),
        ("", "names nothing to fuse"),
        ("GELU -> Conv2d", "conv2d is a matrix operator, which only the first can be"),
        ("GELU -> Magic", "unknown operator 'magic'; known are abs, add"),
    ],
)
def test_pattern_refusals(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        detect_fusion_pattern(text)


def test_unknown_source() -> None:
    with pytest.raises(TypeError, match="no fusion pattern can be found in a int"):
        detect_fusion_pattern(5)


def test_host_kernel_of_a_pattern() -> None:
    kernel = jit_compile(detect_fusion_pattern("GELU -> Add -> Softmax"), backend="host", target="host")
    x, y = torch.randn(5, 33), torch.randn(33)
    torch.testing.assert_close(kernel(x, y), torch.softmax(F.gelu(x) + y, -1))
    assert 'extern "C" void pattern_gelu_add_softmax' in kernel.source
    assert "TROWMAX" in kernel.report()


def test_host_kernel_refuses_what_does_not_fit() -> None:
    kernel = jit_compile(detect_fusion_pattern("GELU -> Add"))
    x = torch.randn(4, 6)
    with pytest.raises(ValueError, match="takes 2 tensors"):
        kernel(x)
    with pytest.raises(ValueError, match=r"takes float32, not torch\.float64"):
        kernel(x, x.double())
    with pytest.raises(ValueError, match="takes a contiguous tensor, not strides"):
        kernel(x, torch.randn(6, 4).t())
    with pytest.raises(ValueError, match=r"shape \(4,\) is neither \(4, 6\) nor \(6,\)"):
        kernel(x, torch.randn(4))


def test_own_kernel() -> None:
    t = TileBuilder("row_range", axes=("row",), reduced=("col",))
    x = t.load("x", F32)
    t.store("out", x.max() - x.min(), F32)
    x = torch.randn(7, 40)
    torch.testing.assert_close(jit_compile(t.build())(x), x.amax(-1) - x.amin(-1))


ASCEND = ["Ascend C", "PTO", "MLIR"]


@pytest.mark.parametrize("backend", ASCEND)
def test_ascend_source(backend: str) -> None:
    """Structure only: each input is loaded once, the output stored once, and the arithmetic is there."""
    kernel = jit_compile(detect_fusion_pattern("Conv2d -> GELU -> Add"), backend=backend, target="Ascend 910")
    words = {
        "Ascend C": [r"DataCopyPad\(loaded\d", r"DataCopyPad\(out_gm", r"Erf\(", r"Add\("],
        "PTO": [r"TLOAD\(", r"TSTORE\(", r"TERF\(", r"TADD\("],
        "MLIR": [r"memref\.copy", r"materialize_in_destination", r"math\.erf", r"arith\.addf"],
    }[backend]
    counts = [len(re.findall(word, kernel.source)) for word in words]
    assert counts[:2] == [2, 1]
    assert all(counts[2:])
    assert kernel.source.count("{") == kernel.source.count("}")
    with pytest.raises(RuntimeError, match="running it needs an NPU"):
        kernel(torch.ones(3), torch.ones(3))


@pytest.mark.parametrize("backend", ASCEND)
def test_ascend_reductions_are_per_row(backend: str) -> None:
    source = jit_compile(detect_fusion_pattern("Softmax"), backend=backend, target="Ascend910B3").source
    words = {"Ascend C": "ReduceMax", "PTO": "TROWMAX", "MLIR": "linalg.reduce {arith.maximumf}"}
    assert source.count(words[backend]) == 1


def test_mlir_values_are_defined_before_use() -> None:
    source = jit_compile(detect_fusion_pattern("Add -> Softmax"), backend="MLIR", target="Ascend910B3").source
    defined = {"%lock", "%workspace", *re.findall(r"(%\w+): (?:memref|i32)", source)}
    for line in source.splitlines():
        left, equals, right = line.partition(" = ")
        for name in re.findall(r"%\w+", right if equals and left.strip().startswith("%") else line):
            loop = line.strip().startswith("scf.for") and name == "%i"
            assert name in defined or loop or "func.func" in line or "memref<?x" in line, line
        defined.update(re.findall(r"^\s*(%\w+) =", line))
        if "scf.for" in line:
            defined.add("%i")


def test_ascend_printers_say_what_they_have_not() -> None:
    t = TileBuilder("strange")
    t.store("out", t.load("x", F32).apply("lgamma"), F32)
    with pytest.raises(ValueError, match="the MLIR printer has no lgamma"):
        jit_compile(t.build(), backend="MLIR", target="Ascend910B3")
    t = TileBuilder("one_axis", axes=("a",))
    t.store("out", t.load("x", F32, (Stride.ONE,)), F32, (Stride.ONE,))
    with pytest.raises(ValueError, match="takes programs of rows and columns"):
        jit_compile(t.build(), backend="PTO", target="Ascend910B3")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "CUDA"}, "backend='CUDA': expected 'host', 'Ascend C', 'PTO' or 'MLIR'"),
        ({"backend": "host", "target": "Ascend 910"}, "target='Ascend 910' for backend 'host'"),
        ({"backend": "Ascend C", "target": "H100"}, "expected an Ascend product"),
    ],
)
def test_refusals(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jit_compile(detect_fusion_pattern("GELU"), **arguments)


def test_register_needs_a_pattern() -> None:
    t = TileBuilder("own")
    t.store("out", t.load("x", F32), F32)
    kernel: FusedKernel = jit_compile(t.build(), backend="PTO", target="Ascend910B3")
    with pytest.raises(ValueError, match="has no pattern"):
        graph_autofusion.register_fused_kernel(kernel)
