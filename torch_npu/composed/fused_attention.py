"""Fused attention whose lengths and random state are tensors."""

from __future__ import annotations

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


def _mask(
    query: Tensor, key: Tensor, seed: Tensor, offset: Tensor, heads: int, layout: str, keep_prob: float,
    ends_q: list[int] | None, ends: list[int] | None,
) -> Tensor:  # fmt: skip
    return torch.ops.npu._npu_attention_dropout_mask(
        query.detach(), key.detach(), seed, offset, heads, layout, keep_prob, ends_q, ends
    )


# How _npu_fusion_attention_grad_masked calls an option, and which ones it has no use for.
_OF_V2 = {"pre_tockens": "pre_tokens", "next_tockens": "next_tokens"}
_NOT_TAKEN = ("padding_mask", "softmax_in", "gen_mask_parallel", "sync")


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

    The lengths are read on the host, so that what is recorded keeps them. Seed and offset are new at each replay.
    """
    ends_q, ends = _listed(actual_seq_qlen), _listed(actual_seq_kvlen)
    seed, offset = (torch.zeros([1], dtype=torch.int64, device=query.device) for _ in range(2))
    mask = None
    if keep_prob < 1:
        seed, offset = torch.ops.npu._npu_dropout_state(query.detach())
        mask = _mask(query, key, seed, offset, head_num, input_layout, keep_prob, ends_q, ends)
    attention, largest, total, softmax, *_ = torch.ops.npu.npu_fusion_attention(
        query, key, value, head_num, input_layout, pse, padding_mask, atten_mask, scale, keep_prob, pre_tockens,
        next_tockens, inner_precise, prefix, ends_q, ends, sparse_mode, gen_mask_parallel, sync, softmax_layout, sink,
        mask,
    )  # fmt: skip
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
    given = {**options, "keep_prob": keep_prob, "actual_seq_qlen": ends_q, "actual_seq_kvlen": ends}
    inputs = query, key, value, dy
    if keep_prob == 1:
        return torch.ops.npu.npu_fusion_attention_grad(*inputs, head_num, input_layout, **given)
    if seed is None or offset is None:
        refuse("npu_fusion_attention_grad_v3", "seed and offset with keep_prob below 1", None)
    mask = _mask(query, key, seed, offset, head_num, input_layout, keep_prob, ends_q, ends)
    renamed = {new: given.pop(old) for old, new in _OF_V2.items() if old in given}
    if given.get("padding_mask") is not None:
        refuse("npu_fusion_attention_grad_v3", "no padding_mask", given["padding_mask"])
    taken = {name: value for name, value in given.items() if name not in _NOT_TAKEN}
    dq, dk, dv, dpse, _, _, dsink = torch.ops.npu._npu_fusion_attention_grad_masked(
        *inputs, mask, head_num, input_layout, **taken, **renamed
    )
    return dq, dk, dv, dpse, dsink
