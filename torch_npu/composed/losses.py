"""Losses."""

from __future__ import annotations

from torch import Tensor

from torch_npu.composed.registry import composed, refuse, wide


def _check(operator: str, logits: Tensor, labels: Tensor) -> None:
    if logits.dim() != 2 or logits.shape != labels.shape:
        refuse(operator, "logits and labels of one shape [N, C]", [list(logits.shape), list(labels.shape)])


@composed("npu_softmax_cross_entropy_with_logits(Tensor self, Tensor labels) -> Tensor")
def softmax_cross_entropy_with_logits(self: Tensor, labels: Tensor) -> Tensor:
    """-sum(labels * log_softmax(self)) of each row of [N, C]."""
    _check("npu_softmax_cross_entropy_with_logits", self, labels)
    return -(wide(labels) * wide(self).log_softmax(1)).sum(1).to(self.dtype)


@composed("npu_softmax_cross_entropy_with_logits_backward(Tensor grad, Tensor self, Tensor labels) -> Tensor")
def softmax_cross_entropy_with_logits_backward(grad: Tensor, self: Tensor, labels: Tensor) -> Tensor:
    """Gradient of npu_softmax_cross_entropy_with_logits by self; grad is [N]."""
    name = "npu_softmax_cross_entropy_with_logits_backward"
    _check(name, self, labels)
    if grad.shape != self.shape[:1]:
        refuse(name, f"grad of shape [{self.shape[0]}]", list(grad.shape))
    target = wide(labels)
    slope = wide(self).softmax(1) * target.sum(1, keepdim=True) - target
    return (wide(grad).unsqueeze(1) * slope).to(self.dtype)
