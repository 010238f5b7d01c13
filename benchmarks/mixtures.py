"""Mixtures of experts of transformers, compiled with and without the pass that makes them one graph."""

from __future__ import annotations

import copy

import torch
import transformers

from benchmarks.timing import Contest, Work

WIDTH, EXPERTS, TOKENS, WORDS = 256, 8, 64, 1000
COMMON = {
    "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8,
    "vocab_size": WORDS, "intermediate_size": 2 * WIDTH, "num_experts_per_tok": 2,
}  # fmt: skip
KINDS = {
    "mixtral": {"num_local_experts": EXPERTS},
    "qwen2_moe": {
        "num_experts": EXPERTS, "moe_intermediate_size": 2 * WIDTH, "shared_expert_intermediate_size": 2 * WIDTH,
    },
}  # fmt: skip


def ways(kind: str) -> dict[str, Work]:
    config = transformers.AutoConfig.for_model(kind, **COMMON, **KINDS[kind])
    model = transformers.AutoModel.from_config(config).eval()
    words = torch.randint(0, WORDS, (1, TOKENS))
    eager, there = copy.deepcopy(model).npu(), words.npu()
    torch._dynamo.reset()

    def compiled(fused: bool) -> Work:
        ours = copy.deepcopy(model).npu()
        options = {"passes": {"fuse_mixtures": fused}}
        call = torch.compile(ours, backend="npu", dynamic=False, options=options)
        return lambda: call(there)

    return {
        "cpu eager": lambda: model(words),
        "npu eager": lambda: eager(there),
        "npu, without fuse_mixtures": compiled(False),
        "npu": compiled(True),
    }


def cases() -> list[Contest]:
    return [Contest(f"mixtures: {kind}", "mixtures", lambda kind=kind: ways(kind), {}) for kind in KINDS]
