"""Tiny models and data for the tests with real libraries. No code of theirs names the device; nothing is downloaded."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from collections.abc import Callable, Iterator

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

VOCABULARY = 96


def _bert() -> nn.Module:
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
            max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3,
        )
    )  # fmt: skip


def _gpt2() -> nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        )
    )  # fmt: skip


def _llama() -> nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        )
    )  # fmt: skip


_MODELS = {"bert": _bert, "gpt2": _gpt2, "llama": _llama}


@pytest.fixture(scope="session")
def tiny() -> Callable[[str], nn.Module]:
    """``tiny("bert" | "gpt2" | "llama")``: two layers, no dropout, the same random weights each time."""

    def make(name: str) -> nn.Module:
        torch.manual_seed(0)
        return _MODELS[name]()

    return make


@pytest.fixture(scope="session")
def examples() -> Callable[[str], list[dict]]:
    """``examples("bert" | "gpt2" | "llama")``: 16 sequences of 12 tokens as a Trainer or DataLoader takes them.

    Each stands there four times, so that a few steps suffice to learn them.
    """

    def make(name: str) -> list[dict]:
        generator = torch.Generator().manual_seed(1)
        tokens = torch.randint(3, VOCABULARY, (4, 12), generator=generator).repeat(4, 1)
        labels = tokens[:, 0] % 3 if name == "bert" else tokens
        mask = torch.ones_like(tokens)
        mask[::3, 9:] = 0
        rows = zip(tokens, mask, labels, strict=True)
        return [{"input_ids": t, "attention_mask": m, "labels": label} for t, m, label in rows]

    return make


@pytest.fixture(autouse=True)
def fresh_accelerate() -> Iterator[Callable[[], None]]:
    """Makes accelerate choose its device anew; for tests that run on both, callable between the two."""

    def reset() -> None:
        AcceleratorState._reset_state(True)
        PartialState._reset_state()
        GradientState._reset_state()
        for name in ("ACCELERATE_USE_CPU", "ACCELERATE_MIXED_PRECISION"):
            os.environ.pop(name, None)

    reset()
    yield reset
    reset()
