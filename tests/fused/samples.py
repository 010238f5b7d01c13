"""One call of every operator of ``torch.ops.npu``: arguments on the CPU, other ones for each seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Call = tuple[tuple[Any, ...], dict[str, Any]]


def r(*shape: int) -> Tensor:
    return torch.randn(shape)


def positive(*shape: int) -> Tensor:
    return torch.rand(shape) + 0.5


def whole(high: int, *shape: int, low: int = 0, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(low, high, shape, dtype=dtype)


def int8(*shape: int) -> Tensor:
    return whole(128, *shape, low=-128, dtype=torch.int8)


def places(count: int) -> Tensor:
    return torch.randperm(count).int()


def routing_map(tokens: int, experts: int) -> Tensor:
    """Two experts for each token."""
    chosen = torch.rand(tokens, experts).topk(2).indices
    return torch.zeros(tokens, experts, dtype=torch.bool).scatter(1, chosen, True)


def angles(*shape: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines whose halves are equal."""
    half = r(*shape[:-1], shape[-1] // 2)
    both = torch.cat((half, half), -1)
    return both.cos(), both.sin()


def call(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


def heads() -> tuple[Tensor, Tensor, Tensor]:
    return r(2, 4, 5, 16), r(2, 2, 7, 16), r(2, 2, 7, 16)


def attention_gradient(**more: Any) -> Call:
    q, k, v = heads()
    out, lse = r(2, 4, 5, 16), r(2, 4, 5, 1).expand(2, 4, 5, 8).contiguous()
    statistics = {"softmax_max": lse, "softmax_sum": torch.ones(2, 4, 5, 8), "attention_in": out}
    return call(q, k, v, r(2, 4, 5, 16), 4, "BNSD", scale_value=0.25, **statistics, **more)


def latent_cache(**more: Any) -> Call:
    """Keys of latent attention, as npu_kv_rmsnorm_rope_cache takes them."""
    caches = (torch.zeros(2, 1, 9, 16), torch.zeros(2, 1, 9, 32))
    index = torch.stack([torch.randperm(9)[:3] for _ in range(2)])
    return call(r(2, 1, 3, 48), r(32), *angles(2, 1, 3, 16), index, *caches, is_output_kv=True, **more)


def boxes(count: int) -> Tensor:
    corner = torch.rand(count, 2) * 10
    return torch.cat((corner, corner + torch.rand(count, 2) * 5 + 1), 1)


def convolution() -> tuple[Tensor, Tensor, Tensor]:
    return r(2, 3, 8, 9), r(4, 3, 3, 3), r(4)


SAMPLES: dict[str, Callable[[], Call]] = {
    # activation
    "npu_swiglu": lambda: call(r(5, 34)),
    "npu_swiglu_backward": lambda: call(r(5, 17), r(5, 34)),
    "npu_geglu": lambda: call(r(5, 34)),
    "npu_geglu_grad": lambda: call(r(5, 17), r(5, 34), r(5, 17)),
    "npu_gelu": lambda: call(r(5, 33)),
    "npu_gelu_backward": lambda: call(r(5, 33), r(5, 33)),
    "npu_gelu_mul": lambda: call(r(5, 34)),
    "npu_fast_gelu": lambda: call(r(5, 33)),
    "fast_gelu": lambda: call(r(5, 33)),
    "npu_fast_gelu_backward": lambda: call(r(5, 33), r(5, 33)),
    "npu_silu": lambda: call(r(5, 33)),
    "npu_mish": lambda: call(r(5, 33)),
    "npu_scaled_masked_softmax": lambda: call(r(2, 3, 5, 7), torch.rand(2, 1, 5, 7) < 0.3, 0.5),
    "npu_scaled_masked_softmax_backward": lambda: call(
        r(2, 3, 5, 7), positive(2, 3, 5, 7), torch.rand(2, 1, 5, 7) < 0.3, 0.5, False
    ),
    "npu_masked_softmax_with_rel_pos_bias": lambda: call(r(6, 4, 5, 7), r(3, 5, 7), r(4, 5, 7), 0.5),
    "npu_swiglu_quant": lambda: call(
        r(5, 24), smooth_scales=positive(2, 12), group_index=torch.tensor([2, 5], dtype=torch.int32), quant_mode=1
    ),
    "npu_gelu_quant": lambda: call(r(5, 16)),
    "npu_clipped_swiglu": lambda: call(r(5, 24), group_index=torch.tensor([1, 3])),
    "npu_group_quant": lambda: call(r(5, 16), r(2, 16) * 20, torch.tensor([2, 5])),
    "npu_quant_scatter_": lambda: call(
        int8(3, 9, 16), whole(6, 2, dtype=torch.int32), r(2, 4, 16).half(), positive(16) / 20
    ),
    "npu_quant_scatter": lambda: call(
        int8(3, 9, 16), whole(6, 2, dtype=torch.int32), r(2, 4, 16).half(), positive(16) / 20
    ),
    # attention
    "_npu_dropout_gen_mask": lambda: call(r(3), [2, 3, 5, 7], 0.4, 12, 8),
    "_npu_dropout_state": lambda: call(r(3)),
    "_npu_attention_dropout_mask": lambda: call(
        *heads()[:2], whole(99, 1), whole(99, 1), 4, "BNSD", 0.7
    ),
    "_npu_fusion_attention_grad_masked": lambda: call(
        *heads(), r(2, 4, 5, 16), whole(256, 48, dtype=torch.uint8), 4, "BNSD", softmax_max=r(2, 4, 5, 8),
        softmax_sum=positive(2, 4, 5, 8), attention_in=r(2, 4, 5, 16), keep_prob=0.7,
    ),
    "npu_fusion_attention": lambda: call(*heads(), 4, "BNSD", scale=0.25),
    "npu_fusion_attention_grad": attention_gradient,
    "npu_fusion_attention_v2": lambda: call(*heads(), 4, "BNSD", scale=0.25, atten_mask=torch.rand(2, 1, 5, 7) < 0.3),
    "npu_fusion_attention_grad_v2": attention_gradient,
    "npu_fused_infer_attention_score": lambda: call(
        *heads(), num_heads=4, num_key_value_heads=2, input_layout="BNSD", scale=0.25, softmax_lse_flag=True
    ),
    "npu_fused_infer_attention_score_v2": lambda: call(
        *heads(), num_query_heads=4, num_key_value_heads=2, input_layout="BNSD", return_softmax_lse=True
    ),
    "npu_incre_flash_attention": lambda: call(
        r(2, 4, 1, 16), *heads()[1:], num_heads=4, num_key_value_heads=2, input_layout="BNSD"
    ),
    "npu_prompt_flash_attention": lambda: call(
        *heads(), num_heads=4, num_key_value_heads=2, input_layout="BNSD", next_tokens=2147483647
    ),
    # recurrent layers
    "_recurrent_layer": lambda: call(r(5, 3, 28), r(28, 7), None, r(3, 7), r(3, 7), "LSTM", True, True),
    "_recurrent_layer_backward": lambda: call(
        r(5, 3, 7), None, r(5, 3, 7), r(21, 7), r(3, 7), None, r(0), r(5, 3, 28), "GRU", False
    ),
    # inference
    "npu_cross_entropy_loss": lambda: call(
        r(5, 11), whole(11, 5), lse_square_scale_for_zloss=0.1, return_zloss=True
    ),
    "npu_cross_entropy_loss_backward": lambda: call(r(1), r(5, 11).log_softmax(-1), whole(11, 5)),
    "npu_fused_linear_online_max_sum": lambda: call(
        r(5, 8).half(), r(11, 8).half(), whole(30, 5), 7, 17, return_logits=True
    ),
    "npu_fused_cross_entropy_loss_with_max_sum": lambda: call(
        positive(5) * 5, positive(5), r(5), vocab_parallel_logits=r(5, 11)
    ),
    "npu_fused_linear_cross_entropy_loss_with_max_sum_backward": lambda: call(
        r(5), r(5, 8).half(), r(11, 8).half(), whole(256, 1, dtype=torch.uint8), whole(11, 5),
        logits_max=positive(5) * 5, sum_exp_logits=positive(5),
    ),
    "npu_top_k_top_p": lambda: call(r(4, 20), torch.rand(4), whole(20, 4, low=1, dtype=torch.int32)),
    "npu_top_k_top_p_candidates": lambda: call(
        r(4, 20), whole(20, 4, dtype=torch.int32), torch.rand(4), positive(4, 20)
    ),
    "npu_top_k_top_p_sample": lambda: call(r(4, 20), whole(20, 4, dtype=torch.int32), torch.rand(4), positive(4, 20)),
    "npu_scatter_pa_kv_cache": lambda: call(
        r(5, 2, 16), r(5, 2, 16), torch.zeros(3, 2, 4, 16), torch.zeros(3, 2, 4, 16), torch.randperm(12)[:5]
    ),
    "npu_kv_rmsnorm_rope_cache_v2": latent_cache,
    "npu_kv_rmsnorm_rope_cache": latent_cache,
    # linear
    "npu_linear": lambda: call(r(2, 5, 9), r(7, 9), r(7)),
    "npu_fused_matmul": lambda: call(r(5, 9), r(9, 7), bias=r(7), fused_op_type="relu"),
    "npu_linear_activation": lambda: call(r(5, 9), r(7, 9), r(7), "silu"),
    "npu_ffn": lambda: call(r(5, 9), r(9, 12), r(6, 8), "swiglu"),
    "npu_transpose_batchmatmul": lambda: call(r(5, 4, 6), r(4, 6, 3), perm_x1=[1, 0, 2]),
    "npu_bmmV2": lambda: call(r(2, 5, 9), r(2, 9, 4), []),
    "npu_transpose": lambda: call(r(2, 3, 4), [2, 0, 1]),
    "npu_confusion_transpose": lambda: call(r(2, 3, 4, 5), [0, 2, 1, 3], [2, 4, 15], True),
    "npu_dtype_cast": lambda: call(r(5, 9), torch.float16),
    "npu_format_cast": lambda: call(r(5, 9), 2),
    "_npu_format_cast": lambda: call(r(5, 9), 2),
    "npu_conv2d": lambda: call(*convolution(), [1, 1], [1, 1], [1, 1], 1),
    "npu_slice": lambda: call(r(4, 6), [1, 2], [2, 3]),
    "npu_broadcast": lambda: call(r(1, 6), [3, 6]),
    "npu_reshape": lambda: call(r(4, 6), [3, 8]),
    # mixture of experts
    "npu_moe_gating_top_k_softmax": lambda: call(r(6, 9), None, 3),
    "npu_moe_gating_top_k": lambda: call(r(6, 8), 2, bias=r(8), k_group=1, group_count=2, norm_type=1, out_flag=True),
    "npu_moe_compute_expert_tokens": lambda: call(whole(6, 9, dtype=torch.int32).sort().values, 6),
    "npu_moe_token_permute": lambda: call(r(7, 12), whole(4, 7, 3)),
    "npu_moe_token_permute_grad": lambda: call(r(7, 12), r(21, 12), whole(4, 7, 3), places(21)),
    "npu_moe_token_unpermute": lambda: call(r(21, 12), places(21), positive(7, 3)),
    "npu_moe_token_unpermute_grad": lambda: call(r(21, 12), r(7, 12), places(21), positive(7, 3)),
    "npu_moe_init_routing_v2": lambda: call(
        r(7, 12), whole(4, 7, 3, dtype=torch.int32), active_num=21, expert_num=4, expert_tokens_num_type=1,
        expert_tokens_num_flag=True, quant_mode=1,
    ),
    "npu_moe_finalize_routing": lambda: call(
        r(21, 12), r(7, 12), None, None, positive(7, 3), places(21), None, drop_pad_mode=2
    ),
    "npu_grouped_matmul": lambda: call(
        [r(9, 5)], [r(3, 5, 4)], group_list=torch.cat((whole(10, 2).sort().values, torch.tensor([9]))), group_type=0,
        split_item=3,
    ),
    "npu_moe_gating_top_k_backward": lambda: call(
        torch.rand(6, 8), r(6, 2), whole(8, 6, 2, dtype=torch.int32), norm_type=1
    ),
    "npu_moe_gating_top_k_softmax_v2": lambda: call(r(6, 9), k=3, output_softmax=True),
    "npu_moe_token_permute_with_routing_map": lambda: call(
        r(7, 12), routing_map(7, 5), probs=r(7, 5), num_out_tokens=14
    ),
    "npu_moe_token_permute_with_routing_map_grad": lambda: call(
        r(14, 12), r(14), places(14), routing_map(7, 5), 5, 7, False
    ),
    "_npu_moe_token_unpermute_with_routing_map": lambda: call(
        r(14, 12), places(14), [7, 12], probs=r(7, 5), routing_map=routing_map(7, 5)
    ),
    "npu_moe_token_unpermute_with_routing_map": lambda: call(
        r(15, 12), whole(7, 15, dtype=torch.int32), [7, 12], probs=r(7, 5), drop_and_pad=True
    ),
    "npu_moe_token_unpermute_with_routing_map_grad": lambda: call(
        r(7, 12), places(14), places(14), routing_map(7, 5), r(14, 12), r(7, 5), False, [7, 12]
    ),
    "npu_moe_re_routing": lambda: call(
        r(13, 4).half(), torch.tensor([[2, 0, 3], [1, 4, 0], [0, 1, 2]]), per_token_scales=r(13)
    ),
    "npu_moe_init_routing": lambda: call(r(7, 12), places(21).view(7, 3), whole(4, 7, 3, dtype=torch.int32), 5),
    "npu_grouped_matmul_add": lambda: call(r(2, 5, 4), r(9, 5).half(), r(9, 4).half(), torch.tensor([4, 9])),
    "npu_grouped_matmul_add_": lambda: call(r(2, 5, 4), r(9, 5).half(), r(9, 4).half(), torch.tensor([4, 9])),
    "npu_grouped_matmul_finalize_routing": lambda: call(
        int8(9, 16), int8(2, 16, 8), torch.tensor([4, 5]), scale=positive(2, 8), pertoken_scale=positive(9), logit=r(9),
        row_index=places(9), shared_input=r(3, 8).bfloat16(),
    ),
    "npu_grouped_matmul_swiglu_quant": lambda: call(
        int8(9, 16), int8(2, 16, 8), torch.tensor([4, 9]), positive(2, 8), positive(9)
    ),
    "npu_grouped_matmul_swiglu_quant_v2": lambda: call(
        int8(9, 16), [int8(2, 16, 8)], [positive(2, 8)], positive(9), torch.tensor([4, 9])
    ),
    # norm
    "npu_rms_norm_quant": lambda: call(r(3, 16), r(16), r(16), positive(1) * 20, r(1)),
    "npu_add_rms_norm_quant": lambda: call(r(3, 33), r(3, 33), r(33), positive(33), None, r(33)),
    "npu_add_rms_norm_dynamic_quant": lambda: call(
        r(3, 33), r(3, 33), r(33), smooth_scale1=positive(33), smooth_scale2=positive(33)
    ),
    "npu_add_rms_norm_v2": lambda: call(r(3, 33), r(3, 33), r(33)),
    "npu_add_rms_norm_v2_functional": lambda: call(r(3, 33), r(3, 33), r(33)),
    "npu_group_norm_swish": lambda: call(r(2, 6, 5), 3, r(6), r(6)),
    "npu_group_norm_swish_grad": lambda: call(
        r(2, 6, 5), r(2, 6, 5), 3, r(6), r(6), r(2, 3), positive(2, 3), [True, True, True]
    ),
    "npu_rms_norm": lambda: call(r(3, 33), r(33)),
    "npu_rms_norm_backward": lambda: call(r(3, 33), r(3, 33), r(33), positive(3, 1)),
    "npu_gemma_rms_norm": lambda: call(r(3, 33), r(33)),
    "npu_add_rms_norm": lambda: call(r(3, 33), r(3, 33), r(33)),
    "npu_add_rms_norm_cast": lambda: call(r(3, 33), r(3, 33), r(33)),
    "npu_add_layer_norm": lambda: call(r(3, 33), r(3, 33), r(33), r(33), 1e-5, True),
    "npu_add_layer_norm_backward": lambda: call(
        r(3, 33), r(3, 33), r(3, 33), positive(3, 1), r(3, 1), r(33), r(3, 33)
    ),
    "npu_deep_norm": lambda: call(r(3, 33), r(3, 33), r(33), r(33)),
    "npu_deep_norm_backward": lambda: call(r(3, 33), r(3, 33), r(3, 33), r(33), r(3, 1), positive(3, 1)),
    "npu_group_norm_silu": lambda: call(r(2, 6, 5), r(6), r(6), 3),
    "npu_layer_norm_eval": lambda: call(r(3, 33), [33], r(33), r(33)),
    # quantization
    "npu_quantize": lambda: call(r(5, 16), positive(16), None, torch.qint8, 1),
    "npu_dynamic_quant": lambda: call(r(5, 16), smooth_scales=positive(16)),
    "npu_dynamic_quant_asymmetric": lambda: call(r(5, 16)),
    "npu_anti_quant": lambda: call(int8(5, 16), positive(16)),
    "npu_trans_quant_param": lambda: call(positive(16), r(16)),
    "npu_quant_matmul": lambda: call(int8(5, 16), int8(16, 24), positive(24), output_dtype=torch.float16),
    "npu_dequant_bias": lambda: call(whole(99, 5, 7, dtype=torch.int32), positive(7), positive(5), r(7)),
    "npu_quant_matmul_dequant": lambda: call(r(5, 16).half(), int8(24, 16), positive(24)),
    "npu_quant_grouped_matmul_dequant": lambda: call(
        r(5, 16).half(), int8(3, 24, 16), positive(3, 24), torch.tensor([2, 2, 4])
    ),
    "npu_weight_quant_batchmatmul": lambda: call(r(5, 16), int8(16, 24), positive(24), r(24)),
    "npu_convert_weight_to_int4pack": lambda: call(whole(8, 5, 16, low=-8, dtype=torch.int32)),
    "npu_dequant_swiglu_quant": lambda: call(
        whole(999, 5, 32, low=-999, dtype=torch.int32), weight_scale=positive(32), activation_scale=positive(5),
        quant_mode=1,
    ),
    # rotary
    "npu_rotary_mul": lambda: call(r(2, 5, 3, 16), *angles(1, 5, 1, 16)),
    "npu_rotary_mul_backward_input": lambda: call(r(2, 5, 3, 16), *angles(1, 5, 1, 16)),
    "npu_rotary_mul_backward": lambda: call(r(2, 5, 3, 16), r(2, 5, 3, 16), *angles(1, 5, 1, 16)),
    "npu_apply_rotary_pos_emb": lambda: call(r(2, 5, 4, 16), r(2, 5, 2, 16), *angles(2, 5, 1, 16)),
    "npu_interleave_rope": lambda: call(r(2, 3, 5, 16), *angles(2, 1, 5, 16)),
    "npu_mrope": lambda: call(
        whole(9, 3, 5), r(5, 48), r(5, 32), r(9, 12), 16, mrope_section=[2, 1, 3], rotary_mode="interleave"
    ),
    # vision
    "npu_iou": lambda: call(boxes(5), boxes(7)),
    "npu_giou": lambda: call(boxes(5).T.contiguous(), boxes(7).T.contiguous(), is_cross=True),
    "npu_diou": lambda: call(boxes(5).T.contiguous(), boxes(5).T.contiguous()),
    "npu_ciou": lambda: call(boxes(5).T.contiguous(), boxes(5).T.contiguous(), is_cross=False),
    "npu_roi_align": lambda: call(
        r(2, 3, 8, 8), torch.cat((whole(2, 4, 1).float(), boxes(4) / 3), 1), 1.0, 2, 2, 2, 0
    ),
    "npu_nms_v4": lambda: call(boxes(9), torch.rand(9), 5, torch.tensor(0.3), torch.tensor(0.1)),
    "npu_conv2d_batch_norm": lambda: call(
        *convolution(), r(4), positive(4), r(4), r(4), padding=[1, 1], residual=r(2, 4, 8, 9), activation="relu"
    ),
    "npu_conv2d_pack_weight": lambda: call(r(4, 3, 3, 3), [2, 3, 8, 9], padding=[1, 1]),
    "npu_conv2d_packed": lambda: call(
        r(2, 3, 8, 9), r(4, 3, 3, 3), [4, 3, 3, 3], r(4), padding=[1, 1], residual=r(2, 4, 8, 9), activation="relu"
    ),
    # optimizers
    "npu_apply_adam_w.out": lambda: call(
        0.9, 0.99, 0.1, 0.01, 0.9, 0.99, 1e-8, r(5, 9), None, False, False, var=r(5, 9), m=r(5, 9), v=positive(5, 9)
    ),
}  # fmt: skip


def sample(op: str, seed: int) -> Call:
    """The call of an operator (with its overload), other values for each seed."""
    torch.manual_seed(seed)
    return SAMPLES[op]()
