"""Converters of attention modules: rotary embedding and eager attention, which models write as functions."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchtitan_npu.fused.offer import Forward, Offer, Refused
from torchtitan_npu.fused.rebinding import global_function, innermost, with_functions

_TOKENS = 6  # of the sample
_BATCH = 2


def _projection(module: nn.Module) -> nn.Linear:
    """The first linear layer, which takes the hidden states."""
    for child in module.children():
        if isinstance(child, nn.Linear):
            return child
    raise Refused("it has no linear layer of its own, whose input would tell the size of the hidden states")


def _causal() -> Tensor:
    """An additive mask as models make it: causal, and one token of padding."""
    hidden = torch.ones(_TOKENS, _TOKENS).triu(1).bool().repeat(_BATCH, 1, 1, 1)
    hidden[1, :, 1:, 0] = True
    return torch.zeros(_BATCH, 1, _TOKENS, _TOKENS).masked_fill(hidden, torch.finfo(torch.float16).min)


def _arguments(module: nn.Module) -> dict[str, Any]:
    """A call of the module's forward, made up by the names of its arguments."""
    generator = torch.Generator().manual_seed(0)
    features = _projection(module).in_features
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(innermost(module.forward)).parameters.items():
        if name == "self" or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if name == "hidden_states":
            arguments[name] = torch.randn(_BATCH, _TOKENS, features, generator=generator)
        elif name == "position_embeddings":
            size = getattr(module, "head_dim", None)
            if not isinstance(size, int):
                raise Refused("it has no head_dim, the size of its position embeddings")
            angles = torch.randn(_BATCH, _TOKENS, size // 2, generator=generator).repeat(1, 1, 2)
            arguments[name] = (angles.cos(), angles.sin())
        elif name == "attention_mask":
            arguments[name] = _causal()
        elif parameter.default is parameter.empty:
            raise Refused(f"its forward needs {name}, which optimize cannot make up")
    return arguments


# ---- Rotary embedding


def _fused_rotary(original: Callable[..., Any], mode: str) -> Callable[..., Any]:
    def apply_rotary_pos_emb(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor | None = None, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        """The embedding of whole heads by one operator each; of parts of heads as the model has it."""
        if q.dim() != 4 or cos.dim() != 3 or not cos.shape[-1] == q.shape[-1] == k.shape[-1]:
            return original(q, k, cos, sin, position_ids, unsqueeze_dim)
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return torch.ops.npu.npu_rotary_mul(q, cos, sin, mode), torch.ops.npu.npu_rotary_mul(k, cos, sin, mode)

    return apply_rotary_pos_emb


def rotary_embedding(module: nn.Module) -> Offer | None:
    """A forward that calls ``apply_rotary_pos_emb(q, k, cos, sin)``, as transformers' decoders do."""
    name = "apply_rotary_pos_emb"
    original = global_function(module.forward, name)
    if original is None:
        return None
    if list(inspect.signature(original).parameters)[:4] != ["q", "k", "cos", "sin"]:
        raise Refused(f"{name} takes {', '.join(inspect.signature(original).parameters)}; expected q, k, cos, sin")
    forwards = [with_functions(module.forward, {name: _fused_rotary(original, m)}) for m in ("half", "interleave")]
    return Offer([{module: f} for f in forwards], _arguments(module), half_units=16, builds_on_forward=True)


# ---- Attention

_EAGER = ["module", "query", "key", "value", "attention_mask", "scaling", "dropout"]  # first arguments of the function


def _fused_attention(original: Callable[..., Any], takes_mask: bool) -> Callable[..., Any]:
    def eager_attention_forward(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float,
        dropout: float = 0.0, **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """One operator; the model's own way where weights are wanted or dropped, or what it adds is not known."""
        config = getattr(module, "config", None)
        if (
            (dropout and module.training)
            or (attention_mask is not None and not takes_mask)
            or kwargs.get("output_attentions", getattr(config, "output_attentions", False))
            or any(kwargs.get(name) is not None for name in ("head_mask", "position_bias", "s_aux", "softcap"))
        ):
            return original(module, query, key, value, attention_mask, scaling, dropout=dropout, **kwargs)
        if attention_mask is not None:
            attention_mask = attention_mask[..., : key.shape[-2]]
        out = F.scaled_dot_product_attention(
            query, key, value, attention_mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
        )
        return out.transpose(1, 2).contiguous(), None

    return eager_attention_forward


def _by_projections(module: nn.Module, heads: int, query: nn.Linear, key: nn.Linear, value: nn.Linear) -> Forward:
    """BERT's attention: its forward where anything but hidden states and a mask comes."""
    original = module.forward

    def forward(hidden_states: Tensor, attention_mask: Tensor | None = None, *more: Any, **named: Any) -> Any:
        dropout = getattr(module, "dropout", None)
        dropped = module.training and isinstance(dropout, nn.Dropout) and dropout.p > 0
        if dropped or any(v is not None and v is not False for v in (*more, *named.values())):
            return original(hidden_states, attention_mask, *more, **named)
        q, k, v = (layer(hidden_states).unflatten(-1, (heads, -1)).transpose(1, 2) for layer in (query, key, value))
        out = F.scaled_dot_product_attention(q, k, v, attention_mask, scale=1 / math.sqrt(q.shape[-1]))
        return out.transpose(1, 2).flatten(2), None

    return forward


def attention(module: nn.Module) -> Offer | None:
    """Eager attention: transformers' ``eager_attention_forward``, or BERT's query, key and value layers."""
    name = "eager_attention_forward"
    original = global_function(module.forward, name)
    if original is not None:
        chosen = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if chosen != "eager":
            raise Refused(f"its attention is {chosen}, not eager; scaled_dot_product_attention is one operator already")
        names = list(inspect.signature(original).parameters)
        if names[: len(_EAGER)] != _EAGER:
            raise Refused(f"its {name} takes {', '.join(names)}; expected {', '.join(_EAGER)}")
        arguments = _arguments(module)
        fused = _fused_attention(original, "attention_mask" in arguments)
        swap = {module: with_functions(module.forward, {name: fused})}
        return Offer([swap], arguments, units=64, half_units=32, builds_on_forward=True)
    query, key, value, heads = (getattr(module, n, None) for n in ("query", "key", "value", "num_attention_heads"))
    if not (isinstance(query, nn.Linear) and isinstance(key, nn.Linear) and isinstance(value, nn.Linear)):
        return None
    if not isinstance(heads, int):
        return None
    if "scaled_dot_product_attention" in innermost(module.forward).__code__.co_names:
        raise Refused("its attention is scaled_dot_product_attention, which is one operator already")
    swap = {module: _by_projections(module, heads, query, key, value)}
    return Offer([swap], _arguments(module), units=64, half_units=32, builds_on_forward=True)
