"""Operators of Ascend's plug-in that the op table does not call CANN for, composed of operators of ATen.

The plug-in runs most of them over an interface of CANN's that newer products lack; for the others, of new models, CANN
has kernels. Here they work on every device, and one registration (:mod:`torch_npu.composed.registry`) gives them
gradients, captures and ``torch.compile``. docs/composed_operators.md lists them.
"""

from torch_npu.composed import (  # noqa: F401
    aten_gradients,
    attention,
    attention_scores,
    block_quantization,
    block_sparse_attention,
    boxes,
    caches,
    causal_convolution,
    collective_experts,
    collective_products,
    collective_quantized,
    collective_quantized_experts,
    compressed_keys,
    convolution,
    decoding,
    dropout,
    expert_combine,
    expert_parallel,
    experts,
    floyd_attention,
    fused_attention,
    gradients,
    grouped_products,
    grouped_quantization,
    hyper_connections,
    images,
    indexer,
    indexer_losses,
    inference_outputs,
    latent_attention,
    linear_attention,
    losses,
    merging,
    native_sparse_attention,
    normalization,
    normed_quantization,
    optimizers,
    paged_sparse_attention,
    quantization,
    quantized_caches,
    random,
    recurrent,
    regions,
    rotated,
    scaled_products,
    scatter,
    shapes,
    sorting,
    sparse_attention,
    suppression,
    swiglu_quantization,
    written_results,
)
from torch_npu.composed.registry import Composed, operators

__all__ = ["Composed", "operators"]
