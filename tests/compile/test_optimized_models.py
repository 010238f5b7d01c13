"""Models whose modules torchtitan_npu.optimize has exchanged, compiled: one graph without a break."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tolerance import assert_close

import torchtitan_npu
from torchtitan_npu.compile import fallbacks, reports

transformers = pytest.importorskip("transformers")

EXPERTS = {"num_experts_per_tok": 2, "num_hidden_layers": 1}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 1},
    "mixtral": {**EXPERTS, "num_local_experts": 4},
    "qwen2_moe": {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24},
    "qwen3_moe": {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 24, "head_dim": 16},
}


@pytest.mark.parametrize("name", MODELS)
def test_is_one_graph(name: str) -> None:
    """Neither the number of an expert's tokens nor the address of a weight is asked for."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.AutoConfig.for_model(name, vocab_size=50, **sizes, **MODELS[name])
    model = transformers.AutoModel.from_config(config).eval()
    index = torch.arange(12).view(2, 6)
    with torch.no_grad():
        expected = model.double()(index).last_hidden_state
        model.float().npu()
        assert any(swap.kept for swap in torchtitan_npu.optimize(model).swaps)
        compiled = torch.compile(model, backend="npu", fullgraph=True)
        for _ in range(3):
            assert_close(compiled(index.npu()).last_hidden_state, expected, terms=1024)
    assert len(reports()) == 1
    assert not fallbacks()
