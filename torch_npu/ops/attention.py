"""``npu_fusion_attention``: attention in the layouts and mask modes of CANN's FlashAttentionScore, from ATen operators.

    attention_out = dropout(softmax(mask(scale * (pse + query @ keyᵀ), atten_mask)), keep_prob) @ value

Scores and softmax are computed in float32. Autograd differentiates the ATen operators.
"""

import torch
from torch import Tensor

_ALL = 2147483647  # of pre_tockens and next_tockens: no limit

# Shapes of query (head_num heads) in each layout, as (batch, head_num, sequence, head size) after a view.
_LAYOUTS = ("BSH", "SBH", "BSND", "BNSD", "TND")
_WHOLE_MASK = (0, 1, 5)  # sparse modes that take atten_mask as it is
_TOP_LEFT_CAUSAL, _BOTTOM_RIGHT_CAUSAL, _BAND, _PREFIX = 2, 3, 4, 6  # modes where the numbers say what is masked

_library = torch.library.Library("npu", "FRAGMENT")
_library.define(
    "npu_fusion_attention(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, Tensor? pse=None, "
    "Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1., float keep_prob=1., "
    "int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0, int[]? prefix=None, "
    "int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, bool gen_mask_parallel=True, "
    'bool sync=False, str softmax_layout="", Tensor? sink=None, Tensor? dropout_mask=None, int seed=0, int offset=0) '
    "-> (Tensor, Tensor, Tensor, Tensor, int, int, int)"
)


def _to_bnsd(tensor: Tensor, layout: str, head_size: int) -> Tensor:
    """A view of shape (batch, heads, sequence, head size); the number of heads follows from the head size."""
    if layout == "BNSD":
        return tensor
    if layout == "BSND":
        return tensor.transpose(1, 2)
    if layout == "BSH":
        return tensor.unflatten(2, (-1, head_size)).transpose(1, 2)
    return tensor.unflatten(2, (-1, head_size)).permute(1, 2, 0, 3)  # SBH


def _from_bnsd(tensor: Tensor, layout: str) -> Tensor:
    if layout == "BNSD":
        return tensor
    if layout == "BSND":
        return tensor.transpose(1, 2).contiguous()
    if layout == "BSH":
        return tensor.transpose(1, 2).flatten(2)
    return tensor.permute(2, 0, 1, 3).flatten(2)  # SBH


def _masked(
    query_length: int,
    key_length: int,
    device: torch.device,
    atten_mask: Tensor | None,
    sparse_mode: int,
    pre_tokens: int,
    next_tokens: int,
    prefix: list[int] | None,
) -> Tensor | None:
    """True where a query must not see a key; broadcasts to (batch, heads, query, key). None: everything is seen."""
    if sparse_mode in _WHOLE_MASK and pre_tokens >= _ALL and next_tokens >= _ALL:
        return None if atten_mask is None else atten_mask.bool()
    row = torch.arange(query_length, device=device)[:, None]
    column = torch.arange(key_length, device=device)
    # How far a key lies behind its query, counted from the first pair or from the last.
    ahead = (
        column - row if sparse_mode in (*_WHOLE_MASK, _TOP_LEFT_CAUSAL) else column - row - key_length + query_length
    )
    if sparse_mode in (_TOP_LEFT_CAUSAL, _BOTTOM_RIGHT_CAUSAL):
        return ahead > 0
    if sparse_mode == _PREFIX:
        if prefix is None:
            raise ValueError("npu_fusion_attention: sparse_mode 6 needs `prefix`, one number of keys for each batch")
        seen_by_all = column < torch.tensor(prefix, device=device)[:, None, None, None]
        return (ahead > 0) & ~seen_by_all
    outside = (ahead > next_tokens) | (ahead < -pre_tokens)
    return outside if sparse_mode == _BAND or atten_mask is None else outside | atten_mask.bool()


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pse: Tensor | None,
    masked: Tensor | None,
    scale: float,
    keep_prob: float,
    sink: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of (batch, heads, sequence, size). Returns it, and the softmax's maximum and sum (…, query, 1)."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:  # grouped query attention: neighbouring heads share a key
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query.float() @ key.float().transpose(-1, -2)
    if pse is not None:
        scores = scores + pse
    scores = scores * scale
    if masked is not None:
        # Finite, so that a row that sees nothing gives a mean and not NaN.
        scores = scores.masked_fill(masked, torch.finfo(torch.float32).min)
    maximum = scores.amax(-1, keepdim=True)
    if sink is not None:
        maximum = torch.maximum(maximum, sink.view(-1, 1, 1))
    weights = (scores - maximum).exp()
    total = weights.sum(-1, keepdim=True)
    if sink is not None:
        total = total + (sink.view(-1, 1, 1) - maximum).exp()
    weights = weights / total
    if keep_prob < 1.0:
        weights = torch.dropout(weights, 1.0 - keep_prob, True)
    return weights.to(query.dtype) @ value, maximum, total


def _check(
    query: Tensor,
    key: Tensor,
    head_num: int,
    layout: str,
    keep_prob: float,
    sparse_mode: int,
    lengths: tuple[list[int] | None, list[int] | None],
    unsupported: dict[str, bool],
) -> int:
    """Raises for what cannot be computed; returns the size of a head."""
    name = "npu_fusion_attention"
    if layout not in _LAYOUTS:
        raise ValueError(f"{name}: input_layout is {layout!r}; expected one of {', '.join(_LAYOUTS)}")
    rank = 4 if layout in ("BSND", "BNSD") else 3
    if query.dim() != rank or key.dim() != rank:
        shapes = f"query has shape {tuple(query.shape)} and key {tuple(key.shape)}"
        raise ValueError(f"{name}: {shapes}; input_layout {layout} means {rank} dimensions")
    heads_last = {"BSND": 2, "BNSD": 1, "TND": 1}
    heads = query.shape[heads_last[layout]] if layout in heads_last else head_num
    if head_num <= 0 or heads != head_num or (query.shape[-1] % head_num and layout not in heads_last):
        shape = tuple(query.shape)
        raise ValueError(f"{name}: head_num is {head_num}, which does not fit query's shape {shape} as {layout}")
    if not 0.0 < keep_prob <= 1.0:
        raise ValueError(f"{name}: keep_prob is {keep_prob}; expected a number in (0, 1]")
    if sparse_mode not in (*_WHOLE_MASK, _TOP_LEFT_CAUSAL, _BOTTOM_RIGHT_CAUSAL, _BAND, _PREFIX):
        raise NotImplementedError(f"{name}: sparse_mode {sparse_mode} is not implemented; 0 to 6 are")
    if layout == "TND" and (not lengths[0] or not lengths[1] or len(lengths[0]) != len(lengths[1])):
        raise ValueError(
            f"{name}: layout TND needs actual_seq_qlen and actual_seq_kvlen of equal length; got {lengths}"
        )
    for argument, given in unsupported.items():
        if given:
            raise NotImplementedError(f"{name}: the argument {argument} is not implemented; leave it at its default")
    return query.shape[-1] if layout in heads_last else query.shape[-1] // head_num


def npu_fusion_attention(
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
    pre_tockens: int = _ALL,
    next_tockens: int = _ALL,
    inner_precise: int = 0,
    prefix: list[int] | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Tensor | None = None,
    dropout_mask: Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """Attention: ``dropout(softmax(mask(scale * (pse + query @ keyᵀ), atten_mask)), keep_prob) @ value``.

    Args:
        query, key, value: float16, bfloat16 or float32, shaped as ``input_layout`` says: BSH and SBH (H = heads times
            head size), BSND, BNSD, TND (sequences of a batch behind each other). Key and value may have fewer heads.
        head_num: heads of query.
        pse: added to the scores before scaling; broadcasts to (B, N, Sq, Skv).
        atten_mask: true where a query must not see a key; broadcasts to (B, N, Sq, Skv).
        keep_prob: 1 minus the probability of dropout, in (0, 1].
        pre_tockens, next_tockens: keys seen before and after a query's own place.
        prefix: for sparse_mode 6, the keys that all queries of each batch see.
        actual_seq_qlen, actual_seq_kvlen: for TND, where each sequence ends.
        sparse_mode: 0, 1, 5 take ``atten_mask`` as it is; 2 is causal from the first query and key, 3 from the last;
            4 is the band that pre_tockens and next_tockens describe, from the last; 6 is 3 with ``prefix``. From 2 to
            4 and at 6 the values of ``atten_mask`` are not read: CANN takes a compressed triangle there.
        sink: float32 [head_num], a score that takes its share of the softmax and has no value.

    Returns:
        the attention like query; maximum and sum of the softmax, float32 (B, N, Sq, 8), or (T, N, 8) for TND; an empty
        tensor; 0, 0, 0 (seed, offset and size of the dropout mask, which this implementation does not keep).

    Raises:
        ValueError: for arguments that do not fit together.
        NotImplementedError: for sparse modes 7 and 8, padding_mask, dropout_mask, seed, offset, softmax_layout.
    """
    return torch.ops.npu.npu_fusion_attention(
        query, key, value, head_num, input_layout, pse, padding_mask, atten_mask, scale, keep_prob, pre_tockens,
        next_tockens, inner_precise, prefix, actual_seq_qlen, actual_seq_kvlen, sparse_mode, gen_mask_parallel, sync,
        softmax_layout, sink, dropout_mask, seed, offset,
    )  # fmt: skip


@torch.library.impl(_library, "npu_fusion_attention", "CompositeImplicitAutograd")
def _npu_fusion_attention(
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
    pre_tockens: int = _ALL,
    next_tockens: int = _ALL,
    inner_precise: int = 0,
    prefix: list[int] | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Tensor | None = None,
    dropout_mask: Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    unsupported = {
        "padding_mask": padding_mask is not None,
        "dropout_mask": dropout_mask is not None,
        "seed": seed != 0,
        "offset": offset != 0,
        "softmax_layout": softmax_layout != "",
    }
    lengths = (actual_seq_qlen, actual_seq_kvlen)
    head_size = _check(query, key, head_num, input_layout, keep_prob, sparse_mode, lengths, unsupported)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mask = atten_mask
        if input_layout == "TND" and mask is not None:
            mask = mask[: q.shape[2], : k.shape[2]]  # of the longest sequences
        masked = _masked(q.shape[2], k.shape[2], q.device, mask, sparse_mode, pre_tockens, next_tockens, prefix)
        return _attend(q, k, v, pse, masked, scale, keep_prob, sink)

    if input_layout == "TND":
        parts = []
        begin_q = begin_k = 0
        for end_q, end_k in zip(actual_seq_qlen or [], actual_seq_kvlen or [], strict=True):
            sequence = (query[begin_q:end_q], key[begin_k:end_k], value[begin_k:end_k])
            part = attend(*(t.transpose(0, 1)[None] for t in sequence))
            parts.append([t[0].transpose(0, 1) for t in part])
            begin_q, begin_k = end_q, end_k
        out, maximum, total = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    else:
        out, maximum, total = attend(*(_to_bnsd(t, input_layout, head_size) for t in (query, key, value)))
        out = _from_bnsd(out, input_layout)
    # CANN repeats each number eight times, one vector register's block.
    statistics = [t.detach().expand(*t.shape[:-1], 8).contiguous() for t in (maximum, total)]
    return out, statistics[0], statistics[1], query.new_empty(0), 0, 0, 0
