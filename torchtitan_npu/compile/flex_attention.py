"""``flex_attention``: the operator that takes functions of scores, spelled out so that they fuse with the softmax.

Dynamo leaves the operator whole, with the functions as graphs of their own, for compilers that have a template for it.
Here its definition takes its place: scores are in memory between the two products, blocks that the mask excludes are
computed like others, and one kernel applies the functions and the softmax.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention, sdpa_dense
from torch.fx import GraphModule

from torch_npu._flex_attention import in_autocast_dtype


def spell_out_flex_attention(module: GraphModule) -> int:
    """Puts :func:`composed` in place of the operator in Dynamo's graph; returns how often."""
    found = [node for node in module.graph.nodes if node.target is flex_attention]
    for node in found:
        node.target = composed
    if found:
        module.recompile()
    return len(found)


def composed(query: Tensor, key: Tensor, value: Tensor, *functions_and_options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What the operator gives: its result laid out like the query, logarithms of sums and maxima, both in base 2.

    Args:
        query: [B, Hq, M, E]; key: [B, H, N, E]; value: [B, H, N, Ev].
        functions_and_options: the operator's other arguments, which are its definition's.
    """
    device = query.device.type
    if torch.is_autocast_enabled(device):
        query, key, value = in_autocast_dtype(query, key, value)
    with torch.autocast(device, enabled=False):
        results: tuple[Tensor, Tensor, Tensor] = sdpa_dense(query, key, value, *functions_and_options)
    return results
