"""Steps of optimizers for one parameter."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse, wide

__all__ = ["npu_apply_adam", "npu_bert_apply_adam"]

State = tuple[Tensor, Tensor, Tensor]


def _check(operator: str, grad: Tensor, state: State) -> None:
    seen = {name: (list(t.shape), t.dtype) for name, t in zip(("grad", "var", "m", "v"), (grad, *state), strict=True)}
    if any(entry != seen["var"] for entry in seen.values()):
        refuse(operator, "grad, var, m and v of one shape and dtype", seen)


def _moments(state: State, grad: Tensor, beta1: float, beta2: float) -> tuple[Tensor, Tensor]:
    _, m, v = state
    return wide(m) + (1 - beta1) * (grad - wide(m)), wide(v) + (1 - beta2) * (grad.square() - wide(v))


@composed(
    "npu_apply_adam.out(Scalar beta1_power, Scalar beta2_power, Scalar lr, Scalar beta1, Scalar beta2, "
    "Scalar epsilon, Tensor grad, bool? use_locking, bool? use_nesterov, *, Tensor(a!) var, Tensor(b!) m, "
    "Tensor(c!) v) -> (Tensor(a!), Tensor(b!), Tensor(c!))"
)
def _apply_adam(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    use_locking: bool | None,
    use_nesterov: bool | None,
    *,
    var: Tensor,
    m: Tensor,
    v: Tensor,
) -> State:
    """One step of Adam in place; the powers are those of the betas up to this step. use_locking has no effect."""
    state = (var, m, v)
    _check("npu_apply_adam", grad, state)
    slope = wide(grad)
    mean, square = _moments(state, slope, beta1, beta2)
    towards = mean * beta1 + (1 - beta1) * slope if use_nesterov else mean
    # Powers of 1 give infinite or undefined steps, as a division of tensors does and one of Python's numbers does not.
    change = towards * (lr * math.sqrt(1 - beta2_power)) / (1 - beta1_power)
    var.copy_(wide(var) - change / (epsilon + square.sqrt()))
    return var, m.copy_(mean), v.copy_(square)


def npu_apply_adam(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    use_locking: bool | None,
    use_nesterov: bool | None,
    *,
    out: State,
) -> State:
    """One step of Adam for one parameter.

    Args:
        beta1_power, beta2_power: powers of the betas up to this step.
        use_locking: has no effect.
        use_nesterov: steps by the mean that the next step would have if its gradient were the same.
        out: the parameter and the running means of its gradient and of the gradient's square; all are written.

    Returns:
        ``out``.
    """
    var, m, v = out
    numbers = (beta1_power, beta2_power, lr, beta1, beta2, epsilon)
    return torch.ops.npu.npu_apply_adam.out(*numbers, grad, use_locking, use_nesterov, var=var, m=m, v=v)


@composed(
    "npu_bert_apply_adam.out(Scalar lr, Scalar beta1, Scalar beta2, Scalar epsilon, Tensor grad, "
    "Scalar max_grad_norm, Scalar global_grad_norm, Scalar weight_decay, Scalar? step_size=None, int adam_mode=0, *, "
    "Tensor(a!) var, Tensor(b!) m, Tensor(c!) v) -> (Tensor(a!), Tensor(b!), Tensor(c!))"
)
def _bert_apply_adam(
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    max_grad_norm: float,
    global_grad_norm: float,
    weight_decay: float,
    step_size: float | None = None,
    adam_mode: int = 0,
    *,
    var: Tensor,
    m: Tensor,
    v: Tensor,
) -> State:
    """One step of Adam in place, without correction of the means' bias, with decay of the weights.

    adam_mode 0 scales the gradient so that the norm of all gradients, global_grad_norm, is at most max_grad_norm if
    that is positive, and steps by lr; 1 ("mbart_adam") does not scale, and steps by step_size (lr without it).
    """
    state = (var, m, v)
    _check("npu_bert_apply_adam", grad, state)
    if adam_mode not in (0, 1):
        refuse("npu_bert_apply_adam", "adam_mode 0 or 1", adam_mode)
    slope, step = wide(grad), lr
    if adam_mode == 0 and 0 < max_grad_norm < global_grad_norm:
        slope = slope * (max_grad_norm / global_grad_norm)
    elif adam_mode == 1 and step_size is not None:
        step = step_size
    mean, square = _moments(state, slope, beta1, beta2)
    weight = wide(var)
    var.copy_(weight - step * (mean / (square.sqrt() + epsilon)) - lr * weight_decay * weight)
    return var, m.copy_(mean), v.copy_(square)


def npu_bert_apply_adam(
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    max_grad_norm: float,
    global_grad_norm: float,
    weight_decay: float,
    step_size: float | None = None,
    adam_mode: int = 0,
    *,
    out: State,
) -> State:
    """One step of BERT's Adam for one parameter: no correction of the means' bias, decay of the weights.

    Args:
        max_grad_norm: the norm that the gradients are scaled down to if ``global_grad_norm``, that of all of them, is
            larger; none if it is not positive. For ``adam_mode`` 0.
        step_size: of ``adam_mode`` 1 in the place of ``lr``, which is then for the decay only.
        adam_mode: 0 for BERT's, 1 for mBART's.
        out: the parameter and the running means of its gradient and of the gradient's square; all are written.

    Returns:
        ``out``.
    """
    var, m, v = out
    norms = (max_grad_norm, global_grad_norm)
    return torch.ops.npu.npu_bert_apply_adam.out(
        lr, beta1, beta2, epsilon, grad, *norms, weight_decay, step_size, adam_mode, var=var, m=m, v=v
    )


@composed("_amp_foreach_non_finite_check(Tensor[] scaled_grads) -> bool")
def amp_foreach_non_finite_check(scaled_grads: list[Tensor]) -> bool:
    """Whether an element of any of the gradients is infinite or NaN; the host waits for the answer."""
    found = [~grad.isfinite().all() for grad in scaled_grads]
    return bool(torch.stack(found).any()) if found else False
