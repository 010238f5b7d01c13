"""Attention with its projections. Each step's result is rounded to the dtype of the query."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_npu.composed.dropout import dropout_do_mask, npu_dropout
from torch_npu.composed.registry import composed, refuse


@composed(
    "npu_multi_head_attention(Tensor query, Tensor key, Tensor value, Tensor query_weight, Tensor key_weight, "
    "Tensor value_weight, Tensor attn_mask, Tensor out_proj_weight, Tensor? query_bias, Tensor? key_bias, "
    "Tensor? value_bias, Tensor? out_proj_bias, Tensor? dropout_mask, int attn_head_num, int attn_dim_per_head, "
    "int src_len, int tgt_len, float dropout_prob, bool softmax_use_float) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    value_weight: Tensor,
    attn_mask: Tensor,
    out_proj_weight: Tensor,
    query_bias: Tensor | None,
    key_bias: Tensor | None,
    value_bias: Tensor | None,
    out_proj_bias: Tensor | None,
    dropout_mask: Tensor | None,
    attn_head_num: int,
    attn_dim_per_head: int,
    src_len: int,
    tgt_len: int,
    dropout_prob: float,
    softmax_use_float: bool,
) -> tuple[Tensor, ...]:
    """Projects query [B * tgt_len, E], key and value [B * src_len, E], attends in each head, and projects the result.

    attn_mask, [B, heads, tgt_len, src_len] or broadcast to it, is added to the scores; dropout_mask has the bits of the
    elements that _npu_dropout keeps, None draws them. softmax_use_float: in float32. Results: the output; the mask; the
    heads of query (over sqrt(attn_dim_per_head)), key and value; softmax; that after dropout; the output before its
    projection. Gradients are those of the first.
    """
    name, width = "npu_multi_head_attention", attn_head_num * attn_dim_per_head
    if min(attn_head_num, attn_dim_per_head, src_len, tgt_len) < 1:
        refuse(name, "positive sizes", [attn_head_num, attn_dim_per_head, src_len, tgt_len])
    batch = query.shape[0] // tgt_len
    if query.shape[0] != batch * tgt_len or any(x.shape[0] != batch * src_len for x in (key, value)):
        expected = f"query [B * {tgt_len}, E], key and value [B * {src_len}, E]"
        refuse(name, expected, [list(x.shape) for x in (query, key, value)])

    def heads(x: Tensor, weight: Tensor, bias: Tensor | None, length: int, scale: float = 1) -> Tensor:
        if weight.shape[0] != width:
            refuse(name, f"weights of {width} rows", list(weight.shape))
        projected = F.linear(x, weight, bias) * scale
        return projected.view(batch, length, attn_head_num, attn_dim_per_head).transpose(1, 2)

    q = heads(query, query_weight, query_bias, tgt_len, attn_dim_per_head**-0.5)
    k, v = heads(key, key_weight, key_bias, src_len), heads(value, value_weight, value_bias, src_len)
    scores = torch.matmul(q, k.transpose(2, 3)) + attn_mask
    softmax = scores.softmax(-1, dtype=torch.float32 if softmax_use_float else None)
    weights = softmax.to(query.dtype)
    if dropout_mask is None:
        dropped, mask = npu_dropout(weights, dropout_prob)
    else:
        dropped, mask = dropout_do_mask(weights, dropout_mask, dropout_prob)
    context = torch.matmul(dropped, v).transpose(1, 2).reshape(batch * tgt_len, width)
    output = F.linear(context, out_proj_weight, out_proj_bias)
    return output, mask, *(t.detach() for t in (q, k, v, softmax, dropped, context))
