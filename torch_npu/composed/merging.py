"""Attention over parts of the keys, put together."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse


@composed("npu_attention_update(Tensor[] lse, Tensor[] local_out, int update_type) -> (Tensor, Tensor)")
def attention_update(lse: list[Tensor], local_out: list[Tensor], update_type: int) -> tuple[Tensor, Tensor | None]:
    """Attention over all keys from results [N, D] over parts of them, with logarithms of the sums [N] of each.

    update_type 1: also the logarithms of all sums, else None. A part without keys has -inf.
    """
    name = "npu_attention_update"
    if update_type not in (0, 1):
        refuse(name, "update_type 0 or 1", update_type)
    shapes = [tuple(t.shape) for t in (*lse, *local_out)]
    rows, fits = shapes[:1], bool(lse) and len(lse) == len(local_out) and local_out[0].dim() == 2
    if not fits or shapes != rows * len(lse) + shapes[-1:] * len(lse) or rows[0] != shapes[-1][:1]:
        refuse(name, "as many lse [N] as local_out [N, D]", shapes)
    logs = torch.stack(lse).float()
    total = logs.logsumexp(0)
    shares = (logs - total.masked_fill(total == -torch.inf, 0)).exp().unsqueeze(-1)
    out = (torch.stack(local_out).float() * shares).sum(0).to(local_out[0].dtype)
    return out, total if update_type == 1 else None


@composed(
    "npu_ring_attention_update(Tensor prev_attn_out, Tensor prev_softmax_max, Tensor prev_softmax_sum, "
    "Tensor cur_attn_out, Tensor cur_softmax_max, Tensor cur_softmax_sum, *, Tensor? actual_seq_qlen=None, "
    'str input_layout="SBH", str input_softmax_layout="") -> (Tensor, Tensor, Tensor)'
)
def ring_attention_update(
    prev_attn_out: Tensor,
    prev_softmax_max: Tensor,
    prev_softmax_sum: Tensor,
    cur_attn_out: Tensor,
    cur_softmax_max: Tensor,
    cur_softmax_sum: Tensor,
    *,
    actual_seq_qlen: Tensor | None = None,
    input_layout: str = "SBH",
    input_softmax_layout: str = "",
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention over two parts of the keys from npu_fusion_attention's results over each: output, maximum, sum.

    Layout SBH: outputs [S, B, H] and statistics [B, N, S, 8]; TND: [T, N, D] and [T, N, 8], with actual_seq_qlen, whose
    values make no difference then. Queries that see no key have the maximum -inf, the sum 0 and the output 0.
    """
    name = "npu_ring_attention_update"
    if input_layout not in ("SBH", "TND") or input_softmax_layout not in ("", input_layout):
        refuse(name, "layout SBH or TND, and no other one of the statistics", [input_layout, input_softmax_layout])
    if input_layout == "TND" and actual_seq_qlen is None:
        refuse(name, "actual_seq_qlen for layout TND", None)
    statistics = (prev_softmax_max, prev_softmax_sum, cur_softmax_max, cur_softmax_sum)
    rank = 4 if input_layout == "SBH" else 3
    if prev_attn_out.dim() != 3 or prev_attn_out.shape != cur_attn_out.shape:
        refuse(name, "outputs of one shape and 3 dimensions", [list(t.shape) for t in (prev_attn_out, cur_attn_out)])
    if len({t.shape for t in statistics}) > 1 or prev_softmax_max.dim() != rank or prev_softmax_max.shape[-1] != 8:
        refuse(name, f"statistics of one shape, {rank} dimensions, the last one 8", [list(t.shape) for t in statistics])
    largest = torch.maximum(prev_softmax_max, cur_softmax_max)
    reference = largest.masked_fill(largest == -torch.inf, 0)
    before, now = (
        s * (m - reference).exp() for s, m in ((prev_softmax_sum, prev_softmax_max), (cur_softmax_sum, cur_softmax_max))
    )
    total = before + now

    def weighted(out: Tensor, part: Tensor) -> Tensor:
        share = (part / total.masked_fill(total == 0, 1))[..., :1]
        if input_layout == "TND":
            return out.float() * share
        heads = out.float().unflatten(-1, (share.shape[1], -1))
        return (heads * share.permute(2, 0, 1, 3)).flatten(-2)

    result = weighted(prev_attn_out, before) + weighted(cur_attn_out, now)
    return result.to(prev_attn_out.dtype), largest, total
