"""npu_apply_adam_w as programs call it: results by ``out=``, which PyTorch's operators take one by one."""

from __future__ import annotations

import torch
from torch import Tensor


def npu_apply_adam_w(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    max_grad_norm: Tensor | None,
    amsgrad: bool | None,
    maximize: bool | None,
    *,
    out: tuple[Tensor, Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of AdamW for one parameter (docs/npu_operators.md).

    Args:
        out: the parameter and the running means of its gradient and of the gradient's square; all are written.

    Returns:
        ``out``.
    """
    var, m, v = out
    powers = (float(beta1_power), float(beta2_power))
    options = (float(lr), float(weight_decay), float(beta1), float(beta2), float(epsilon))
    return torch.ops.npu.npu_apply_adam_w.out(
        *powers, *options, grad, max_grad_norm, amsgrad, maximize, var=var, m=m, v=v
    )
