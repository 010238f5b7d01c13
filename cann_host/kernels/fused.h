#pragma once

// Operators that read their inputs once and write their results once where a composition of element-wise
// operators and reductions would go through memory several times. Computed in float32; tensors are contiguous
// unless strides are given. All run on OpenMP's threads.

#include <cstdint>

#include "cann_host/kernels/data_type.h"

namespace cann_host::kernels {

/// The types that every function below takes. Others are for the caller to refuse.
constexpr bool is_fused_type(DataType type) {
  return type == DataType::float32 || type == DataType::float16 || type == DataType::bfloat16;
}

/// y = (v - mean) * rstd * (gamma + gamma_offset) + beta for each row of v = x * x_scale + added.
struct Norm {
  DataType type;            ///< of x, added, sum and y
  DataType parameter_type;  ///< of gamma and beta: type or float32
  const void* x;
  const void* added;  ///< may be null
  const void* gamma;  ///< null: 1
  const void* beta;   ///< null: 0
  void* sum;          ///< v, rounded to type before it is normalised; may be null
  void* y;
  float* mean;  ///< one a row; null where rows are not centred (RMS norm)
  float* rstd;  ///< one a row; may be null
  int64_t rows;
  int64_t columns;
  float x_scale = 1;
  float gamma_offset = 0;
  float epsilon = 0;
  bool centered = false;
};
void norm(const Norm& arguments);

/// Gradients of Norm; statistics as it left them.
struct NormBackward {
  DataType type;
  DataType parameter_type;
  const void* dy;
  const void* x;
  const void* added;  ///< may be null
  const void* gamma;  ///< null: 1
  const void* dsum;   ///< a gradient of Norm::sum, added to dv; may be null
  const float* mean;  ///< null where rows are not centred
  const float* rstd;
  void* dx;       ///< of x: x_scale * dv
  void* dadded;   ///< dv; may be null
  float* dgamma;  ///< columns; null where not wanted
  float* dbeta;   ///< columns; null where not wanted
  int64_t rows;
  int64_t columns;
  float x_scale = 1;
  float gamma_offset = 0;
};
void norm_backward(const NormBackward& arguments);

enum class Gate : int { silu, gelu_erf, gelu_tanh };
constexpr int gate_count = 3;

/// y = activation(one half of a row) * the other half. Rows are 2 * columns long.
struct Gated {
  DataType type;
  Gate gate;
  const void* x;
  void* y;          ///< rows of `columns`
  void* activated;  ///< activation(…) alone; may be null
  int64_t rows;
  int64_t columns;
  bool activates_left;
};
void gated(const Gated& arguments);

/// dx of Gated.
struct GatedBackward {
  DataType type;
  Gate gate;
  const void* dy;
  const void* x;
  void* dx;
  int64_t rows;
  int64_t columns;
  bool activates_left;
};
void gated_backward(const GatedBackward& arguments);

/// y = x * cos + rotated(x) * sin along the last dimension, whose elements are neighbours in memory.
/// rotated(x) is (-second half, first half) or, interleaved, (-x[1], x[0], -x[3], x[2], …).
struct Rotary {
  DataType type;
  const void* x;
  const void* cos;
  const void* sin;
  void* y;
  int64_t sizes[3];  ///< the dimensions before the last
  int64_t x_strides[3];
  int64_t table_strides[3];  ///< of cos and sin; 0 where they are broadcast
  int64_t y_strides[3];
  int64_t columns;  ///< even
  bool interleaved;
  bool transposed;  ///< the gradient: x is dy, and y becomes dx
};
void rotary(const Rotary& arguments);

/// y = softmax(x * scale), where -10000 stands for masked elements. Rows are counted by three dimensions.
struct MaskedSoftmax {
  DataType type;
  const void* x;
  const bool* mask;  ///< true hides; null: nothing is hidden
  void* y;
  int64_t sizes[3];  ///< rows
  int64_t mask_strides[3];
  int64_t columns;
  float scale;
  bool causal;  ///< hides columns beyond the row's number in the last dimension of sizes
};
void masked_softmax(const MaskedSoftmax& arguments);

enum class Fold : int { sum, maximum };
constexpr int fold_count = 2;

/// y = scale * the sum, or the maximum (NaN if there is one), of each row of x.
struct RowFold {
  DataType type;
  Fold fold;
  const void* x;
  void* y;
  int64_t rows;
  int64_t columns;  ///< 1 or more
  float scale = 1;
};
void fold_rows(const RowFold& arguments);

/// One step of AdamW for one tensor, in place; `type` is that of the parameter and all its state.
struct AdamW {
  DataType type;
  DataType gradient_type;
  void* parameter;
  void* exp_avg;
  void* exp_avg_sq;
  void* max_exp_avg_sq;  ///< null: not amsgrad
  const void* gradient;
  int64_t count;
  double learning_rate;
  double beta1;
  double beta2;
  double epsilon;
  double weight_decay;
  double step;  ///< of this update, from 1
  bool maximize;
};
void adamw(const AdamW& arguments);

/// Cross entropy of rows of logits.
struct CrossEntropy {
  DataType type;
  const void* logits;
  const int64_t* target;  ///< one a row; ignored rows hold a number out of range
  void* log_probabilities;
  float* loss;           ///< -log_probabilities[target] a row, 0 where ignored
  float* mean_negative;  ///< the mean of -log_probabilities a row, for label smoothing; may be null
  float* log_sum_exp;    ///< one a row; may be null
  int64_t rows;
  int64_t columns;
};
void cross_entropy(const CrossEntropy& arguments);

}  // namespace cann_host::kernels
