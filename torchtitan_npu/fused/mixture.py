"""The converter of mixtures of experts: routing, grouped products and the way back as one operator each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchtitan_npu.fused.offer import Forward, Offer, Refused

# gate, up and down: down(activation(gate(x)) * up(x)).
_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))

_Layers = tuple[list[nn.Linear], list[nn.Linear], list[nn.Linear]]

_ACTIVATIONS: list[Callable[[Tensor], Tensor]] = [F.silu, lambda x: F.gelu(x, approximate="tanh"), F.gelu]


def _layers(expert: nn.Module) -> tuple[nn.Linear, nn.Linear, nn.Linear] | None:
    for names in _NAMES:
        found = [getattr(expert, n, None) for n in names]
        if all(isinstance(layer, nn.Linear) for layer in found):
            return found[0], found[1], found[2]  # type: ignore[return-value]
    return None


def _grouped(x: Tensor, layers: list[nn.Linear], counts: Tensor) -> Tensor:
    """Rows of x, sorted by expert, by the layer of each."""
    weights = [layer.weight.t() for layer in layers]
    options = {"group_list": counts, "group_list_type": 1, "group_type": 0, "split_item": 3}
    return torch.ops.npu.npu_grouped_matmul([x], weights, **options)[0]


def _wants_gradient(module: Any, x: Tensor) -> bool:
    return torch.is_grad_enabled() and (x.requires_grad or module.gate.weight.requires_grad)


def _fused(module: Any, layers: _Layers, activation: int, returns_logits: bool, x: Tensor) -> Any:
    """What the block computes, without gradients; ``activation`` is a number of ``_ACTIVATIONS``."""
    gates, ups, downs = layers
    number, rows = len(gates), x.reshape(-1, x.shape[-1])
    logits = module.gate(rows)
    weights, chosen, _ = torch.ops.npu.npu_moe_gating_top_k_softmax(logits.float(), None, module.top_k)
    if getattr(module, "norm_topk_prob", True):
        weights = weights / weights.sum(-1, keepdim=True)
    expanded, places, counts, _ = torch.ops.npu.npu_moe_init_routing_v2(
        rows, chosen, active_num=chosen.numel(), expert_num=number, expert_tokens_num_type=1,
        expert_tokens_num_flag=True, active_expert_range=[0, number],
    )  # fmt: skip
    hidden = _ACTIVATIONS[activation](_grouped(expanded, gates, counts)) * _grouped(expanded, ups, counts)
    y = torch.ops.npu.npu_moe_finalize_routing(
        _grouped(hidden, downs, counts), None, None, None, weights.to(x.dtype), places, None, drop_pad_mode=2
    )
    shared, shared_gate = getattr(module, "shared_expert", None), getattr(module, "shared_expert_gate", None)
    if shared is not None and shared_gate is not None:
        y = y + shared_gate(rows).sigmoid() * shared(rows)
    y = y.view_as(x)
    return (y, logits) if returns_logits else y


def _all_layers(experts: Any) -> _Layers:
    """Of all experts the gates, the ups and the downs. Raises Refused where one is no gated MLP without biases."""
    found = [_layers(e) for e in experts]
    known = [of_one for of_one in found if of_one is not None]
    if len(known) != len(found):
        raise Refused("its experts are not gated MLPs with gate_proj, up_proj and down_proj (or w1, w3 and w2)")
    if any(layer.bias is not None for of_one in known for layer in of_one):
        raise Refused("its experts have biases")
    gates, ups, downs = (list(column) for column in zip(*known, strict=True))
    return gates, ups, downs


def mixture_of_experts(module: nn.Module) -> Offer | None:
    """transformers' sparse blocks (Mixtral, Qwen, OLMoE): a ``gate``, ``experts`` with gated MLPs and ``top_k``."""
    gate, experts, top_k = (getattr(module, n, None) for n in ("gate", "experts", "top_k"))
    if not (isinstance(gate, nn.Linear) and isinstance(experts, nn.ModuleList) and isinstance(top_k, int)):
        return None
    layers, original = _all_layers(experts), module.forward

    def forward(activation: int, returns_logits: bool) -> Forward:
        def run(x: Tensor) -> Any:
            if _wants_gradient(module, x):
                return original(x)  # grouped products have no gradient
            return _fused(module, layers, activation, returns_logits, x)

        run.choice = (activation, returns_logits)  # type: ignore[attr-defined]
        return run

    candidates = [{module: forward(a, logits)} for a, logits in product(range(len(_ACTIVATIONS)), (True, False))]
    return Offer(candidates, (2, 5, gate.in_features), units=32, half_units=32)


def traceable(self: Any, x: Tensor) -> Any:
    """A forward for blocks whose ``_npu_mixture`` is a choice: fused where Dynamo traces it, and else the class's.

    It holds nothing of the block, so that copies of the block, also pickled ones, have their own.
    """
    if not torch.compiler.is_compiling() or _wants_gradient(self, x):
        return type(self).forward(self, x)
    activation, returns_logits = self._npu_mixture
    return _fused(self, _all_layers(self.experts), activation, returns_logits, x)


traceable.__name__ = "forward"  # by which pickle finds a method of an instance again: the class's
