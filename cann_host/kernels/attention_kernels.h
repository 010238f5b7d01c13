#pragma once

#include "cann_host/kernels/attention.h"

namespace cann_host::kernels {

/// Keys that are scored before their values are added up. Of few rows they are read once, and the longer they
/// are read in one piece the better; for many, scores and one block of keys stay in the L1 cache.
constexpr int64_t attention_block(int64_t rows) { return rows <= 4 ? 256 : 64; }

/// Floats of scratch memory that a DecodeKernel needs for `rows` queries.
constexpr int64_t attention_scratch(int64_t rows, int64_t head_size, int64_t value_size) {
  constexpr int64_t padding = 32;  // up to whole vectors, two by two
  return rows * (head_size + value_size + 2 * padding + attention_block(rows) + 2);
}

/// Works on pairs of sequence and key head [begin, end), on the calling thread.
using DecodeKernel = void (*)(const DecodeAttention&, int64_t begin, int64_t end, float* scratch);

namespace baseline {
extern const ByType<DecodeKernel> decode_kernels;
}
namespace avx2 {
extern const ByType<DecodeKernel> decode_kernels;
}
namespace avx512 {
extern const ByType<DecodeKernel> decode_kernels;
}

}  // namespace cann_host::kernels
