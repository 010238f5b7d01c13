"""torchtitan_npu.optimize on modules of several shapes and on models of transformers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torch_npu
from torchtitan_npu.fused import optimize


class RMSNorm(nn.Module):
    """As many models write it; ``offset`` 1 is Gemma's."""

    def __init__(self, size: int, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size))
        self.eps = 1e-5
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (normal * (self.offset + self.weight.float())).to(x.dtype)


class NoRMSNorm(RMSNorm):
    """The name and the parts of one, but another function."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh()


class GatedMLP(nn.Module):
    def __init__(self, size: int, hidden: int, activation: nn.Module, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, hidden, bias=bias)
        self.up_proj = nn.Linear(size, hidden, bias=bias)
        self.down_proj = nn.Linear(hidden, size, bias=bias)
        self.act = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = RMSNorm(16)
        self.gemma = RMSNorm(16, offset=1.0)
        self.odd = NoRMSNorm(16)
        self.silu = GatedMLP(16, 24, nn.SiLU())
        self.tanh = GatedMLP(16, 24, nn.GELU(approximate="tanh"))
        self.biased = GatedMLP(16, 24, nn.SiLU(), bias=True)
        self.dense = nn.Sequential(nn.Linear(16, 16), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = x + layer(x)
        return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_swaps_what_agrees_and_says_why_not(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Block().to("npu", dtype).eval()
    x = torch.randn(3, 7, 16).to("npu", dtype)
    with torch.no_grad():
        expected = model(x)
        report = optimize(model)
        outcome = {(s.module, s.converter): s for s in report.swaps}
        swapped = {name for (name, _), s in outcome.items() if s.kept}
        assert swapped == {"norm", "gemma", "silu", "tanh", "dense"}
        assert "results differ by" in outcome["odd", "rms_norm"].reason
        assert "biases" in outcome["biased", "gated_mlp"].reason
        torch_npu.clear_native_calls()
        actual = model(x)
        calls = torch_npu.native_calls()
        assert {"aclnnRmsNorm", "aclnnGemmaRmsNorm", "aclnnSwiGlu", "aclnnGeGluV3", "aclnnFusedMatmul"} <= set(calls)
        tolerance = 1e-5 if dtype is torch.float32 else 0.1  # seven blocks, each rounded
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
        report.undo()
        torch.testing.assert_close(model(x), expected, rtol=0, atol=0)
    assert "odd" in str(report)


def test_weights_stay_loadable_and_trainable() -> None:
    torch.manual_seed(0)
    model, other = Block().npu(), Block().npu()
    report = optimize(model)
    assert report.swaps
    assert model.state_dict().keys() == other.state_dict().keys()
    model.load_state_dict(other.state_dict())
    x = torch.randn(3, 16).npu()
    torch.testing.assert_close(model(x), other(x), rtol=1e-5, atol=1e-5)
    model(x).square().sum().backward()
    other(x).square().sum().backward()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def test_models_elsewhere_are_left_alone() -> None:
    report = optimize(Block())
    assert not any(s.kept for s in report.swaps)
    assert "on cpu" in str(report)


def test_unknown_converters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no converters \['layer_norm'\]; known: rms_norm"):
        optimize(Block(), converters=["layer_norm"])


class Residual(nn.Module):
    """torchvision's bottleneck, by the names and the order of its parts."""

    def __init__(self, channels: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, width * 4, 1), nn.BatchNorm2d(width * 4)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(nn.Conv2d(channels, width * 4, 1, stride), nn.BatchNorm2d(width * 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class Misleading(nn.Module):
    """A norm that is registered behind a convolution, but stands before it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(32, 32, 1), nn.BatchNorm2d(32)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.norm(x))


def with_statistics(model: nn.Module) -> nn.Module:
    """Running statistics as after training, in evaluation mode."""
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.normal_(m.running_mean, std=0.1)
            nn.init.uniform_(m.running_var, 0.5, 1.5)
            nn.init.uniform_(m.weight, 0.5, 1.5)
    return model.eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_batch_norm_goes_into_convolutions(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    model = with_statistics(nn.Sequential(stem, Residual(8, 8), Residual(32, 8, 2), nn.AvgPool2d(1), Misleading()))
    model = model.to("npu", dtype)
    x = torch.randn(2, 3, 20, 20).to("npu", dtype)
    tolerance = 1e-4 if dtype is torch.float32 else 0.1
    with torch.no_grad():
        expected = model(x)
        report = optimize(model)
        outcome = {s.module: s for s in report.swaps}
        # Each with what follows it, and the shortcuts inside their blocks; Misleading's norm is behind no convolution.
        assert set(outcome) == {"0", "1", "2"}
        assert all(s.kept for s in report.swaps)
        torch_npu.clear_native_calls()
        torch.testing.assert_close(model(x), expected, rtol=tolerance, atol=tolerance)
        calls = torch_npu.native_calls()
        assert calls["aclnnFusedConvolution"] == 9
        assert calls["aclnnBatchNorm"] == 1  # that of Misleading
        assert not any("Relu" in name for name in calls)
        model[0][1].weight.mul_(2)  # weights stay live
        changed = model(x)
        report.undo()
        torch.testing.assert_close(changed, model(x), rtol=tolerance, atol=tolerance)
        assert torch_npu.native_calls()["aclnnBatchNorm"] > 8


def test_graphs_follow_folded_weights() -> None:
    torch.manual_seed(0)
    model = with_statistics(Residual(8, 8)).npu()
    x = torch.randn(1, 8, 6, 6).npu()
    with torch.no_grad():
        report = optimize(model)
        assert [s.kept for s in report.swaps] == [True]
        with torch_npu.enable_graph(strict=True):
            for _ in range(3):
                before = model(x)
            model.bn2.weight.mul_(3)
            model.conv1.weight.add_(0.1)
            after = [model(x) for _ in range(3)]
        report.undo()
        expected = model(x)
    assert not torch.allclose(before, expected, rtol=1e-3)
    for y in after:
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)


class Broadcasting(nn.Module):
    """A residual that is broadcast, one that is written to, and a sum that is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv(x)) + x.mean((2, 3), keepdim=True)
        z = self.bn2(self.conv2(y))
        y += z
        return (z + y).relu() + y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_sums_stay_what_they_are(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = with_statistics(Broadcasting()).to("npu", dtype)
    x = torch.randn(2, 4, 5, 7).to("npu", dtype)
    with torch.no_grad():
        expected = model(x)
        report = optimize(model)
        assert [s.kept for s in report.swaps] == [True]
        tolerance = 1e-4 if dtype is torch.float32 else 0.1
        for size in (x, x[:1], x):  # weights are packed again for each
            torch.testing.assert_close(model(size), expected[: len(size)], rtol=tolerance, atol=tolerance)


def test_training_goes_on_with_batch_norm() -> None:
    torch.manual_seed(0)
    model = with_statistics(Residual(8, 8)).npu()
    twin = with_statistics(Residual(8, 8)).npu()
    twin.load_state_dict(model.state_dict())
    assert "training mode" in optimize(model.train()).swaps[0].reason
    optimize(model.eval())
    x = torch.randn(2, 8, 6, 6).npu()
    for m in (model.train(), twin.train()):
        m(x).sum().backward()
    assert torch.equal(model.bn1.running_mean, twin.bn1.running_mean)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-5)


def test_resnet_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    model = with_statistics(transformers.ResNetModel(config)).npu()
    x = torch.randn(1, 3, 32, 32).npu()
    with torch.no_grad():
        expected = model(x).last_hidden_state
        report = optimize(model)
        assert {s.converter for s in report.swaps if s.kept} == {"conv_batch_norm"}
        torch.testing.assert_close(model(x).last_hidden_state, expected, rtol=1e-4, atol=1e-4)
