"""Attention of BERT in steps: norm and projections to heads, scores, and the gradients of both.

Heads are [B, N, S, D]; rows of a result are [B * S, N * D].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_npu.composed.dropout import dropout_and_byte_mask, dropout_do_mask
from torch_npu.composed.registry import composed, refuse, wide

_HEADS = "Tensor query_layer, Tensor key_layer, Tensor value_layer"
_FORWARD = (
    f"{_HEADS}, Tensor attention_mask, Scalar scale, float keep_prob, bool query_transpose=False, "
    "bool key_transpose=False, bool bmm_score_transpose_a=False, bool bmm_score_transpose_b=False, "
    "bool value_transpose=False, bool dx_transpose=False"
)
_BACKWARD = (
    f"Tensor grad_output, Tensor softmax_output, {_HEADS}, Tensor mask, Scalar scale, float keep_prob, "
    "bool query_transpose=False, bool key_transpose=False, bool value_transpose=False, bool dx_transpose=False"
)


def _refuse_transposed(operator: str, flags: tuple[bool, ...]) -> None:
    if any(flags):
        raise NotImplementedError(f"{operator}: transposed operands are not supported; leave the flags out")


def _check_heads(operator: str, query: Tensor, key: Tensor, value: Tensor, keep_prob: float) -> None:
    shapes = [list(t.shape) for t in (query, key, value)]
    fits = query.dim() == key.dim() == value.dim() == 4 and key.shape[:3] == value.shape[:3]
    if not fits or query.shape[:2] != key.shape[:2] or query.shape[3] != key.shape[3] or not 0 < keep_prob <= 1:
        expected = "query [B, N, S, D], key [B, N, S2, D] and value [B, N, S2, D2], and keep_prob up to 1"
        refuse(operator, expected, [*shapes, keep_prob])


def _rows(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2).flatten(0, 1)


def _scored(operator: str, inputs: tuple[Tensor, ...], scale: float, keep_prob: float) -> tuple[Tensor, ...]:
    query, key, value, mask = inputs
    _check_heads(operator, query, key, value, keep_prob)
    scores = wide(query) @ wide(key).transpose(2, 3) * scale + wide(mask)
    softmax = scores.softmax(-1).to(query.dtype)
    if keep_prob == 1:
        dropped, kept = softmax, torch.ones_like(softmax, dtype=torch.uint8)
    else:
        dropped, kept = dropout_and_byte_mask(softmax, 1 - keep_prob)
    return _rows(torch.matmul(dropped, value)), softmax.detach(), kept.flatten()


@composed(f"npu_fused_attention_score({_FORWARD}) -> Tensor")
def fused_attention_score(
    query_layer: Tensor,
    key_layer: Tensor,
    value_layer: Tensor,
    attention_mask: Tensor,
    scale: float,
    keep_prob: float,
    *flags: bool,
) -> Tensor:
    """dropout(softmax(query @ key * scale + attention_mask)) @ value of heads [B, N, S, D], in rows [B * S, N * D].

    attention_mask is [B, N, S, S2] or broadcast to it. Shares of keys and the result are rounded to the dtype of query.
    """
    name = "npu_fused_attention_score"
    _refuse_transposed(name, flags)
    return _scored(name, (query_layer, key_layer, value_layer, attention_mask), scale, keep_prob)[0]


@composed(f"npu_fused_attention_score_fwd({_FORWARD}) -> (Tensor, Tensor, Tensor)")
def fused_attention_score_fwd(
    query_layer: Tensor,
    key_layer: Tensor,
    value_layer: Tensor,
    attention_mask: Tensor,
    scale: float,
    keep_prob: float,
    *flags: bool,
) -> tuple[Tensor, ...]:
    """npu_fused_attention_score, the softmax before dropout, and the mask of dropout: flat bytes, 1 to keep."""
    name = "npu_fused_attention_score_fwd"
    _refuse_transposed(name, flags)
    return _scored(name, (query_layer, key_layer, value_layer, attention_mask), scale, keep_prob)


def _score_gradients(
    operator: str, grad_output: Tensor, softmax: Tensor, heads: tuple[Tensor, ...], kept: Tensor, scale: float, p: float
) -> tuple[Tensor, ...]:
    """Gradients [B, N, S, D] by query, key and value."""
    _check_heads(operator, heads[0], heads[1], heads[2], p)
    query, key, value = (wide(t) for t in heads)
    b, n, s, _ = query.shape
    if softmax.shape != (b, n, s, key.shape[2]) or grad_output.shape != (b * s, n * value.shape[3]):
        seen = [list(grad_output.shape), list(softmax.shape)]
        refuse(operator, f"grad_output {[b * s, n * value.shape[3]]}, softmax {[b, n, s, key.shape[2]]}", seen)
    if kept.dtype != torch.uint8 or kept.numel() != softmax.numel():
        refuse(operator, f"a mask of {softmax.numel()} bytes", [kept.dtype, kept.numel()])
    grad = wide(grad_output).view(b, s, n, -1).transpose(1, 2)
    shares, factors = wide(softmax), kept.view(softmax.shape) / p
    d_value = (shares * factors).transpose(2, 3) @ grad
    by_shares = grad @ value.transpose(2, 3) * factors
    by_scores = shares * (by_shares - (by_shares * shares).sum(-1, keepdim=True)) * scale
    gradients = (by_scores @ key, by_scores.transpose(2, 3) @ query, d_value)
    return tuple(g.to(t.dtype) for g, t in zip(gradients, heads, strict=True))


@composed(f"npu_fused_attention_score_backward({_BACKWARD}) -> (Tensor, Tensor, Tensor)")
def fused_attention_score_backward(
    grad_output: Tensor,
    softmax_output: Tensor,
    query_layer: Tensor,
    key_layer: Tensor,
    value_layer: Tensor,
    mask: Tensor,
    scale: float,
    keep_prob: float,
    *flags: bool,
) -> tuple[Tensor, ...]:
    """Gradients of npu_fused_attention_score by its heads, [B, N, S, D], from the results of its _fwd."""
    name = "npu_fused_attention_score_backward"
    _refuse_transposed(name, flags)
    heads = (query_layer, key_layer, value_layer)
    return _score_gradients(name, grad_output, softmax_output, heads, mask, scale, keep_prob)


@composed(f"npu_fused_attention_score_grad({_BACKWARD}) -> (Tensor, Tensor, Tensor)")
def fused_attention_score_grad(
    grad_output: Tensor,
    softmax_output: Tensor,
    query_layer: Tensor,
    key_layer: Tensor,
    value_layer: Tensor,
    mask: Tensor,
    scale: float,
    keep_prob: float,
    *flags: bool,
) -> tuple[Tensor, ...]:
    """npu_fused_attention_score_backward with gradients in rows [B * S, N * D]."""
    name = "npu_fused_attention_score_grad"
    _refuse_transposed(name, flags)
    heads = (query_layer, key_layer, value_layer)
    gradients = _score_gradients(name, grad_output, softmax_output, heads, mask, scale, keep_prob)
    return tuple(_rows(g) for g in gradients)


@composed(
    "npu_fused_attention_layernorm_qkv_fwd(Tensor x, Tensor kernel_query, Tensor kernel_key, Tensor kernel_value, "
    "Tensor gamma, Tensor beta, Tensor? bias_query=None, Tensor? bias_key=None, Tensor? bias_value=None, "
    "int seq_len=128, int num_heads=12, float eps=1e-05) -> Tensor[]"
)
def fused_attention_layernorm_qkv_fwd(
    x: Tensor,
    kernel_query: Tensor,
    kernel_key: Tensor,
    kernel_value: Tensor,
    gamma: Tensor,
    beta: Tensor,
    bias_query: Tensor | None = None,
    bias_key: Tensor | None = None,
    bias_value: Tensor | None = None,
    seq_len: int = 128,
    num_heads: int = 12,
    eps: float = 1e-5,
) -> list[Tensor]:
    """Layer norm of x [B * S, H]; it @ kernels [H, H] + biases as heads [B, N, S, D] of query, key and value; mean and
    variance of each row of x.

    The norm is rounded to the dtype of x.
    """
    name = "npu_fused_attention_layernorm_qkv_fwd"
    if x.dim() != 2 or min(seq_len, num_heads) < 1 or x.shape[0] % seq_len or x.shape[1] % num_heads:
        refuse(name, "x [B * seq_len, H] with an H that num_heads divides", [list(x.shape), seq_len, num_heads])
    kernels, biases = (kernel_query, kernel_key, kernel_value), (bias_query, bias_key, bias_value)
    square = (x.shape[1], x.shape[1])
    if any(k.shape != square for k in kernels):
        refuse(name, f"kernels {list(square)}", [list(k.shape) for k in kernels])
    variance, mean = torch.var_mean(wide(x), 1, correction=0)
    norm = F.layer_norm(x, square[:1], gamma, beta, eps)
    heads = []
    for kernel, bias in zip(kernels, biases, strict=True):
        rows = norm @ kernel if bias is None else torch.addmm(bias, norm, kernel)
        heads.append(rows.view(-1, seq_len, num_heads, x.shape[1] // num_heads).transpose(1, 2).contiguous())
    return [norm, *heads, mean.to(kernel_query.dtype), variance.to(kernel_query.dtype)]


@composed(
    "npu_fused_attention_qkv_grad(Tensor grad_output_query, Tensor grad_output_key, Tensor grad_output_value, "
    "Tensor query_kernel, Tensor key_kernel, Tensor value_kernel, Tensor hidden_states, Tensor grad_output_ln) -> "
    "Tensor[]"
)
def fused_attention_qkv_grad(
    grad_output_query: Tensor,
    grad_output_key: Tensor,
    grad_output_value: Tensor,
    query_kernel: Tensor,
    key_kernel: Tensor,
    value_kernel: Tensor,
    hidden_states: Tensor,
    grad_output_ln: Tensor,
) -> list[Tensor]:
    """Gradients of hidden_states [R, H] @ kernels [H, H] + biases: by hidden_states, the kernels and the biases.

    Gradients of the products are [R, H]; grad_output_ln [R, H] is added to the first result.
    """
    name = "npu_fused_attention_qkv_grad"
    grads = (grad_output_query, grad_output_key, grad_output_value)
    kernels = (query_kernel, key_kernel, value_kernel)
    if any(t.dim() != 2 for t in (*grads, *kernels)) or grad_output_ln.shape != hidden_states.shape:
        shapes = [list(t.shape) for t in (*grads, *kernels, hidden_states, grad_output_ln)]
        refuse(name, "matrices, and grad_output_ln like hidden_states", shapes)
    dx = wide(grad_output_ln)
    for grad, kernel in zip(grads, kernels, strict=True):
        dx = dx + wide(grad) @ wide(kernel).t()
    by_kernels = [(wide(hidden_states).t() @ wide(g)).to(k.dtype) for g, k in zip(grads, kernels, strict=True)]
    by_biases = [wide(g).sum(0).to(g.dtype) for g in grads]
    return [dx.to(hidden_states.dtype), *by_kernels, *by_biases]


@composed(
    "npu_multi_head_attention_backward(Tensor query, Tensor key, Tensor value, Tensor query_weight, Tensor key_weight, "
    "Tensor value_weight, Tensor out_proj_weight, Tensor? query_bias, Tensor? key_bias, Tensor? value_bias, "
    "Tensor? out_proj_bias, Tensor query_res, Tensor key_res, Tensor value_res, Tensor attn_scores, Tensor attn_res, "
    "Tensor context, Tensor y_grad, Tensor dropout_mask, int attn_head_num, int attn_dim_per_head, int src_len, "
    "int tgt_len, float dropout_prob, bool softmax_use_float) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def multi_head_attention_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    value_weight: Tensor,
    out_proj_weight: Tensor,
    query_bias: Tensor | None,
    key_bias: Tensor | None,
    value_bias: Tensor | None,
    out_proj_bias: Tensor | None,
    query_res: Tensor,
    key_res: Tensor,
    value_res: Tensor,
    attn_scores: Tensor,
    attn_res: Tensor,
    context: Tensor,
    y_grad: Tensor,
    dropout_mask: Tensor,
    attn_head_num: int,
    attn_dim_per_head: int,
    src_len: int,
    tgt_len: int,
    dropout_prob: float,
    softmax_use_float: bool,
) -> tuple[Tensor | None, ...]:
    """Gradients of npu_multi_head_attention by its weights of query, key, value and output, by query, key and value,
    and by the biases (None where not given).

    query_res to context are its results from the third on, dropout_mask its second.
    """
    batch, scale = y_grad.shape[0] // tgt_len, attn_dim_per_head**-0.5
    heads = (batch, tgt_len, attn_head_num, attn_dim_per_head)
    if y_grad.dim() != 2 or context.shape != (y_grad.shape[0], attn_head_num * attn_dim_per_head):
        seen = [list(y_grad.shape), list(context.shape)]
        refuse("npu_multi_head_attention_backward", "y_grad and context with the rows of query", seen)
    dy = wide(y_grad)
    d_heads = (dy @ wide(out_proj_weight)).view(heads).transpose(1, 2)
    q, k, v = (wide(t) for t in (query_res, key_res, value_res))
    shares = wide(attn_scores)
    d_v = wide(attn_res).transpose(2, 3) @ d_heads
    d_shares = d_heads @ v.transpose(2, 3)
    if dropout_prob > 0:
        d_shares = dropout_do_mask(d_shares, dropout_mask, dropout_prob)[0]
    d_scores = shares * (d_shares - (d_shares * shares).sum(-1, keepdim=True))
    d_q, d_k = d_scores @ k * scale, d_scores.transpose(2, 3) @ q
    rows = [_rows(t) for t in (d_q, d_k, d_v)]
    inputs, weights = (query, key, value), (query_weight, key_weight, value_weight)
    by_weights = [(r.t() @ wide(x)).to(w.dtype) for r, x, w in zip(rows, inputs, weights, strict=True)]
    by_weights.append((dy.t() @ wide(context)).to(out_proj_weight.dtype))
    by_inputs = [(r @ wide(w)).to(x.dtype) for r, x, w in zip(rows, inputs, weights, strict=True)]
    biases = (query_bias, key_bias, value_bias, out_proj_bias)
    by_biases = [None if b is None else r.sum(0).to(b.dtype) for r, b in zip([*rows, dy], biases, strict=True)]
    return *by_weights, *by_inputs, *by_biases
