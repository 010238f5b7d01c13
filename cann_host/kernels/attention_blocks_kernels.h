#pragma once

#include "cann_host/kernels/attention_blocks.h"

namespace cann_host::kernels {

struct AttentionBlockKernels {
  ByType<void (*)(const SoftmaxBlock&)> softmax;
  ByType<void (*)(const ScoreGradientBlock&)> score_gradient;
  ByType<void (*)(const ConvertRows&)> convert;
  ByType<void (*)(const RowProducts&)> row_products;
  ByType<void (*)(const PackRows&)> pack;
};

namespace baseline {
extern const AttentionBlockKernels attention_block_kernels;
/// Of bfloat16, for processors that convert pairs of vectors; null for instruction sets that never do.
extern void (*const softmax_by_pairs)(const SoftmaxBlock&);
}  // namespace baseline
namespace avx2 {
extern const AttentionBlockKernels attention_block_kernels;
/// Of bfloat16, for processors that convert pairs of vectors; null for instruction sets that never do.
extern void (*const softmax_by_pairs)(const SoftmaxBlock&);
}  // namespace avx2
namespace avx512 {
extern const AttentionBlockKernels attention_block_kernels;
/// Of bfloat16, for processors that convert pairs of vectors; null for instruction sets that never do.
extern void (*const softmax_by_pairs)(const SoftmaxBlock&);
}  // namespace avx512

}  // namespace cann_host::kernels
