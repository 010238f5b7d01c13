"""Where the operators are found, and that each one is tested."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import torch_npu
from opspec.npu import npu_ops

# Gradients of operators that are tested through autograd, and older names.
INDIRECT = {
    "_npu_attention_dropout_mask", "_npu_dropout_state", "_npu_fusion_attention_grad_masked",
    "fast_gelu", "npu_add_layer_norm_backward", "npu_cross_entropy_loss_backward", "npu_deep_norm_backward",
    "npu_fast_gelu_backward", "npu_fusion_attention_grad", "npu_fusion_attention_grad_v2", "npu_geglu_grad",
    "npu_gelu_backward", "npu_group_norm_swish_grad", "npu_layer_norm_eval", "npu_moe_gating_top_k_backward",
    "npu_moe_token_permute_grad", "npu_moe_token_permute_with_routing_map_grad", "npu_moe_token_unpermute_grad",
    "npu_moe_token_unpermute_with_routing_map_grad", "npu_top_k_top_p_candidates",
    "npu_reshape", "npu_rms_norm_backward", "npu_rotary_mul_backward", "npu_rotary_mul_backward_input",
    "npu_scaled_masked_softmax_backward", "npu_swiglu_backward",
}  # fmt: skip


# torch_npu has a function of its own around the operator.
IN_PYTHON = {"get_npu_format"}


@pytest.mark.parametrize("op", [op.full_name for op in npu_ops()])
def test_operator_is_found_under_both_names(op: str) -> None:
    name, _, overload = op.partition(".")
    if not overload and name not in IN_PYTHON:  # what takes out= has a function in Python
        assert getattr(torch_npu, name) is getattr(torch.ops.npu, name)
    assert str(getattr(getattr(torch.ops.npu, name), overload or "default")._schema).startswith(f"npu::{op}(")


def test_every_operator_is_tested() -> None:
    mentioned: set[str] = set()
    folder = Path(__file__).parent
    for path in [*folder.glob("test_*.py"), *folder.parent.glob("test_*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                mentioned.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and path.name != Path(__file__).name:
                mentioned.add(node.value)
    assert {op.name for op in npu_ops()} - mentioned - INDIRECT == set()


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'npu_nothing'"):
        _ = torch_npu.npu_nothing


def test_operators_add_nothing_to_the_import(run_python: Callable[..., object]) -> None:
    run_python("""
        import sys, torch
        assert not {"torch_npu.optim", "torch_npu.fusion"} & set(sys.modules)
        import torch_npu
        assert torch_npu.npu_rms_norm is torch.ops.npu.npu_rms_norm
        assert torch_npu.optim.NpuFusedAdamW
    """)


def test_names_are_looked_up_once():
    operator = torch_npu.npu_swiglu
    assert vars(torch_npu)["npu_swiglu"] is operator is torch.ops.npu.npu_swiglu
    assert torch_npu.enable_graph is vars(torch_npu)["enable_graph"]
