#pragma once

#include <cstdint>

#include "cann_host/kernels/data_type.h"

namespace cann_host::kernels {

/// c[n, r, k] = Σ a[n, r, i] b[n, i, k] + bias[k] for matrices so small that a BLAS spends most of its time
/// on preparations. Strides are in elements. Computed in float32.
struct SmallMatmul {
  DataType type;  ///< of all tensors: float32, float16, bfloat16
  const void* a;
  const void* b;
  const void* bias;  ///< may be null
  void* c;           ///< contiguous
  int64_t batches, rows, inner, columns;
  int64_t a_batch, a_row, a_inner;
  int64_t b_batch, b_inner, b_column;  ///< one of the latter two is 1
};

/// Multiplications up to which it is faster than oneDNN and MKL.
constexpr int64_t most_small_multiplications = int64_t{1} << 18;
/// And than matvec(), with whose shape reading b is the limit once it lies beyond the L2 cache.
constexpr int64_t most_small_weight = int64_t{1} << 16;

/// False for types and strides that it does not take.
bool small_matmul(const SmallMatmul& arguments);

}  // namespace cann_host::kernels
