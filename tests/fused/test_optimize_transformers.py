"""torchtitan_npu.optimize on models of transformers with random weights: what is swapped, results, undo, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_npu
from torchtitan_npu.fused import Report, optimize

transformers = pytest.importorskip("transformers")

DECODER = {"rms_norm", "gated_mlp", "rotary_embedding"}
SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
# architecture: (sizes of its own, converters that swap)
MODELS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "Llama": ({"vocab_size": 50, "num_key_value_heads": 2}, DECODER),
    "Qwen2": ({"vocab_size": 50, "num_key_value_heads": 2}, DECODER),
    "Qwen3": ({"vocab_size": 50, "num_key_value_heads": 2, "head_dim": 16}, DECODER),
    "Bert": ({"vocab_size": 50}, {"linear_activation"}),
    "ViT": ({"image_size": 16, "patch_size": 8}, {"linear_activation"}),
    "Mixtral": (
        {"vocab_size": 50, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
        {"rms_norm", "rotary_embedding", "mixture_of_experts"},
    ),
    "Qwen3Moe": (
        {"vocab_size": 50, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 24},
        {*DECODER, "mixture_of_experts"},
    ),
}  # fmt: skip


def build(architecture: str, attention: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{architecture}Config")(**SIZES, **MODELS[architecture][0])
    config._attn_implementation = attention
    return getattr(transformers, f"{architecture}Model")(config).eval().to("npu", dtype)


def inputs(architecture: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Two sequences, one of them padded; or an image."""
    if architecture == "ViT":
        return {"pixel_values": torch.randn(1, 3, 16, 16).to("npu", dtype)}
    mask = torch.ones(2, 6, dtype=torch.int64)
    mask[1, 0] = 0
    return {"input_ids": torch.arange(12).view(2, 6).npu(), "attention_mask": mask.npu()}


def kept(report: Report) -> set[str]:
    return {s.converter for s in report.swaps if s.kept}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("architecture", MODELS)
def test_eager_models(architecture: str, dtype: torch.dtype) -> None:
    """With eager attention everything is swapped; results stay, and undo brings them back bit by bit."""
    model, arguments = build(architecture, "eager", dtype), inputs(architecture, dtype)
    with torch.no_grad():
        expected = model(**arguments).last_hidden_state
        report = optimize(model)
        assert kept(report) == MODELS[architecture][1] | {"attention"}, str(report)
        torch_npu.clear_native_calls()
        actual = model(**arguments).last_hidden_state
        calls = torch_npu.native_calls()
        tolerance = 1e-4 if dtype is torch.float32 else 0.1
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
        assert calls["aclnnFlashAttentionScoreV2"] == 1
        assert calls.get("aclnnRotaryPositionEmbedding", 0) == (2 if "rotary_embedding" in kept(report) else 0)
        report.undo()
        assert torch.equal(model(**arguments).last_hidden_state, expected)


@pytest.mark.parametrize("architecture", ["Llama", "Bert"])
def test_fused_attention_is_left_alone(architecture: str) -> None:
    model = build(architecture, "sdpa")
    report = optimize(model, ["attention"])
    assert kept(report) == set()
    assert all("one operator already" in s.reason for s in report.swaps)


def test_other_signatures_are_refused() -> None:
    config = transformers.Gemma2Config(**SIZES, vocab_size=50, num_key_value_heads=2, head_dim=16)
    config._attn_implementation = "eager"
    report = optimize(transformers.Gemma2Model(config).eval().npu(), ["attention"])
    assert "takes module, query, key, value, attention_mask, dropout, scaling" in report.swaps[0].reason


def test_attention_weights_on_request() -> None:
    """Who asks for them gets them, from the model's own attention."""
    model, arguments = build("Llama", "eager"), inputs("Llama")
    with torch.no_grad():
        expected = model(**arguments, output_attentions=True).attentions
        optimize(model)
        actual = model(**arguments, output_attentions=True).attentions
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-4, atol=1e-5)


def test_gradients_go_through() -> None:
    model, twin = build("Llama", "eager"), build("Llama", "eager")
    arguments = {"input_ids": inputs("Llama")["input_ids"]}
    optimize(model)
    for m in (model.train(), twin.train()):
        m(**arguments).last_hidden_state.square().sum().backward()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3)


def test_generation_with_a_cache() -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, **MODELS["Llama"][0])
    config._attn_implementation = "eager"
    model = transformers.LlamaForCausalLM(config).eval().npu()
    ids = torch.arange(5).view(1, 5).npu()
    expected = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
    optimize(model)
    assert torch.equal(model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0), expected)


def test_experts_of_one_token() -> None:
    """Decoding: most experts have no rows."""
    model = build("Mixtral", "sdpa")
    arguments = {"input_ids": torch.tensor([[7]]).npu()}
    with torch.no_grad():
        expected = model(**arguments, output_router_logits=True)
        optimize(model, ["mixture_of_experts"])
        torch_npu.clear_native_calls()
        actual = model(**arguments, output_router_logits=True)
    assert torch_npu.native_calls()["aclnnGroupedMatmulV4"] == 3
    torch.testing.assert_close(actual.last_hidden_state, expected.last_hidden_state, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(actual.router_logits[0], expected.router_logits[0])


def test_shared_experts() -> None:
    block = transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock
    torch.manual_seed(0)
    config = transformers.Qwen2MoeConfig(
        **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=40
    )
    module, x = block(config).npu(), torch.randn(2, 3, 32).npu()
    with torch.no_grad():
        expected = module(x)
        assert kept(optimize(module, ["mixture_of_experts"])) == {"mixture_of_experts"}
        torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # Dynamo traces a whole model
def test_compiled_models_use_the_swaps() -> None:
    """Dynamo must see the fused functions, not those of the module that forward came from."""
    model, arguments = build("Llama", "eager"), {"input_ids": torch.arange(6).view(1, 6).npu()}
    with torch.no_grad():
        expected = model(**arguments).last_hidden_state
        optimize(model, ["rotary_embedding", "attention"])
        graphs: list[str] = []

        def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
            graphs.append(graph.code)
            return graph

        actual = torch.compile(model, backend=backend)(**arguments).last_hidden_state
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert any("npu_rotary_mul" in code for code in graphs)
    assert any("scaled_dot_product_attention" in code for code in graphs)
