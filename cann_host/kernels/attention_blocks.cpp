#include "cann_host/kernels/attention_blocks.h"

#include "cann_host/kernels/attention_blocks_kernels.h"
#include "cann_host/kernels/isa.h"

namespace cann_host::kernels {
namespace {

const AttentionBlockKernels& block_kernels() noexcept {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::avx512:
      return avx512::attention_block_kernels;
    case Isa::avx2:
      return avx2::attention_block_kernels;
    case Isa::baseline:
      break;
  }
#endif
  return baseline::attention_block_kernels;
}

}  // namespace

void softmax_block(const SoftmaxBlock& a) {
#if defined(__x86_64__)
  if (a.type == DataType::bfloat16 && active_isa() == Isa::avx512 && __builtin_cpu_supports("avx512bf16"))
    return avx512::softmax_by_pairs(a);
#endif
  block_kernels().softmax[a.type](a);
}

void score_gradient_block(const ScoreGradientBlock& a) { block_kernels().score_gradient[a.type](a); }

void convert_rows(const ConvertRows& a) { block_kernels().convert[a.type](a); }

void row_products(const RowProducts& a) { block_kernels().row_products[a.type](a); }

void pack_rows(const PackRows& a) { block_kernels().pack[a.from](a); }

}  // namespace cann_host::kernels
