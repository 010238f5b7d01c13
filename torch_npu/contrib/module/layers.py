"""Layers of common models."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = [
    "BiLSTM",
    "ChannelShuffle",
    "Focus",
    "LabelSmoothingCrossEntropy",
    "Mish",
    "NpuDropPath",
    "SiLU",
    "Swish",
]

# PyTorch's own are as fast.
Mish = nn.Mish
SiLU = nn.SiLU
Swish = nn.SiLU


class NpuDropPath(nn.Module):
    """Stochastic depth: in training each sample (dimension 0) becomes 0 with probability ``drop_prob``.

    The others are divided by ``1 - drop_prob``. Without a probability nothing is dropped.
    """

    def __init__(self, drop_prob: float | None = None) -> None:
        super().__init__()
        self.drop_prob = drop_prob or 0.0
        if not 0 <= self.drop_prob < 1:
            raise ValueError(f"NpuDropPath: expected a probability from 0 to below 1, got {drop_prob}")

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.drop_prob == 0:
            return x
        keep = 1 - self.drop_prob
        kept = torch.rand([x.shape[0]] + [1] * (x.dim() - 1), device=x.device) < keep
        return x / keep * kept


class LabelSmoothingCrossEntropy(nn.Module):
    """Mean cross entropy of logits [N, C] and classes [N], float32; the target has ``1 - smooth_factor``.

    The other ``num_classes - 1`` classes share ``smooth_factor`` (unlike in PyTorch, where all do).
    """

    def __init__(self, num_classes: int = 1000, smooth_factor: float = 0.0) -> None:
        super().__init__()
        self.on_value = 1.0 - smooth_factor
        self.off_value = smooth_factor / (num_classes - 1)

    def forward(self, pred: Tensor, target: Tensor) -> Tensor:
        labels = torch.ops.npu.npu_one_hot(target.int(), -1, pred.shape[1], self.on_value, self.off_value)
        return torch.ops.npu.npu_softmax_cross_entropy_with_logits(pred, labels).mean(dtype=torch.float32)


class BiLSTM(nn.Module):
    """A bidirectional LSTM of one layer for [T, N, input_size], of two LSTMs ``fw_rnn`` and ``bw_rnn``.

    Returns [T, N, 2 * hidden_size].
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.fw_rnn = nn.LSTM(input_size, hidden_size)
        self.bw_rnn = nn.LSTM(input_size, hidden_size)

    def forward(self, inputs: Tensor) -> Tensor:
        forwards, _ = self.fw_rnn(inputs)
        backwards, _ = self.bw_rnn(inputs.flip(0))
        return torch.cat((forwards, backwards.flip(0)), 2)


class ChannelShuffle(nn.Module):
    """``torch.nn.ChannelShuffle`` of the first ``in_channels`` channels of two tensors behind one another.

    Returns the result, or its two parts if ``split_shuffle``.
    """

    def __init__(self, in_channels: int, groups: int = 2, split_shuffle: bool = True) -> None:
        super().__init__()
        self.split_shuffle, self.group_len = split_shuffle, in_channels // groups
        order = torch.arange(in_channels).view(groups, self.group_len).t().flatten()
        self.register_buffer("order", order, persistent=False)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        shuffled = torch.cat((x1, x2), 1).index_select(1, self.get_buffer("order"))
        if not self.split_shuffle:
            return shuffled
        return shuffled[:, : self.group_len], shuffled[:, self.group_len :]


class _Conv(nn.Module):
    """Convolution, batch norm and leaky ReLU."""

    def __init__(self, c1: int, c2: int, k: int, s: int, p: int | None, g: int, act: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, k // 2 if p is None else p, groups=g, bias=False)
        self.bn = nn.BatchNorm2d(c2)
        self.act = nn.LeakyReLU(0.1, inplace=True) if act else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))


class Focus(nn.Module):
    """YOLOv5's first layer: each 2 * 2 pixels as channels, then convolution, batch norm and (act) leaky ReLU.

    Args:
        c1, c2: channels of the input and of the result.
        k, s, p, g: kernel, stride, padding (default: half of the kernel) and groups of the convolution.
    """

    def __init__(
        self, c1: int, c2: int, k: int = 1, s: int = 1, p: int | None = None, g: int = 1, act: bool = True
    ) -> None:
        super().__init__()
        self.conv = _Conv(c1 * 4, c2, k, s, p, g, act)

    def forward(self, x: Tensor) -> Tensor:
        corners = (x[..., i::2, j::2] for j in (0, 1) for i in (0, 1))
        return self.conv(torch.cat(list(corners), 1))
