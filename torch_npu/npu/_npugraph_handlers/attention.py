"""Attention over a growing cache, whose lengths change from replay to replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_npu.npu._npugraph_handlers.npugraph_handler import (
    NpuGraphOpHandler,
    UpdateSpec,
    register_npu_graph_handler,
)


def _overloads(name: str, specs: list[UpdateSpec]) -> dict[str, list[UpdateSpec]]:
    return {name + overload: specs for overload in ("", ".default", ".out")}


_V1 = _overloads(
    "npu_fused_infer_attention_score", [("arg", 5, "actual_seq_lengths"), ("arg", 6, "actual_seq_lengths_kv")]
)
_V2 = _overloads("npu_fused_infer_attention_score_v2", [("arg", 7, "actual_seq_qlen"), ("arg", 8, "actual_seq_kvlen")])


@register_npu_graph_handler([*_V1, *_V2])
class FusedInferAttentionHandler(NpuGraphOpHandler):
    """Records the overload ``.out``, with results and workspace that stay for later updates."""

    UPDATE_SPECS = {**_V1, **_V2}

    @classmethod
    def prepare_capture(
        cls, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        if "out" in kwargs:
            return func, args, kwargs
        name = str(func.__name__).removesuffix(".default")
        workspace = getattr(torch.ops.npu, f"_{name}_get_max_workspace")(*args, **kwargs)
        out = [torch.empty_like(result, device=args[0].device) for result in _meta_results(func, args, kwargs)]
        return getattr(torch.ops.npu, name).out, args, {**kwargs, "workspace": workspace, "out": out}

    @classmethod
    def postprocess_result(cls, result: Any, kwargs: dict[str, Any]) -> Any:
        return kwargs["out"]


def _meta_results(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """What the call returns, without memory."""
    on_meta = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
    return list(func(*on_meta[0], **on_meta[1]))


@register_npu_graph_handler(["_npu_paged_attention.default", "npu_multi_head_latent_attention.out"])
class PagedAttentionHandler(NpuGraphOpHandler):
    """Operators of Ascend's transformer library: this package's own, and those that other packages bring."""

    UPDATE_SPECS = {
        "_npu_paged_attention.default": [("arg", 7, "context_lens")],
        "npu_multi_head_latent_attention.out": [("arg", 5, "context_lens")],
    }

    @classmethod
    def prepare_capture(
        cls, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        if func is not torch.ops.npu._npu_paged_attention.default or kwargs.get("workspace") is not None:
            return func, args, kwargs
        workspace = torch.ops.npu._npu_paged_attention_get_workspace(*args)
        return func, args, {**kwargs, "workspace": workspace}
