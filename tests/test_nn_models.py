"""Whole models, small: inference and training steps on npu equal the CPU's, and nothing falls back."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_npu

transformers = pytest.importorskip("transformers")


class Bottleneck(nn.Module):
    """ResNet-50's block."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width * 4, 1, bias=False), nn.BatchNorm2d(width * 4),
        )  # fmt: skip
        self.short = nn.Sequential(nn.Conv2d(channels, width * 4, 1, stride, bias=False), nn.BatchNorm2d(width * 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.main(x) + self.short(x), inplace=True)


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
        Bottleneck(16, 8, 1), Bottleneck(32, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 12)
        self.layers = kind(12, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(tokens))[0][:, -1])


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8,
        num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, num_labels=10,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, num_labels=10, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForSequenceClassification(config)


def images() -> torch.Tensor:
    return torch.randn(4, 3, 32, 32)


def tokens() -> torch.Tensor:
    return torch.randint(1, 50, (4, 12))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "resnet": (resnet, images),
    "vit": (vit, images),
    "bert": (bert, tokens),
    "llama": (llama, tokens),
    "lstm": (lambda: Recurrent(nn.LSTM), tokens),
    "gru": (lambda: Recurrent(nn.GRU), tokens),
}


def logits(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out = model(x)
    return out if isinstance(out, torch.Tensor) else out.logits


def assert_nothing_fell_back() -> None:
    report = torch_npu.fallback_report()
    assert not report, str(report)


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str) -> None:
    torch.manual_seed(0)
    make, data = MODELS[name]
    cpu = make().eval()
    npu = copy.deepcopy(cpu).to("npu")
    x, target = data(), torch.randint(0, 10, (4,))
    npu_x, npu_target = x.to("npu"), target.to("npu")
    torch_npu.clear_fallback_report()
    with torch.no_grad():
        torch.testing.assert_close(logits(npu, npu_x).cpu(), logits(cpu, x), rtol=1e-4, atol=1e-5)

    optimizers = [torch.optim.AdamW(m.train().parameters(), lr=1e-3, fused=True) for m in (cpu, npu)]
    # AdamW steps by lr in the direction of a gradient however small, so that the second step's gradients are of weights
    # that differ where the first one's were rounding errors.
    for atol in (1e-5, 1e-4):
        losses = [F.cross_entropy(logits(m, a), t) for m, a, t in ((cpu, x, target), (npu, npu_x, npu_target))]
        torch.testing.assert_close(losses[1].detach().cpu(), losses[0].detach(), rtol=1e-4, atol=1e-5)
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for (key, p), n in zip(cpu.named_parameters(), npu.parameters(), strict=True):
            torch.testing.assert_close(n.grad.cpu(), p.grad, rtol=1e-3, atol=atol, msg=lambda m, key=key: f"{key}: {m}")
    assert_nothing_fell_back()


def test_resnet_channels_last() -> None:
    torch.manual_seed(0)
    cpu = resnet().to(memory_format=torch.channels_last).eval()
    npu = copy.deepcopy(cpu).to("npu")
    x = images().to(memory_format=torch.channels_last)
    with torch.no_grad():
        features = npu[:6](x.to("npu"))
        assert features.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(npu(x.to("npu")).cpu(), cpu(x), rtol=1e-4, atol=1e-5)
