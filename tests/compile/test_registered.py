"""Kernels that users register, in compiled graphs; patterns found in torch's programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_close
from torch import Tensor, nn

import graph_autofusion
from torchtitan_npu.compile import reports
from torchtitan_npu.compile.registered import trace


@pytest.fixture
def conv_gelu_add() -> Iterator[graph_autofusion.FusedKernel]:
    pattern = graph_autofusion.detect_fusion_pattern("Conv2d -> GELU -> Add")
    kernel = graph_autofusion.jit_compile(pattern, backend="Ascend C", target="Ascend 910")
    graph_autofusion.register_fused_kernel(kernel)
    yield kernel
    graph_autofusion.unregister_fused_kernel(kernel)


@pytest.mark.usefixtures("conv_gelu_add")
def test_compiled_graph_uses_the_kernel() -> None:
    conv = nn.Conv2d(3, 4, 3, padding=1)
    x, y = torch.randn(2, 3, 6, 7), torch.randn(2, 4, 6, 7)
    ours = nn.Conv2d(3, 4, 3, padding=1).npu()
    ours.load_state_dict(conv.state_dict())
    with torch.no_grad():
        actual = torch.compile(lambda x, y: F.gelu(ours(x)) + y, backend="npu")(x.npu(), y.npu())
        assert_close(actual, F.gelu(conv(x)) + y, terms=27)
    (report,) = reports()
    assert report.passes["use_registered_kernels"] == 1
    assert [k.name for k in report.kernels] == ["registered conv2d -> gelu -> add"]


@pytest.mark.usefixtures("conv_gelu_add")
def test_other_graphs_do_not() -> None:
    x, y = torch.randn(2, 8, 8)
    torch.compile(lambda x, y: F.gelu(x) + y, backend="npu")(x.npu(), y.npu())  # no convolution
    torch.compile(lambda x, y: F.gelu(F.conv1d(x[None], y[None, :, :3])).sub(1), backend="npu")(x.npu(), y.npu())
    assert [r.passes["use_registered_kernels"] for r in reports()] == [0, 0]


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(F.silu(self.linear(x)) + x)


def test_pattern_of_a_model_and_of_a_graph() -> None:
    x = torch.randn(5, 16)
    pattern = graph_autofusion.detect_fusion_pattern(Norm().eval(), x)
    assert pattern.operators[:3] == ("silu", "add", "mean")
    assert graph_autofusion.detect_fusion_pattern(trace(Norm().eval(), x)) == pattern


def test_pattern_of_a_function_runs() -> None:
    x, y = torch.randn(2, 5, 16)
    pattern = graph_autofusion.detect_fusion_pattern(lambda x, y: torch.softmax(x * y, -1), x, y)
    torch.testing.assert_close(graph_autofusion.jit_compile(pattern)(x, y), torch.softmax(x * y, -1))


def test_nothing_to_fuse() -> None:
    with pytest.raises(ValueError, match="can be fused"):
        graph_autofusion.detect_fusion_pattern(lambda x: x @ x, torch.randn(4, 4))
