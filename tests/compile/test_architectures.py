"""Tiny models of transformers' architectures: the compiled model on npu gives what eager gives on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tolerance import assert_close
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    GemmaConfig,
    GemmaModel,
    GPT2Config,
    GPT2Model,
    GPTNeoXConfig,
    GPTNeoXModel,
    LlamaConfig,
    LlamaModel,
    MistralConfig,
    MistralModel,
    OPTConfig,
    OPTModel,
    PhiConfig,
    PhiModel,
    Qwen2Config,
    Qwen2Model,
    ResNetConfig,
    ResNetModel,
    RobertaConfig,
    RobertaModel,
    ViTConfig,
    ViTModel,
)

from torchtitan_npu.compile import counters, fallbacks

SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99,
    "max_position_embeddings": 64,
}  # fmt: skip
GROUPED: dict[str, Any] = {**SMALL, "num_key_value_heads": 2}

LANGUAGE = {
    "albert": lambda: AlbertModel(AlbertConfig(**SMALL, embedding_size=16)),
    "bert": lambda: BertModel(BertConfig(**SMALL)),
    "distilbert": lambda: DistilBertModel(
        DistilBertConfig(vocab_size=99, dim=32, hidden_dim=64, n_layers=2, n_heads=4)
    ),
    "gemma": lambda: GemmaModel(GemmaConfig(**GROUPED, head_dim=8)),
    "gpt2": lambda: GPT2Model(GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64)),
    "gpt_neox": lambda: GPTNeoXModel(GPTNeoXConfig(**SMALL)),
    "llama": lambda: LlamaModel(LlamaConfig(**GROUPED)),
    "mistral": lambda: MistralModel(MistralConfig(**GROUPED)),
    "opt": lambda: OPTModel(
        OPTConfig(vocab_size=99, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4,
                  max_position_embeddings=64, word_embed_proj_dim=32)
    ),
    "phi": lambda: PhiModel(PhiConfig(**SMALL)),
    "qwen2": lambda: Qwen2Model(Qwen2Config(**GROUPED)),
    "roberta": lambda: RobertaModel(RobertaConfig(**SMALL)),
}  # fmt: skip
VISION = {
    "resnet": lambda: ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])),
    "vit": lambda: ViTModel(
        ViTConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=32,
            patch_size=8,
        )
    ),
}


def check(model: torch.nn.Module, **inputs: Any) -> None:
    model = model.eval()
    ours = copy.deepcopy(model).npu()
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
        compiled = torch.compile(ours, backend="npu")
        actual = compiled(**{k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in inputs.items()})
    assert_close(actual.last_hidden_state, expected, terms=512)
    assert not fallbacks()
    assert counters["kernels"]


@pytest.mark.slow
@pytest.mark.parametrize("name", LANGUAGE)
def test_language_model(name: str) -> None:
    tokens = torch.randint(0, 99, (2, 11))
    options = {"use_cache": False} if name not in ("albert", "bert", "distilbert", "roberta") else {}
    check(LANGUAGE[name](), input_ids=tokens, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", VISION)
def test_vision_model(name: str) -> None:
    check(VISION[name](), pixel_values=torch.randn(2, 3, 32, 32))
