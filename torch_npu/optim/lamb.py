"""LAMB on lists of tensors: a few foreach operators a step, whatever the number of parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

# The published algorithm's bound on the norm of a parameter (phi in the paper), as the vendor's optimizer has it.
_LARGEST_NORM = 10.0


class NpuFusedLamb(Optimizer):
    """Layer-wise adaptive Adam (LAMB, https://arxiv.org/abs/1904.00962), as torch_npu of the vendor computes it.

    Moments are not corrected for bias. Nothing of a step is read back by the host.

    Args:
        params: parameters, or groups of them. Sparse gradients are refused.
        lr: the learning rate.
        betas: decay of the running means of the gradient and of its square, each in [0, 1).
        eps: added to the root of the mean square.
        weight_decay: added to the step in units of the parameter.
        adam: no scaling by the norms (a trust ratio of 1).
        use_global_grad_norm: divide gradients by their common norm where that is above 1.

    Raises:
        ValueError: for hyperparameters out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0,
        adam: bool = False,
        use_global_grad_norm: bool = False,
    ) -> None:
        if lr < 0 or eps < 0:
            raise ValueError(f"NpuFusedLamb: lr and eps must not be negative; got lr={lr}, eps={eps}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"NpuFusedLamb: betas must lie in [0, 1); got {betas}")
        self.adam = adam
        self.use_global_grad_norm = use_global_grad_norm
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step for the parameters that have gradients; returns what ``closure`` returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        largest = self._global_norm() if self.use_global_grad_norm else None
        for group in self.param_groups:
            for parameters in self._by_dtype(group["params"]):
                self._update(group, parameters, largest)
        return loss

    @staticmethod
    def _by_dtype(parameters: list[Tensor]) -> list[list[Tensor]]:
        """Those with gradients, in lists that foreach operators take at once."""
        lists: dict[Any, list[Tensor]] = defaultdict(list)
        for p in parameters:
            if p.grad is None:
                continue
            if p.grad.is_sparse:
                raise RuntimeError("NpuFusedLamb: sparse gradients are not supported; use torch.optim.SparseAdam")
            lists[p.device, p.dtype].append(p)
        return list(lists.values())

    def _global_norm(self) -> Tensor:
        """The norm of all gradients, or 1 where it is smaller."""
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norms = [n.float() for n in torch._foreach_norm(gradients)]
        return torch.stack(norms).norm().clamp_min(1)

    def _update(self, group: dict[str, Any], parameters: list[Tensor], largest: Tensor | None) -> None:
        gradients: list[Tensor] = [p.grad for p in parameters]  # type: ignore[misc]
        if largest is not None:
            gradients = [g / largest.to(g.dtype) for g in gradients]
        beta1, beta2 = group["betas"]
        means, squares = self._moments(parameters)
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, gradients, alpha=1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        steps = torch._foreach_div(means, roots)
        if group["weight_decay"] != 0:
            torch._foreach_add_(steps, parameters, alpha=group["weight_decay"])
        if not self.adam:
            for step, ratio in zip(steps, self._trust_ratios(parameters, steps), strict=True):
                step.mul_(ratio)
        torch._foreach_add_(parameters, steps, alpha=-group["lr"])

    def _moments(self, parameters: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Running means of the gradients and of their squares; zero at first."""
        for p in parameters:
            state = self.state[p]
            if not state:
                state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
            state["step"] += 1
        states = [self.state[p] for p in parameters]
        return [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]

    @staticmethod
    def _trust_ratios(parameters: list[Tensor], steps: Sequence[Tensor]) -> list[Tensor]:
        """|parameter| / |step| for each, 1 where one of the norms is 0."""
        weights = torch.stack(torch._foreach_norm(parameters)).clamp_max(_LARGEST_NORM)
        lengths = torch.stack(torch._foreach_norm(list(steps)))
        usable = (weights > 0) & (lengths > 0)
        return list(torch.where(usable, weights / lengths, torch.ones_like(weights)).unbind())
