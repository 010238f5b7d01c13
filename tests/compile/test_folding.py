"""Constants of frozen parameters (option ``freezing``): folded once, never stale."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compile_models import Block, Convolutions, Mlp
from tolerance import assert_close, assert_no_worse
from torch import Tensor, nn

import torch_npu
from torchtitan_npu.compile import fallbacks, refold, reports


def frozen(model: nn.Module, **options: Any) -> Any:
    return torch.compile(model, backend="npu", options={"freezing": True, **options}, dynamic=False)


def passes() -> dict[str, int]:
    (report,) = reports()
    return report.passes


class Rotary(nn.Module):
    """Tables and a mask that depend on nothing but a buffer and sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(0, 8, 2) / 8))

    def forward(self, q: Tensor) -> Tensor:
        length = q.shape[-2]
        angles = torch.arange(length, device=q.device)[:, None] * self.frequencies
        cos, sin = (torch.cat((f(angles), f(angles)), -1) for f in (torch.cos, torch.sin))
        mask = torch.full((length, length), float("-inf"), device=q.device).triu(1)
        turned = q * cos + torch.cat((-q[..., 4:], q[..., :4]), -1) * sin
        return ((turned @ turned.transpose(-1, -2)) + mask).softmax(-1)


class Rows(nn.Module):
    """The matrix of a product with one row, as GPT-2 stores it: inputs by outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(24, 40)), nn.Parameter(torch.randn(40))

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(torch.addmm(self.bias, x, self.weight))


@torch.no_grad()
def check(model: nn.Module, *inputs: Tensor, **options: Any) -> nn.Module:
    model = model.eval()
    ours = copy.deepcopy(model).npu()
    compiled = frozen(ours, **options)
    for _ in range(3):
        assert_close(compiled(*(x.npu() for x in inputs)), model(*inputs), terms=256)
    for a, b in zip(model.parameters(), ours.parameters(), strict=True):  # an optimizer's step
        a.mul_(1.5)
        b.mul_(1.5)
    for _ in range(3):
        assert_close(compiled(*(x.npu() for x in inputs)), model(*inputs), terms=256)
    assert not fallbacks()
    return compiled


@pytest.mark.parametrize("sink", [True, False])
def test_batch_norms_become_part_of_convolutions(sink: bool) -> None:
    model = Convolutions()
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.normal_()
            m.running_var.uniform_(0.5, 2)
            nn.init.normal_(m.weight)
            nn.init.normal_(m.bias)
    check(model, torch.randn(2, 3, 8, 8), sink=sink)
    assert passes()["fold_batch_norms"] == passes()["pack_convolutions"] == 2
    kernels = [k.operators for k in reports()[0].kernels]
    assert all("rsqrt" not in name and "sqrt" not in name for k in kernels for name in k)


def test_buffers_that_change_are_seen() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).eval()
    ours = copy.deepcopy(model).npu()
    compiled, x = frozen(ours), torch.randn(2, 2, 6, 6)
    with torch.no_grad():
        for step in range(4):
            assert_close(compiled(x.npu()), model(x), terms=64)
            for m in (model, ours):
                m[1].running_mean.add_(step)
    ours[1].running_var = torch.full((3,), 9.0).npu()
    model[1].running_var = torch.full((3,), 9.0)
    with torch.no_grad():
        assert_close(compiled(x.npu()), model(x), terms=64)


def test_tables_and_masks() -> None:
    check(Rotary(), torch.randn(2, 5, 8))
    assert passes()["fold_constants"] >= 3
    assert not any("cos" in name or "sin" in name for k in reports()[0].kernels for name in k.operators)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrices_of_one_row_are_turned(dtype: torch.dtype) -> None:
    model = Rows().to(dtype)
    x = torch.randn(1, 24, dtype=dtype)
    with torch.no_grad():
        assert_close(frozen(copy.deepcopy(model).npu())(x.npu()), model.double()(x.double()), terms=64)
    assert passes()["lay_out_columns"] == 1
    assert not reports()[0].unfused


@pytest.mark.parametrize("model", [Mlp, Block])
def test_models(model: type[nn.Module]) -> None:
    check(model(), torch.randn(3, 5, 24) if model is Mlp else torch.randn(2, 7, 32))


class Patches(nn.Module):
    """Results of convolutions that are viewed, returned, added twice and read by other operators."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 2, 2), nn.Conv2d(8, 8, 3, padding=1, groups=4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.first(x)
        z = self.second(y) + y
        rows = y.flatten(2).transpose(1, 2)
        return rows.softmax(-1), z, z.relu() + F.avg_pool2d(z, 1), torch.cat((y, z), 1).flatten(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("sink", [True, False])
@torch.no_grad()
def test_convolutions_are_packed(sink: bool, layout: torch.memory_format, dtype: torch.dtype) -> None:
    model = Patches().eval().to(dtype=dtype, memory_format=layout)
    x = torch.randn(2, 3, 8, 12).to(dtype=dtype, memory_format=layout)
    compiled = frozen(copy.deepcopy(model).npu(), sink=sink)
    plain = model(x)
    exact = model.double()(x.double())
    for _ in range(3):
        for actual, on_cpu, reference in zip(compiled(x.npu()), plain, exact, strict=True):
            assert_no_worse(actual.cpu(), on_cpu, reference)
            assert actual.is_contiguous()
    assert passes()["pack_convolutions"] == 2
    assert not fallbacks()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_norms_of_half_precision_are_folded(dtype: torch.dtype) -> None:
    """They are computed in float32, so that casts stand in between."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8)
    )
    for m in (model[1], model[4]):
        m.running_mean.normal_()
        m.running_var.uniform_(0.5, 2)
    model = model.eval().to(dtype)
    x = torch.randn(2, 3, 9, 9).to(dtype)
    actual, exact = frozen(copy.deepcopy(model).npu())(x.npu()).cpu().double(), model.double()(x.double())
    # Folding rounds the scaled weights, too: one unit of each term, of which 27 and 8 are summed.
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(actual, exact, rtol=4 * unit, atol=4 * unit * float(exact.abs().max()))
    assert passes()["fold_batch_norms"] == passes()["pack_convolutions"] == 2


@pytest.mark.parametrize("name", ["fold_batch_norms", "pack_convolutions", "fold_constants"])
def test_passes_can_be_switched_off(name: str) -> None:
    check(Convolutions(), torch.randn(2, 3, 8, 8), passes={name: False})
    assert not passes().get(name)


def test_writes_without_a_version() -> None:
    """Through ``.data`` nobody sees them: ``refold()`` tells."""
    ours = Rows().npu()
    compiled, x = frozen(ours), torch.randn(1, 24)
    with torch.no_grad():
        compiled(x.npu())
        ours.weight.data.mul_(2)
        refold()
        assert_close(compiled(x.npu()), copy.deepcopy(ours).cpu()(x), terms=64)


def test_parameters_of_inference_mode_are_never_trusted() -> None:
    with torch.inference_mode():
        ours = Rows().npu()
        compiled, x = frozen(ours), torch.randn(1, 24)
        for step in range(3):
            assert_close(compiled(x.npu()), F.gelu(torch.addmm(ours.bias.cpu(), x, ours.weight.cpu())), terms=64)
            ours.weight.mul_(1 + step)


def test_a_graph_around_it_sees_later_weights() -> None:
    ours = Rows().npu()
    compiled, static = frozen(ours), torch.randn(1, 24).npu()
    graph = torch.npu.NPUGraph()
    with torch.no_grad():
        compiled(static)
        with torch.npu.graph(graph):
            y = compiled(static)
        ours.weight.mul_(3)
        graph.replay()
        assert_close(y, copy.deepcopy(ours).cpu()(static.cpu()), terms=64)


@torch.no_grad()
def test_enable_graph_around_it_reads_constants_and_notices_writes() -> None:
    ours = Rows().npu()
    compiled, x = frozen(ours), torch.randn(1, 24).npu()

    def step() -> Tensor:
        with torch_npu.enable_graph():
            return compiled(x)

    for change in (lambda: None, lambda: ours.weight.mul_(3), lambda: ours.bias.add_(1)):
        change()
        for _ in range(3):
            assert_close(step(), copy.deepcopy(ours).cpu()(x.cpu()), terms=64)
    (entry,) = [e for e in torch_npu.graph_report() if e.module == "OptimizedModule"]
    assert entry.nodes == 1  # the product; neither the weight's transpose nor its copy
    ours.weight.data.mul_(2)
    refold()
    assert_close(step(), copy.deepcopy(ours).cpu()(x.cpu()), terms=64)


def test_training_is_not_frozen() -> None:
    frozen(Mlp().npu())(torch.randn(3, 24).npu()).sum().backward()
    assert not any("fold_constants" in r.passes for r in reports())
