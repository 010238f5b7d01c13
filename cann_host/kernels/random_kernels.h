#pragma once

#include "cann_host/kernels/random.h"

namespace cann_host::kernels {

/// What random_kernels.cpp provides for each instruction set. Kernels work on elements [begin, end) of the
/// tensors whose first elements they are given, on the calling thread; begin is a multiple of random_block.
struct RandomKernels {
  using Fill = void (*)(Philox, void* out, int64_t begin, int64_t end, double a, double b);
  using Bernoulli = void (*)(Philox, const void* p, void* out, int64_t begin, int64_t end);
  using Integers = void (*)(Philox, void* out, int64_t begin, int64_t end, int64_t low, uint64_t range);
  using Mask = void (*)(Philox, uint8_t* mask, int64_t begin, int64_t end, double p);
  using Apply = void (*)(const void* x, const uint8_t* mask, void* out, int64_t begin, int64_t end, double p);
  using Dropout = void (*)(Philox, const void* x, void* out, uint8_t* mask, int64_t begin, int64_t end,
                           double p);

  ByType<Fill> fill[distribution_count];
  ByType<const ByType<Bernoulli>*> bernoulli;  // [type of p][type of out]
  ByType<Integers> integers;
  Mask dropout_mask;
  ByType<Apply> dropout_apply;
  ByType<Dropout> dropout;
  /// out[i - begin] = the 64-bit draw of element i, from groups with bit 63 set if `second_stream`.
  void (*words)(Philox, bool second_stream, uint64_t* out, int64_t begin, int64_t end);
};

/// Elements of one block of 32-bit draws; a multiple of a block of 64-bit draws.
constexpr int64_t random_block = 64;

namespace baseline {
extern const RandomKernels random_kernels;
}
namespace avx2 {
extern const RandomKernels random_kernels;
}
namespace avx512 {
extern const RandomKernels random_kernels;
}

}  // namespace cann_host::kernels
