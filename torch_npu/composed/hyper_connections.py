"""Manifold-constrained hyper-connections: n residual streams, mixed before and behind a layer.

Streams are [..., n, D]. Computed in float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_npu.composed.registry import composed, refuse


def _check_streams(operator: str, x: Tensor) -> None:
    if x.dim() not in (3, 4):
        refuse(operator, "x [T, n, D] or [B, S, n, D]", list(x.shape))


_PADDED = 8  # rows of kept matrices and sums are this long, as the units of the hardware keep them


def _sinkhorn_steps(x: Tensor, eps: float, num_iters: int) -> tuple[list[Tensor], list[Tensor]]:
    """Softmax of the rows, then the matrices after each division; ones, then what was divided by, [..., n]."""
    share = x.float().softmax(-1)
    matrices, sums, y = [share], [torch.ones_like(share[..., 0])], share + eps
    for step in range(2 * num_iters - 1):
        dim = -1 if step % 2 else -2
        total = y.sum(dim, keepdim=True) + eps
        y = y / total
        matrices.append(y)
        sums.append(total.squeeze(dim))
    return matrices, sums


def _kept(steps: list[Tensor], dtype: torch.dtype) -> Tensor:
    """All numbers of the steps in one dimension, rows filled up with zeros."""
    rows = torch.stack(steps)
    return F.pad(rows, (0, _PADDED - rows.shape[-1])).flatten().to(dtype)


@composed(
    "npu_mhc_sinkhorn(Tensor x, *, float eps=1e-6, SymInt num_iters=20, int out_flag=0) -> (Tensor, Tensor, Tensor)"
)
def mhc_sinkhorn(
    x: Tensor, *, eps: float = 1e-6, num_iters: int = 20, out_flag: int = 0
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Matrices [..., n, n] made doubly stochastic: softmax, divided by sums of columns and of rows in turn.

    num_iters: how often by those of columns. With out_flag 1 the second and third result are the matrices and the sums
    of all steps, for npu_mhc_sinkhorn_backward: [2 * num_iters * T * n * 8] and [2 * num_iters * T * 8], step by step,
    rows filled up to 8 (Ascend's have the order of the hardware's units); else None. Autograd needs neither.
    """
    name = "npu_mhc_sinkhorn"
    _check_streams(name, x)
    if x.shape[-1] != x.shape[-2] or not 1 <= num_iters <= 100:
        refuse(name, "square matrices and num_iters from 1 to 100", [list(x.shape), num_iters])
    if out_flag not in (0, 1) or (out_flag and x.shape[-1] > _PADDED):
        refuse(name, f"out_flag 0, or 1 with matrices of at most {_PADDED} rows", [out_flag, list(x.shape)])
    matrices, sums = _sinkhorn_steps(x, eps, num_iters)
    y = matrices[-1].to(x.dtype)
    return (y, _kept(matrices, x.dtype), _kept(sums, x.dtype)) if out_flag else (y, None, None)


@composed("npu_mhc_sinkhorn_backward(Tensor grad_y, Tensor norm, Tensor sum) -> Tensor")
def mhc_sinkhorn_backward(grad_y: Tensor, norm: Tensor, sum: Tensor) -> Tensor:
    """Gradient of npu_mhc_sinkhorn by x, from its second and third result."""
    name = "npu_mhc_sinkhorn_backward"
    _check_streams(name, grad_y)
    n, rows = grad_y.shape[-1], grad_y.shape[:-1].numel()
    if rows == 0:
        return torch.zeros_like(grad_y)
    steps = norm.numel() // (rows * _PADDED)
    if steps % 2 or not steps or n > _PADDED or (norm.numel(), sum.numel() * n) != (steps * rows * _PADDED,) * 2:
        refuse(name, "the results of npu_mhc_sinkhorn with out_flag 1", [list(t.shape) for t in (grad_y, norm, sum)])
    matrices = norm.float().view(steps, *grad_y.shape[:-1], _PADDED)[..., :n]
    sums = sum.float().view(steps, *grad_y.shape[:-2], _PADDED)[..., :n]
    grad = grad_y.float()
    for step in range(steps - 1, 0, -1):
        dim = -2 if step % 2 else -1
        grad = (grad - (grad * matrices[step]).sum(dim, keepdim=True)) / sums[step].unsqueeze(dim)
    return (matrices[0] * (grad - (grad * matrices[0]).sum(-1, keepdim=True))).to(grad_y.dtype)


def _check_post(operator: str, x: Tensor, h_res: Tensor | None, h_out: Tensor, h_post: Tensor) -> None:
    _check_streams(operator, x)
    n = x.shape[-2]
    fits = h_out.shape == x.shape[:-2] + x.shape[-1:] and h_post.shape == x.shape[:-1]
    if not fits or (h_res is not None and h_res.shape != (*x.shape[:-1], n)):
        shapes = [None if t is None else list(t.shape) for t in (x, h_res, h_out, h_post)]
        refuse(operator, "x [..., n, D], h_res [..., n, n], h_out [..., D] and h_post [..., n]", shapes)


@composed("npu_mhc_post(Tensor x, Tensor? h_res, Tensor h_out, Tensor h_post) -> Tensor")
def mhc_post(x: Tensor, h_res: Tensor | None, h_out: Tensor, h_post: Tensor) -> Tensor:
    """Streams behind a layer with output h_out [..., D]: h_res transposed @ x (x where None) + h_post * h_out.

    h_res is [..., n, n], h_post [..., n].
    """
    _check_post("npu_mhc_post", x, h_res, h_out, h_post)
    mixed = x.float() if h_res is None else h_res.float().mT @ x.float()
    return (mixed + h_post.float().unsqueeze(-1) * h_out.float().unsqueeze(-2)).to(x.dtype)


@composed(
    "npu_mhc_post_backward(Tensor grad_y, Tensor x, Tensor? h_res, Tensor h_out, Tensor h_post) -> "
    "(Tensor, Tensor, Tensor, Tensor)"
)
def mhc_post_backward(
    grad_y: Tensor, x: Tensor, h_res: Tensor | None, h_out: Tensor, h_post: Tensor
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Gradients of npu_mhc_post by x, h_res (None where not given), h_out and h_post."""
    _check_post("npu_mhc_post_backward", x, h_res, h_out, h_post)
    grad = grad_y.float()
    dx = grad if h_res is None else h_res.float() @ grad
    dres = None if h_res is None else (x.float() @ grad.mT).to(h_res.dtype)
    dout = (h_post.float().unsqueeze(-1) * grad).sum(-2).to(h_out.dtype)
    dpost = (h_out.float().unsqueeze(-2) * grad).sum(-1).to(h_post.dtype)
    return dx.to(x.dtype), dres, dout, dpost


def _check_pre(operator: str, x: Tensor, phi: Tensor, alpha: Tensor, gamma: Tensor | None) -> None:
    _check_streams(operator, x)
    n, size = x.shape[-2:]
    rows = {3: n * n + 2 * n, 2: 2 * n}.get(alpha.numel())
    if rows is None or phi.shape != (rows, n * size) or (gamma is not None and gamma.shape != (n, size)):
        shapes = [None if t is None else list(t.shape) for t in (x, phi, alpha, gamma)]
        refuse(operator, "phi [n² + 2n, n D] with alpha [3], or phi [2n, n D] with alpha [2], and gamma [n, D]", shapes)


@composed(
    "npu_mhc_pre(Tensor x, Tensor phi, Tensor alpha, Tensor bias, *, Tensor? gamma=None, float norm_eps=1e-6, "
    "float hc_eps=1e-6, int out_flag=0, int inner_precise=0) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def mhc_pre(
    x: Tensor,
    phi: Tensor,
    alpha: Tensor,
    bias: Tensor,
    *,
    gamma: Tensor | None = None,
    norm_eps: float = 1e-6,
    hc_eps: float = 1e-6,
    out_flag: int = 0,
    inner_precise: int = 0,
) -> tuple[Tensor | None, ...]:
    """What a layer reads, h_in [..., D], and how its output is written: h_post [..., n] and h_res [..., n, n].

    The RMS norm of all streams (gain gamma) @ phi transposed has parts for reading, writing and mixing, each times its
    alpha plus its part of bias: h_in = (sigmoid + hc_eps) · x, h_post = 2 sigmoid, h_res as it is (None without a third
    alpha). out_flag 1: also 1 / RMS [...], x * gamma @ phi transposed, and what h_in weights x with; else None.
    inner_precise, which on Ascend hardware allows a product of less precision, makes no difference.
    """
    name = "npu_mhc_pre"
    _check_pre(name, x, phi, alpha, gamma)
    if bias.shape != phi.shape[:1]:
        refuse(name, f"bias [{phi.shape[0]}]", list(bias.shape))
    if out_flag not in (0, 1) or inner_precise not in (0, 1):
        refuse(name, "out_flag and inner_precise 0 or 1", [out_flag, inner_precise])
    n = x.shape[-2]
    streams = x.float()
    inverse = (streams.square().mean((-2, -1)) + norm_eps).rsqrt()
    scaled = streams if gamma is None else streams * gamma.float()
    mix = scaled.flatten(-2) @ phi.float().t()
    parts = [n, n, n * n][: alpha.numel()]
    linear = mix * inverse.unsqueeze(-1) * alpha.float().repeat_interleave(torch.tensor(parts, device=x.device)) + bias
    read, write, *rest = linear.split(parts, -1)
    weights = read.sigmoid() + hc_eps
    h_in = (weights.unsqueeze(-1) * streams).sum(-2).to(x.dtype)
    h_res = rest[0].unflatten(-1, (n, n)) if rest else None
    kept = (inverse, mix, weights) if out_flag else (None, None, None)
    return h_in, 2 * write.sigmoid(), h_res, *kept


@composed(
    "npu_mhc_pre_backward(Tensor x, Tensor phi, Tensor alpha, Tensor grad_h_in, Tensor grad_h_post, "
    "Tensor grad_h_res, Tensor inv_rms, Tensor h_mix, Tensor h_pre, Tensor h_post, Tensor? gamma=None, "
    "float hc_eps=1e-6, Tensor? grad_x_post=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def mhc_pre_backward(
    x: Tensor,
    phi: Tensor,
    alpha: Tensor,
    grad_h_in: Tensor,
    grad_h_post: Tensor,
    grad_h_res: Tensor,
    inv_rms: Tensor,
    h_mix: Tensor,
    h_pre: Tensor,
    h_post: Tensor,
    gamma: Tensor | None = None,
    hc_eps: float = 1e-6,
    grad_x_post: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """Gradients of npu_mhc_pre (out_flag 1) by x, phi, alpha, bias and gamma (None where not given).

    grad_x_post is added to the gradient of x.
    """
    _check_pre("npu_mhc_pre_backward", x, phi, alpha, gamma)
    n, size = x.shape[-2:]
    streams, d_in = x.float(), grad_h_in.float()
    share, half = h_pre.float() - hc_eps, h_post.float() / 2
    d_read = (streams * d_in.unsqueeze(-2)).sum(-1) * share * (1 - share)
    d_write = grad_h_post.float() * 2 * half * (1 - half)
    d_parts = [d_read, d_write] + ([grad_h_res.float().flatten(-2)] if alpha.numel() == 3 else [])
    inverse = inv_rms.float().unsqueeze(-1)
    normal = h_mix.float() * inverse
    d_linear = torch.cat(d_parts, -1).flatten(0, -2)
    products = d_linear * normal.flatten(0, -2)
    d_alpha = torch.stack([p.sum() for p in products.split([p.shape[-1] for p in d_parts], -1)])
    spread = alpha.float().repeat_interleave(torch.tensor([p.shape[-1] for p in d_parts], device=x.device))
    d_normal = (d_linear * spread).view(h_mix.shape)
    d_mix, d_inverse = d_normal * inverse, (d_normal * h_mix.float()).sum(-1)
    gain = torch.ones_like(streams[..., :1, :1]) if gamma is None else gamma.float()
    d_phi = d_mix.flatten(0, -2).t() @ (streams * gain).flatten(-2).flatten(0, -2)
    d_scaled = (d_mix @ phi.float()).view(x.shape)
    d_norm = -(inv_rms.float() ** 3) * d_inverse / (n * size)
    dx = d_scaled * gain + d_norm[..., None, None] * streams + h_pre.float().unsqueeze(-1) * d_in.unsqueeze(-2)
    if grad_x_post is not None:
        dx = dx + grad_x_post
    d_gamma = None if gamma is None else (d_scaled * streams).flatten(0, -3).sum(0).to(gamma.dtype)
    return dx.to(x.dtype), d_phi.to(phi.dtype), d_alpha.to(alpha.dtype).view(alpha.shape), d_linear.sum(0), d_gamma
