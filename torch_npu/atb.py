"""``torch_npu.atb``: operators of Ascend's transformer library (ATB) that its plug-in has as ``torch.ops.atb``.

That library is no part of CANN's operators; here its operators are calls of CANN's own. More of them, under names of
``torch.ops.npu``, are in ``npu/paged_attention.py`` and ``npu/transformer_library.py``; ``npu/biased_attention.py`` has
the rest of ``torch.ops.atb``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_npu.npu import biased_attention as biased_attention

_library = torch.library.Library("atb", "FRAGMENT")

_CACHES = "Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor context_lens, *"
_STARTS = "Tensor? seq_starts=None, bool cumsum=False"
_PAGED = "Tensor query, Tensor key_cache, Tensor block_table, SymInt[] context_lens, *"
_MASKED = (
    "Tensor? value_cache=None, Tensor? mask=None, int num_kv_heads=0, int num_heads=0, float scale_value=1.0, "
    "int mask_type=0"
)
_LATENT = (
    "Tensor q_nope, Tensor q_rope, Tensor ctkv, Tensor k_rope, Tensor block_tables, SymInt[] context_lens, "
    "int q_headnum, float qk_scale, int kv_headnum"
)
_MODES = (
    "Tensor? mask=None, SymInt[]? qseqlen=None, Tensor? qk_descale=None, Tensor? pv_descale=None, "
    "str? mask_type=None, str? calc_type=None, str? cache_mode=None"
)
_ALIBI = 2  # a mask_type: what is added to the scores


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__") or not hasattr(torch.ops.atb, name):
        raise AttributeError(f"module 'torch_npu.atb' has no attribute {name!r}")
    return getattr(torch.ops.atb, name)


def load_pages_into(
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    seq_starts: Tensor | None = None,
    cumsum: bool = False,
    key: Tensor,
    value: Tensor,
) -> tuple[Tensor, Tensor]:
    """``npu_paged_cache_load`` into tensors of the caller's.

    Args:
        key_cache, value_cache: [blocks, block size, heads, size].
        block_table: int32 [sequences, blocks]: where each sequence's tokens are.
        context_lens: int32 [sequences], how many tokens each has; with cumsum [sequences + 1], where they start.
        seq_starts: int32 [sequences]: from which token on, in whole blocks.
        key, value: [tokens, heads, size], are written, one sequence after another.
    """
    torch.ops.npu.npu_gather_pa_kv_cache(
        key_cache, value_cache, block_table, context_lens, key, value, seq_offset=seq_starts, is_seq_lens_cumsum=cumsum
    )
    return key, value


def load_pages(
    key_cache: Tensor, value_cache: Tensor, block_table: Tensor, context_lens: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    """``npu_paged_cache_load`` into new tensors; the host waits for how many tokens there are."""
    if key_cache.dim() != 4 or value_cache.dim() != 4:
        shapes = [list(key_cache.shape), list(value_cache.shape)]
        raise ValueError(f"npu_paged_cache_load: expected caches [blocks, block size, heads, size], got {shapes}")
    tokens = int(context_lens[-1] if options.get("cumsum") else context_lens.sum())
    made = [cache.new_empty(tokens, *cache.shape[2:]) for cache in (key_cache, value_cache)]
    return load_pages_into(key_cache, value_cache, block_table, context_lens, key=made[0], value=made[1], **options)


def _decoding(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    lengths: list[int],
    heads: int,
    key_heads: int,
    scale: float,
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Arguments of ``npu_fused_infer_attention_score`` for one query a sequence, [sequences, heads, size]."""
    if query.dim() != 3 or key.dim() != 4 or value.dim() != 4 or len(lengths) != len(query):
        seen = [list(t.shape) for t in (query, key, value)]
        raise ValueError(
            "paged attention: expected query [sequences, heads, size], caches [blocks, block size, heads, size] and a "
            f"length for each sequence, got {seen} and {len(lengths)} lengths"
        )
    return (query.unsqueeze(1), key.flatten(2), value.flatten(2)), {
        "actual_seq_lengths_kv": list(lengths), "block_table": table, "block_size": key.shape[1], "num_heads": heads,
        "num_key_value_heads": key_heads, "scale": scale, "input_layout": "BSND",
    }  # fmt: skip


def _masked(
    query: Tensor,
    key_cache: Tensor,
    block_table: Tensor,
    context_lens: list[int],
    *,
    value_cache: Tensor | None = None,
    mask: Tensor | None = None,
    num_kv_heads: int = 0,
    num_heads: int = 0,
    scale_value: float = 1.0,
    mask_type: int = 0,
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    if value_cache is None or mask_type not in (0, _ALIBI) or (mask is None) != (mask_type == 0):
        seen = [value_cache is not None, mask_type, mask is not None]
        raise ValueError(
            "_npu_paged_attention_v2: expected value_cache, and mask_type 0 without or 2 with a mask "
            f"[sequences, heads, 1, keys] that is added to the scores; got value_cache, mask_type and mask {seen}"
        )
    tensors, options = _decoding(
        query, key_cache, value_cache, block_table, context_lens, num_heads, num_kv_heads, scale_value
    )
    return tensors, options if mask is None else options | {"pse_shift": mask}


def paged_attention(*arguments: Any, workspace: Tensor | None = None, out: Tensor, **options: Any) -> Tensor:
    """``_npu_paged_attention_v2``: attention of the newest token of each sequence over its cached keys, into out.

    query and out are [sequences, num_heads, size], caches [blocks, block size, num_kv_heads, size]; context_lens are
    numbers, how many keys of each sequence count. mask_type 2: mask is added to the scores.
    """
    tensors, given = _masked(*arguments, **options)
    statistics = torch.empty(1, dtype=torch.float32, device=out.device)  # not asked for, and not written
    torch.ops.npu.npu_fused_infer_attention_score.out(
        *tensors, **given, workspace=workspace, out=[out.unsqueeze(1), statistics]
    )
    return out


def paged_attention_workspace(*arguments: Any, out: Tensor, **options: Any) -> Tensor:
    """What :func:`paged_attention` takes as ``workspace`` in graphs that are updated."""
    tensors, given = _masked(*arguments, **options)
    return torch.ops.npu._npu_fused_infer_attention_score_get_max_workspace(*tensors, **given)


def _latent(
    arguments: tuple[Any, ...], return_lse: bool, modes: dict[str, Any]
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Arguments of ``npu_fused_infer_attention_score`` for those of ``npu_multi_head_latent_attention``."""
    q_nope, q_rope, ctkv, k_rope, block_tables, context_lens, q_headnum, qk_scale, kv_headnum = arguments[:9]
    neutral = {
        "qseqlen": (None, [1] * len(q_nope)), "mask_type": (None, "undefined"), "cache_mode": (None, "krope_ctkv"),
        "calc_type": (None, "calc_type_undefined", "calc_type_ring"),
    }  # fmt: skip
    others = {name: mode for name, mode in modes.items() if mode not in neutral.get(name, (None,))}
    if others:
        raise NotImplementedError(
            "npu_multi_head_latent_attention: one query a sequence, unquantized and without a mask, is supported; got "
            + ", ".join(others)
        )
    tensors, options = _decoding(q_nope, ctkv, ctkv, block_tables, context_lens, q_headnum, kv_headnum, qk_scale)
    rotated = {"query_rope": q_rope.unsqueeze(1), "key_rope": k_rope.flatten(2)}
    return tensors, options | rotated | {"softmax_lse_flag": return_lse}


def latent_attention_into(
    *arguments: Any, workspace: Tensor | None = None, output: Tensor, lse: Tensor | None = None, **modes: Any
) -> Any:
    """``npu_multi_head_latent_attention`` into tensors of the caller's.

    Args:
        q_nope, q_rope: [sequences, q_headnum, size], which are attended as if concatenated; output is like q_nope.
        ctkv, k_rope: [blocks, block size, kv_headnum, size], likewise the keys; ctkv are the values.
        block_tables, context_lens: as for ``_npu_paged_attention_v2``.
        return_lse, lse: whether log(sum(exp(scores))) is wanted, [sequences, q_headnum, 1].
    """
    tensors, options = _latent(arguments, lse is not None, modes)
    shape = (*output.shape[:2], 1, 1) if lse is not None else (1,)
    statistics = torch.empty(shape, dtype=torch.float32, device=output.device)
    torch.ops.npu.npu_fused_infer_attention_score.out(
        *tensors, **options, workspace=workspace, out=[output.unsqueeze(1), statistics]
    )
    if lse is None:
        return output
    lse.copy_(statistics.squeeze(-1))
    return output, lse


def latent_attention(*arguments: Any, **modes: Any) -> Any:
    """``npu_multi_head_latent_attention`` into new tensors; a tenth argument asks for log(sum(exp(scores))), too."""
    q_nope, q_rope = arguments[:2]
    output = torch.empty_like(q_nope, dtype=q_rope.dtype)
    lse = output.new_empty(*output.shape[:2], 1) if len(arguments) > 9 else None
    return latent_attention_into(*arguments, output=output, lse=lse, **modes)


def latent_attention_workspace(*arguments: Any, **modes: Any) -> Tensor:
    """What :func:`latent_attention_into` takes as ``workspace`` in graphs that are updated."""
    tensors, options = _latent(arguments, True, modes)
    return torch.ops.npu._npu_fused_infer_attention_score_get_max_workspace(*tensors, **options)


def _made(q_nope: Tensor, q_rope: Tensor, *rest: Any, **_: Any) -> Any:
    """What :func:`latent_attention` returns, without values."""
    output = torch.empty_like(q_nope, dtype=q_rope.dtype)
    return (output, output.new_empty(*output.shape[:2], 1)) if len(rest) > 7 else output


_WRITTEN = "Tensor(a!) key, Tensor(b!) value) -> (Tensor(a!), Tensor(b!))"
_OPERATORS: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
    f"npu_paged_cache_load.out({_CACHES}, {_STARTS}, {_WRITTEN}": (
        load_pages_into,
        lambda *_, key, value, **__: (key, value),
    ),
    f"npu_paged_cache_load({_CACHES}, {_STARTS}) -> (Tensor, Tensor)": (load_pages, None),  # sizes are values
    f"_npu_paged_attention_v2.out({_PAGED}, {_MASKED}, Tensor? workspace=None, Tensor(a!) out) -> Tensor(a!)": (
        paged_attention,
        lambda *_, out, **__: out,
    ),
    f"_npu_paged_attention_v2_get_workspace({_PAGED}, {_MASKED}, Tensor(a!) out) -> Tensor": (
        paged_attention_workspace,
        None,
    ),
    f"npu_multi_head_latent_attention({_LATENT}, *, {_MODES}) -> Tensor": (latent_attention, _made),
    f"npu_multi_head_latent_attention.out({_LATENT}, *, {_MODES}, Tensor(a!) output) -> Tensor(a!)": (
        latent_attention_into,
        lambda *_, output, **__: output,
    ),
    f"npu_multi_head_latent_attention.lse({_LATENT}, bool return_lse, *, {_MODES}, Tensor? workspace=None) -> "
    "(Tensor, Tensor)": (latent_attention, _made),
    f"_npu_multi_head_latent_attention_get_workspace.lse({_LATENT}, bool return_lse, *, {_MODES}) -> Tensor": (
        latent_attention_workspace,
        None,
    ),
    f"npu_multi_head_latent_attention.lse_out({_LATENT}, bool return_lse, *, {_MODES}, Tensor? workspace=None, "
    "Tensor(a!) output, Tensor(b!) lse) -> (Tensor(a!), Tensor(b!))": (
        latent_attention_into,
        lambda *_, output, lse, **__: (output, lse),
    ),
}
for _schema, (_function, _meta) in _OPERATORS.items():
    _library.define(_schema)
    _name = _schema.partition("(")[0]
    _library.impl(_name, _function, "PrivateUse1")
    if _meta is not None:
        _library.impl(_name, _meta, "Meta")
