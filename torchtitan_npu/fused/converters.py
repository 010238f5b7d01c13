"""What :func:`torchtitan_npu.optimize` looks for. A converter recognises a module by its parts and offers forwards.

Each offer puts forwards in place of those of the module or of its parts; the one with which the module's results are
what they were on random inputs is kept. Parameters stay where they are, so that loading, saving and training go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchtitan_npu.fused.attention import attention, rotary_embedding
from torchtitan_npu.fused.convolution import conv_batch_norm
from torchtitan_npu.fused.mixture import mixture_of_experts
from torchtitan_npu.fused.offer import Converter, Forward, Offer, Refused


def _of_rows(module: nn.Module, forwards: Sequence[Forward], features: int) -> Offer:
    """Candidates for a module that takes [..., features]."""
    return Offer([{module: f} for f in forwards], (2, 5, features))


def _epsilon(module: nn.Module) -> float | None:
    for name in ("variance_epsilon", "eps", "epsilon", "norm_eps"):
        value = getattr(module, name, None)
        if isinstance(value, float):
            return value
    return None


def rms_norm(module: nn.Module) -> Offer | None:
    """One weight vector and an epsilon: RMSNorm of any library, with gain ``weight`` or ``1 + weight``."""
    parameters = dict(module.named_parameters(recurse=False))
    weight = parameters.get("weight")
    if list(parameters) != ["weight"] or weight is None or weight.dim() != 1 or any(module.children()):
        return None
    if "RMSNorm" not in type(module).__name__ and "RmsNorm" not in type(module).__name__:
        return None
    epsilon = _epsilon(module)
    if epsilon is None:
        raise Refused("it has no epsilon that is a float")

    def plain(x: Tensor) -> Tensor:
        return torch.ops.npu.npu_rms_norm(x, module.weight, epsilon)[0]

    def from_one(x: Tensor) -> Tensor:
        return torch.ops.npu.npu_gemma_rms_norm(x, module.weight, epsilon)[0]

    return _of_rows(module, [plain, from_one], weight.numel())


_GATES: list[Callable[[Tensor], Tensor]] = [
    lambda x: torch.ops.npu.npu_swiglu(x),
    lambda x: torch.ops.npu.npu_geglu(x, -1, 1, True)[0],
    lambda x: torch.ops.npu.npu_geglu(x, -1, 0, True)[0],
]


def _packed(first: nn.Linear, second: nn.Linear) -> Tensor:
    """The weights of two layers in one tensor, of which theirs become views."""
    with torch.no_grad():
        packed = torch.cat((first.weight, second.weight))
        first.weight.data = packed[: first.out_features]
        second.weight.data = packed[first.out_features :]
    return packed


def gated_mlp(module: nn.Module) -> Offer | None:
    """down(activation(gate(x)) * up(x)), Llama's and Qwen's MLP: one product for gate and up, one gated activation."""
    gate, up, down = (getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj"))
    if not (isinstance(gate, nn.Linear) and isinstance(up, nn.Linear) and isinstance(down, nn.Linear)):
        return None
    if gate.bias is not None or up.bias is not None or gate.weight.shape != up.weight.shape:
        raise Refused("gate_proj and up_proj have biases or different shapes")
    if gate.weight.dtype != up.weight.dtype:
        raise Refused("gate_proj and up_proj have different dtypes")
    packed, original = _packed(gate, up), module.forward

    def forward(activate: Callable[[Tensor], Tensor]) -> Forward:
        def run(x: Tensor) -> Tensor:
            if torch.compiler.is_compiling():
                return original(x)  # one kernel behind the products, too; Dynamo compares no addresses
            if gate.weight.data_ptr() != packed.data_ptr() or (torch.is_grad_enabled() and gate.weight.requires_grad):
                both = torch.cat((gate(x), up(x)), -1)  # weights were replaced, or need gradients of their own
            else:
                both = F.linear(x, packed)
            return down(activate(both))

        return run

    return _of_rows(module, [forward(g) for g in _GATES], gate.in_features)


_ACTIVATIONS = ("relu", "gelu_erf", "gelu_tanh", "silu")


def _linear_activation(module: nn.Module, linear: nn.Linear) -> Offer:
    original = module.forward

    def forward(activation: str) -> Forward:
        def run(x: Tensor) -> Tensor:
            if torch.is_grad_enabled() and (x.requires_grad or linear.weight.requires_grad):
                return original(x)  # the operator has no gradient
            return torch.ops.npu.npu_linear_activation(x, linear.weight, linear.bias, activation)

        return run

    return _of_rows(module, [forward(a) for a in _ACTIVATIONS], linear.in_features)


def linear_activation(module: nn.Module) -> Offer | None:
    """A linear layer and an activation, for inference: nn.Sequential of both, BERT's and ViT's intermediate layer."""
    children = list(module.children())
    if isinstance(module, nn.Sequential) and len(children) == 2 and isinstance(children[0], nn.Linear):
        if any(children[1].parameters()):
            return None
        return _linear_activation(module, children[0])
    dense = getattr(module, "dense", None)
    if isinstance(dense, nn.Linear) and callable(getattr(module, "intermediate_act_fn", None)):
        return _linear_activation(module, dense)
    return None


CONVERTERS: dict[str, Converter] = {
    "rms_norm": rms_norm,
    "gated_mlp": gated_mlp,
    "linear_activation": linear_activation,
    "conv_batch_norm": conv_batch_norm,
    "rotary_embedding": rotary_embedding,
    "attention": attention,
    "mixture_of_experts": mixture_of_experts,
}


def candidates(module: nn.Module, names: Sequence[str]) -> Iterator[tuple[str, Offer | str]]:
    """(converter, offer or why it refused) of the converters that recognise the module."""
    for name in names:
        try:
            offer = CONVERTERS[name](module)
        except Refused as reason:
            yield name, str(reason)
            continue
        if offer is not None:
            yield name, offer
