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
}
namespace avx2 {
extern const AttentionBlockKernels attention_block_kernels;
}
namespace avx512 {
extern const AttentionBlockKernels attention_block_kernels;
}

}  // namespace cann_host::kernels
