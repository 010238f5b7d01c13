"""Tiny models of transformers' architectures: the compiled model on npu gives what eager gives on the CPU.

None of them runs a graph as it is; :data:`GRAPH_BREAKS` and :data:`ON_THE_CPU` say what is not one graph on the device.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tolerance import assert_close
from transformers import AutoConfig, AutoModel

import torch_npu
from torchtitan_npu.compile import counters, fallbacks

SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 99,
    "max_position_embeddings": 64,
}  # fmt: skip
GROUPED: dict[str, Any] = {**SMALL, "num_key_value_heads": 2}

LANGUAGE: dict[str, dict[str, Any]] = {
    "albert": {**SMALL, "embedding_size": 16},
    "bart": {
        "vocab_size": 99, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
    },
    "bert": SMALL,
    "bloom": {"hidden_size": 32, "n_layer": 1, "n_head": 4, "vocab_size": 99},
    "cohere": GROUPED,
    "convbert": {**SMALL, "embedding_size": 32},
    "deberta-v2": SMALL,
    "distilbert": {"vocab_size": 99, "dim": 32, "hidden_dim": 64, "n_layers": 1, "n_heads": 4},
    "electra": {**SMALL, "embedding_size": 16},
    "falcon": {**SMALL, "ffn_hidden_size": 64},
    "gemma": {**GROUPED, "head_dim": 8},
    "gemma2": {**GROUPED, "head_dim": 8},
    "gpt2": {"vocab_size": 99, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64},
    "gpt_neox": SMALL,
    "gptj": {"vocab_size": 99, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64, "rotary_dim": 4},
    "granite": GROUPED,
    "llama": GROUPED,
    "mistral": GROUPED,
    "mixtral": {**GROUPED, "num_local_experts": 4},
    "mpnet": SMALL,
    "olmo": GROUPED,
    "opt": {
        "vocab_size": 99, "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "max_position_embeddings": 64, "word_embed_proj_dim": 32,
    },
    "phi": SMALL,
    "phi3": {**GROUPED, "pad_token_id": 0},
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 8},
    "roberta": SMALL,
    "stablelm": GROUPED,
    "xglm": {"vocab_size": 99, "d_model": 32, "ffn_dim": 64, "num_layers": 1, "attention_heads": 4},
}  # fmt: skip
VISION: dict[str, dict[str, Any]] = {
    "convnext": {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "image_size": 32},
    "deit": {**SMALL, "image_size": 32, "patch_size": 8},
    "dinov2": {**SMALL, "image_size": 32, "patch_size": 8},
    "mobilenet_v2": {"depth_multiplier": 0.25, "image_size": 32},
    "regnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 8},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    "swin": {
        "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4,
    },
    "vit": {**SMALL, "image_size": 32, "patch_size": 8},
}  # fmt: skip
GRAPH_BREAKS = {"mixtral": "aten.nonzero.default"}
"""What Dynamo cannot trace: an expert takes its tokens, whose number depends on data."""
ON_THE_CPU = {"mixtral": {"aten::_assert_async.msg"}}
"""Operators that run there."""


def build(name: str, settings: dict[str, Any]) -> torch.nn.Module:
    """A tiny model without dropout, whose batch norms use their running statistics."""
    config = AutoConfig.for_model(name, **settings)
    for key in vars(config):
        if "drop" in key and isinstance(getattr(config, key), float):
            setattr(config, key, 0.0)
    torch.manual_seed(0)
    model: torch.nn.Module = AutoModel.from_config(config)
    for key, parameter in model.named_parameters():
        if "embeddings" in key and not parameter.any():  # a norm of zeros makes large numbers of roundings
            torch.nn.init.normal_(parameter, std=0.02)
    return model.eval()


def last_hidden_state(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    hidden: torch.Tensor = model(**inputs).last_hidden_state
    return hidden


def check(name: str, model: torch.nn.Module, **inputs: Any) -> None:
    """Values, and the gradients of all parameters for one loss."""
    torch._dynamo.utils.counters.clear()
    torch_npu.clear_fallback_report()
    ours = copy.deepcopy(model).npu()
    expected = last_hidden_state(model, inputs)
    weights = torch.randn(expected.shape)
    (expected * weights).sum().backward()
    compiled = torch.compile(ours, backend="npu")
    given = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}
    with torch.no_grad():
        assert_close(last_hidden_state(compiled, given), expected, terms=512)
    actual = last_hidden_state(compiled, given)
    assert_close(actual, expected, terms=512)
    (actual * weights.npu()).sum().backward()
    for (key, a), b in zip(model.named_parameters(), ours.parameters(), strict=True):
        if b.grad is None:
            assert a.grad is None, key
        else:  # AOTAutograd gives zeros to what only an unused output depends on
            expected_grad = torch.zeros_like(a) if a.grad is None else a.grad
            assert_close(b.grad, expected_grad, terms=4096, msg=lambda text, key=key: f"{key}: {text}")
    assert not fallbacks()
    breaks = list(torch._dynamo.utils.counters["graph_break"])
    assert bool(breaks) == (name in GRAPH_BREAKS)
    assert all(GRAPH_BREAKS[name] in why for why in breaks)
    assert {entry.op for entry in torch_npu.fallback_report()} == ON_THE_CPU.get(name, set())
    assert counters["kernels"]


@pytest.mark.slow
@pytest.mark.parametrize("name", LANGUAGE)
def test_language_model(name: str) -> None:
    check(name, build(name, LANGUAGE[name]), input_ids=torch.randint(1, 99, (2, 11)))


@pytest.mark.slow
@pytest.mark.parametrize("name", VISION)
def test_vision_model(name: str) -> None:
    check(name, build(name, VISION[name]), pixel_values=torch.randn(2, 3, 32, 32))
