// Flash attention of many queries, of 16-bit floats above all: matrix products of blocks by oneDNN's kernels,
// as PyTorch ships them, with softmax between them while the blocks are in the cache.
#pragma once

#include "cann_host/opapi/attention.h"

namespace cann_host {

/// Whether the processor has the products, and the attention is of their types and layout. float32 is left to
/// others, unless the maxima of scores are wanted.
bool takes_blocks(const Attention& a, bool wants_maximum = false);

/// `bias` [batch, heads, queries, keys] in float32 with neighbouring keys, or undefined. Without regard to
/// what `a` says beside is_causal() and the scale.
AttentionResult attend_in_blocks(const Attention& a, const at::Tensor& bias);

/// Gradients of query, key and value, without a bias; rows that saw nothing have the log-sum-exp -inf.
AttentionGradient attend_backward_in_blocks(const Attention& a, const at::Tensor& grad,
                                            const AttentionResult& result);

}  // namespace cann_host
