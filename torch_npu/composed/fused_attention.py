"""Fused attention whose lengths and random state are tensors."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse

_MASKS = "float keep_prob=1., int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0"
_LENGTHS = (
    "SymInt[]? prefix=None, Tensor? actual_seq_qlen=None, Tensor? actual_seq_kvlen=None, int sparse_mode=0, "
    'bool gen_mask_parallel=True, bool sync=False, str softmax_layout="", Tensor? sink=None'
)


def _listed(ends: Tensor | None) -> list[int] | None:
    """The ends of sequences, which are read on the host."""
    return None if ends is None else ends.tolist()


def _scores(
    query: Tensor, key: Tensor, heads: int, layout: str, ends_q: list[int] | None, ends: list[int] | None
) -> int:
    """How many scores there are, and so elements of a dropout mask."""
    if ends_q is not None and ends is not None:
        pairs = zip(pairwise([0, *ends_q]), pairwise([0, *ends]), strict=True)
        return heads * sum((b - a) * (d - c) for (a, b), (c, d) in pairs)
    return heads * query.shape[layout.index("B")] * query.shape[layout.index("S")] * key.shape[layout.index("S")]


@composed(
    "npu_fusion_attention_v3(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, "
    f"Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1., {_MASKS}, {_LENGTHS}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def fusion_attention_v3(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
    inner_precise: int = 0,
    prefix: list[int] | None = None,
    actual_seq_qlen: Tensor | None = None,
    actual_seq_kvlen: Tensor | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """npu_fusion_attention that takes actual_seq_qlen and actual_seq_kvlen, and gives seed and offset [1], as tensors.

    The lengths are read on the host, so that what is recorded keeps them.
    """
    attention, largest, total, softmax, seed, offset, _ = torch.ops.npu.npu_fusion_attention(
        query, key, value, head_num, input_layout, pse, padding_mask, atten_mask, scale, keep_prob, pre_tockens,
        next_tockens, inner_precise, prefix, _listed(actual_seq_qlen), _listed(actual_seq_kvlen), sparse_mode,
        gen_mask_parallel, sync, softmax_layout, sink,
    )  # fmt: skip
    seed, offset = (torch.full([1], number, dtype=torch.int64, device=query.device) for number in (seed, offset))
    return attention, largest, total, softmax, seed, offset


@composed(
    "npu_fusion_attention_grad_v3(Tensor query, Tensor key, Tensor value, Tensor dy, int head_num, "
    "str input_layout, *, Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, "
    "Tensor? softmax_max=None, Tensor? softmax_sum=None, Tensor? softmax_in=None, Tensor? attention_in=None, "
    f"float scale_value=1., {_MASKS}, Tensor? seed=None, Tensor? offset=None, {_LENGTHS}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def fusion_attention_grad_v3(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    *,
    seed: Tensor | None = None,
    offset: Tensor | None = None,
    actual_seq_qlen: Tensor | None = None,
    actual_seq_kvlen: Tensor | None = None,
    keep_prob: float = 1.0,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """npu_fusion_attention_grad with the lengths, seed and offset of npu_fusion_attention_v3."""
    ends_q, ends = _listed(actual_seq_qlen), _listed(actual_seq_kvlen)
    state = {}
    if keep_prob < 1:
        if seed is None or offset is None:
            refuse("npu_fusion_attention_grad_v3", "seed and offset with keep_prob below 1", None)
        count = _scores(query, key, head_num, input_layout, ends_q, ends)
        state = {"seed": int(seed), "offset": int(offset), "numels": count}
    return torch.ops.npu.npu_fusion_attention_grad(
        query, key, value, dy, head_num, input_layout, keep_prob=keep_prob, actual_seq_qlen=ends_q,
        actual_seq_kvlen=ends, **state, **options,
    )  # fmt: skip
