#pragma once

#include <cstdint>

#include "cann_host/kernels/data_type.h"

namespace cann_host::kernels {

/// A product with few rows: y[m, n] = Σ x[m, k] weight[n, k], at the speed at which the weight is read.
struct MatVec {
  DataType type;         ///< of x, y and bias: float32, float16, bfloat16
  DataType weight_type;  ///< type, or int8
  const void* x;         ///< [rows, inner], contiguous
  const void* weight;    ///< [columns, inner], rows weight_stride elements apart
  const void* bias;      ///< [columns]; may be null
  const float* scale;    ///< [columns], of an int8 weight: (weight + offset) * scale; may be null
  const float* offset;   ///< [columns]; may be null
  void* y;               ///< [rows, columns], contiguous
  int64_t rows;
  int64_t columns;
  int64_t inner;
  int64_t weight_stride;
};

/// Rows for which reading the weight and not multiplying is the limit.
constexpr int64_t most_matvec_rows = 4;

/// False for types that it does not take.
bool matvec(const MatVec& arguments);

}  // namespace cann_host::kernels
