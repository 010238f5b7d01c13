"""Fused optimizers under the names that programs for Ascend import: PyTorch's own, with ``fused=True``, and LAMB."""

from typing import Any

import torch

from torch_npu.optim.lamb import NpuFusedLamb

__all__ = ["NpuFusedAdam", "NpuFusedAdamW", "NpuFusedLamb", "NpuFusedSGD"]


class NpuFusedAdam(torch.optim.Adam):
    """:class:`torch.optim.Adam` whose step is one operator for all parameters."""

    def __init__(self, params: Any, lr: float = 1e-3, **options: Any) -> None:
        super().__init__(params, lr, fused=True, **options)


class NpuFusedAdamW(torch.optim.AdamW):
    """:class:`torch.optim.AdamW` whose step is one operator for all parameters."""

    def __init__(self, params: Any, lr: float = 1e-3, **options: Any) -> None:
        super().__init__(params, lr, fused=True, **options)


class NpuFusedSGD(torch.optim.SGD):
    """:class:`torch.optim.SGD` whose step is one operator for all parameters."""

    def __init__(self, params: Any, lr: float = 1e-3, **options: Any) -> None:
        super().__init__(params, lr, fused=True, **options)
