"""Mixtures of experts as transformers writes them, compiled without torchtitan_npu.optimize: one graph."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tolerance import assert_close
from torch import Tensor, nn

import torchtitan_npu.compile
from torchtitan_npu.compile import fallbacks, reports, swaps

transformers = pytest.importorskip("transformers")

EXPERTS = {"num_experts_per_tok": 2, "num_hidden_layers": 2}
MODELS: dict[str, dict[str, Any]] = {
    "mixtral": {**EXPERTS, "num_local_experts": 4},
    "olmoe": {**EXPERTS, "num_experts": 4},
    "qwen2_moe": {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24},
    "qwen3_moe": {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 24, "head_dim": 16},
}
INDEX = torch.arange(14).view(2, 7)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def make(name: str) -> nn.Module:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.AutoConfig.for_model(name, vocab_size=50, **sizes, **MODELS[name])
    return transformers.AutoModel.from_config(config).eval()


def blocks(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if isinstance(getattr(m, "experts", None), nn.ModuleList)]


def run(model: Any) -> Tensor:
    return model(INDEX.npu()).last_hidden_state


@pytest.mark.parametrize("name", MODELS)
def test_is_one_graph(name: str) -> None:
    model = make(name)
    expected = model.double()(INDEX).last_hidden_state
    compiled = torch.compile(model.float().npu(), backend="npu", fullgraph=True)
    for _ in range(3):
        assert_close(run(compiled), expected, terms=1024)
    assert [r.passes["fuse_mixtures"] for r in reports()] == [2]
    assert [s.kept for s in swaps()] == [True, True]
    assert not fallbacks()


def test_eager_mode_runs_the_forward_of_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("mixtral").npu()
    run(torch.compile(model, backend="npu"))
    block, called = blocks(model)[0], []
    original = type(block).forward
    monkeypatch.setattr(type(block), "forward", lambda self, x: (called.append(self), original(self, x))[1])
    run(model)
    assert called == blocks(model)


@pytest.mark.parametrize("through", ["deepcopy", "pickle"])
def test_copies_have_weights_of_their_own(through: str) -> None:
    block = blocks(make("mixtral"))[0].npu()
    x = torch.randn(3, 5, 32)
    torch.compile(block, backend="npu")(x.npu())
    if through == "deepcopy":
        other = copy.deepcopy(block)
    else:
        torch.save(block, file := io.BytesIO())
        file.seek(0)
        other = torch.load(file, weights_only=False)
    for weight in other.parameters():
        weight.mul_(1.5)
    expected = copy.deepcopy(other).cpu().double()(x.double())[0]
    assert_close(other(x.npu())[0], expected, terms=1024)
    assert_close(torch.compile(other, backend="npu", fullgraph=True)(x.npu())[0], expected, terms=1024)


def test_switched_off_and_other_backends() -> None:
    """Both trace the forward of the class, which breaks the graph."""
    model = make("mixtral").npu()
    torch.compile(model, backend="npu", fullgraph=True)(INDEX.npu())
    off = torch.compile(model, backend="npu", options={"passes": {"fuse_mixtures": False}})
    torchtitan_npu.compile.reset()
    torch._dynamo.reset_code_caches()
    run(off)
    assert len(reports()) > 1
    assert not any(r.passes.get("fuse_mixtures") for r in reports())
    with pytest.raises(Exception, match="data-dependent"):
        torch.compile(model, backend="eager", fullgraph=True)(INDEX.npu())


def test_gradients_are_those_of_the_loop() -> None:
    model = make("mixtral")
    expected = copy.deepcopy(model).double()
    model.npu()
    compiled = torch.compile(model, backend="npu")
    run(compiled)
    with torch.enable_grad():
        expected(INDEX).last_hidden_state.sum().backward()
        run(compiled).sum().backward()
    for actual, wanted in zip(model.parameters(), expected.parameters(), strict=True):
        if wanted.grad is not None:
            assert_close(actual.grad, wanted.grad, terms=1024)


def test_why_a_block_stays_a_loop() -> None:
    block = blocks(make("mixtral"))[0].npu()
    block.experts[0].w1 = nn.Linear(32, 48).npu()
    torch.compile(block, backend="npu")(torch.randn(3, 5, 32).npu())
    (swap,) = swaps()
    assert swap.reason == "its experts have biases"
