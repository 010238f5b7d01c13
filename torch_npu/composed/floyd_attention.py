"""Attention over pairs: query (i, k) attends to the nodes j by its keys (i, j) and (j, k)."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse

_INPUTS = "Tensor query_ik, Tensor key_ij, Tensor value_ij, Tensor key_jk, Tensor value_jk"


def _check(operator: str, query: Tensor, inputs: tuple[Tensor, ...], mask: Tensor | None) -> None:
    key_ij, value_ij, key_jk, value_jk = inputs
    shapes = [list(t.shape) for t in (query, *inputs)]
    expected = "query [B, H, N, M, D], key_ij and value_ij [B, H, N, K, D], key_jk and value_jk [B, H, K, M, D]"
    if query.dim() != 5 or key_ij.dim() != 5:
        refuse(operator, expected, shapes)
    b, h, n, m, d = query.shape
    nodes = key_ij.shape[3]
    pair, other = (b, h, n, nodes, d), (b, h, nodes, m, d)
    if any(t.shape != pair for t in (key_ij, value_ij)) or any(t.shape != other for t in (key_jk, value_jk)):
        refuse(operator, expected, shapes)
    if mask is not None and (mask.shape != (b, 1, n, 1, nodes) or mask.dtype not in (torch.bool, torch.uint8)):
        refuse(operator, f"atten_mask {[b, 1, n, 1, nodes]} in bool or uint8", [mask.dtype, list(mask.shape)])


def _scores(query: Tensor, key_ij: Tensor, key_jk: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """[B, H, N, M, K] in float32."""
    near = torch.einsum("bhnmd,bhnkd->bhnmk", query.float(), key_ij.float())
    scores = scale * (near + torch.einsum("bhnmd,bhkmd->bhnmk", query.float(), key_jk.float()))
    return scores if mask is None else scores.masked_fill(mask.bool(), -torch.inf)


@composed(
    f"npu_fused_floyd_attention({_INPUTS}, *, Tensor? atten_mask=None, float scale_value=1.) -> "
    "(Tensor, Tensor, Tensor)"
)
def fused_floyd_attention(
    query_ik: Tensor,
    key_ij: Tensor,
    value_ij: Tensor,
    key_jk: Tensor,
    value_jk: Tensor,
    *,
    atten_mask: Tensor | None = None,
    scale_value: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Maxima and sums of softmax [B, H, N, M, 8] in float32, and weights @ value_ij + weights @ value_jk.

    The weights are softmax over K of scale_value * (query @ key_ij + query @ key_jk); key_ij and value_ij are [B, H, N,
    K, D], key_jk and value_jk [B, H, K, M, D]. Where atten_mask [B, 1, N, 1, K] is True, nothing counts; a query for
    which nothing does has 0. The last result has a gradient.
    """
    name = "npu_fused_floyd_attention"
    _check(name, query_ik, (key_ij, value_ij, key_jk, value_jk), atten_mask)
    scores = _scores(query_ik, key_ij, key_jk, atten_mask, scale_value)
    largest = scores.detach().amax(-1, keepdim=True)
    weights = (scores - largest.masked_fill(largest == -torch.inf, 0)).exp()
    total = weights.sum(-1, keepdim=True)
    shares = weights / total.where(total > 0, 1)
    out = torch.einsum("bhnmk,bhnkd->bhnmd", shares, value_ij.float())
    out = out + torch.einsum("bhnmk,bhkmd->bhnmd", shares, value_jk.float())
    kept = [t.detach().expand(*t.shape[:-1], 8).contiguous() for t in (largest, total)]
    return kept[0], kept[1], out.to(query_ik.dtype)


@composed(
    f"npu_fused_floyd_attention_backward(Tensor grad_output, {_INPUTS}, Tensor attention_out, Tensor softmax_max, "
    "Tensor softmax_sum, *, Tensor? atten_mask=None, float scale_value=1.) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def fused_floyd_attention_backward(
    grad_output: Tensor,
    query_ik: Tensor,
    key_ij: Tensor,
    value_ij: Tensor,
    key_jk: Tensor,
    value_jk: Tensor,
    attention_out: Tensor,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    *,
    atten_mask: Tensor | None = None,
    scale_value: float = 1.0,
) -> tuple[Tensor, ...]:
    """Gradients of npu_fused_floyd_attention by query_ik, key_ij, value_ij, key_jk and value_jk, of its results."""
    name = "npu_fused_floyd_attention_backward"
    inputs = (key_ij, value_ij, key_jk, value_jk)
    _check(name, query_ik, inputs, atten_mask)
    kept = (*query_ik.shape[:-1], 8)
    if grad_output.shape != query_ik.shape or softmax_max.shape != kept or softmax_sum.shape != kept:
        shapes = [list(t.shape) for t in (grad_output, softmax_max, softmax_sum)]
        refuse(name, f"grad_output like query_ik, softmax_max and softmax_sum {list(kept)}", shapes)
    largest, total = softmax_max[..., :1], softmax_sum[..., :1]
    scores = _scores(query_ik, key_ij, key_jk, atten_mask, scale_value)
    weights = (scores - largest.masked_fill(largest == -torch.inf, 0)).exp() / total.where(total > 0, 1)
    grad, query = grad_output.float(), query_ik.float()
    d_value_ij = torch.einsum("bhnmk,bhnmd->bhnkd", weights, grad)
    d_value_jk = torch.einsum("bhnmk,bhnmd->bhkmd", weights, grad)
    by_weights = torch.einsum("bhnmd,bhnkd->bhnmk", grad, value_ij.float())
    by_weights = by_weights + torch.einsum("bhnmd,bhkmd->bhnmk", grad, value_jk.float())
    rest = (grad * attention_out.float()).sum(-1, keepdim=True)
    by_scores = weights * (by_weights - rest) * scale_value
    d_query = torch.einsum("bhnmk,bhnkd->bhnmd", by_scores, key_ij.float())
    d_query = d_query + torch.einsum("bhnmk,bhkmd->bhnmd", by_scores, key_jk.float())
    d_key_ij = torch.einsum("bhnmk,bhnmd->bhnkd", by_scores, query)
    d_key_jk = torch.einsum("bhnmk,bhnmd->bhkmd", by_scores, query)
    gradients = (d_query, d_key_ij, d_value_ij, d_key_jk, d_value_jk)
    return tuple(g.to(t.dtype) for g, t in zip(gradients, (query_ik, *inputs), strict=True))
