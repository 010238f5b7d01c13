#pragma once

// What lies between the matrix products of flash attention, on blocks of scores in the cache. On the calling
// thread. `type` is that of the products' operands, float32 or bfloat16; blocks of it that are a second
// operand are packed as the products want them: rows for float32, pairs of rows element by element for
// bfloat16.

#include <cstdint>

#include "cann_host/kernels/data_type.h"

namespace cann_host::kernels {

/// weights = exp(score * scale + bias - maximum) with the running maximum and sum of each row, of which some
/// columns came in blocks before.
struct SoftmaxBlock {
  DataType type;
  const float* scores;  ///< [rows, columns], `stride` apart
  void* weights;        ///< likewise, of `type`; zeros in columns that are not seen
  int64_t stride;
  int64_t rows;
  int64_t columns;  ///< a multiple of 32
  int64_t seen;     ///< columns that the first row sees, which may be negative
  bool causal;      ///< each row sees one more than the row before, up to `keys`
  int64_t keys;     ///< columns that are keys
  float scale;
  const float* bias;  ///< added to scaled scores; may be null
  int64_t bias_stride;
  float* maximum;     ///< [rows]
  float* sum;         ///< [rows]
  float* correction;  ///< [rows]: the factor for what was summed with the maximum before
};
void softmax_block(const SoftmaxBlock& arguments);

/// The same for the gradient, transposed: rows are keys, columns are queries.
struct ScoreGradientBlock {
  DataType type;
  const float* scores;       ///< [keys, queries], `stride` apart
  const float* dweights;     ///< likewise
  const float* log_sum_exp;  ///< [queries]; inf: the query sees nothing
  const float* delta;        ///< [queries]: the sum of out * dout
  void* weights;             ///< [keys, queries], of `type`
  void* dscores;             ///< likewise
  void* packed_dscores;      ///< the same as a second operand, with `padded_keys` rows
  int64_t stride;
  int64_t keys;
  int64_t padded_keys;  ///< even; rows behind `keys` become zeros
  int64_t queries;      ///< a multiple of 32
  bool causal;          ///< key number j is seen by queries from number j - first_key on
  int64_t first_query;  ///< number of the first query less that of the first key
  float scale;
};
void score_gradient_block(const ScoreGradientBlock& arguments);

/// to[r] = from[r] * factors[r], converted to `type` (float32, float16, bfloat16).
struct ConvertRows {
  DataType type;
  const float* from;
  int64_t from_stride;
  const float* factors;  ///< null: 1
  void* to;
  int64_t to_stride;
  int64_t rows;
  int64_t columns;
};
void convert_rows(const ConvertRows& arguments);

/// sums[r] = the sum of a[r] * b[r], rows of `type` (float32, float16, bfloat16).
struct RowProducts {
  DataType type;
  const void* a;
  int64_t a_stride;
  const void* b;
  int64_t b_stride;
  float* sums;
  int64_t rows;
  int64_t columns;
};
void row_products(const RowProducts& arguments);

/// Rows of `from` as a second operand of `width` columns, followed by rows of zeros: bfloat16 in pairs of
/// rows element by element, float32 and float16 as rows of float32.
struct PackRows {
  DataType from;
  const void* data;
  int64_t stride;
  void* to;
  int64_t rows;
  int64_t padded_rows;  ///< even
  int64_t columns;      ///< up to `width`; the rest becomes zero
  int64_t width;
};
void pack_rows(const PackRows& arguments);

}  // namespace cann_host::kernels
