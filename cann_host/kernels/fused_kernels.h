#pragma once

#include "cann_host/kernels/fused.h"

namespace cann_host::kernels {

/// Works on rows [begin, end), on the calling thread. `scratch` holds as many floats as fused.cpp says.
template <class Arguments>
using RowKernel = void (*)(const Arguments&, int64_t begin, int64_t end, float* scratch);

/// What norm_kernels.cpp provides for each instruction set. same: parameters of the type of the data;
/// wide: in float32.
struct NormKernels {
  ByType<RowKernel<Norm>> same, wide;
  ByType<RowKernel<NormBackward>> backward_same, backward_wide;
};

/// gated_kernels.cpp
struct GatedKernels {
  ByType<RowKernel<Gated>> forward[gate_count];
  ByType<RowKernel<GatedBackward>> backward[gate_count];
};

/// AdamW's numbers in the form that its loop needs.
struct AdamWStep : AdamW {
  float kept;            ///< of the parameter: 1 - learning_rate * weight_decay
  float step_size;       ///< learning_rate / (1 - beta1^step)
  float root_factor;     ///< 1 / sqrt(1 - beta2^step)
  float share1, share2;  ///< of the gradient: 1 - beta1, 1 - beta2
  float kept2;           ///< beta2
  float epsilon_in_float;
};

/// row_kernels.cpp
struct RowKernels {
  ByType<RowKernel<Rotary>> rotary;
  ByType<RowKernel<MaskedSoftmax>> masked_softmax;
  ByType<RowKernel<RowFold>> fold[fold_count];
  ByType<RowKernel<CrossEntropy>> cross_entropy;
  ByType<RowKernel<AdamWStep>> adamw_same, adamw_wide;  ///< wide: a float32 gradient
};

namespace baseline {
extern const NormKernels norm_kernels;
extern const GatedKernels gated_kernels;
extern const RowKernels row_kernels;
}  // namespace baseline
namespace avx2 {
extern const NormKernels norm_kernels;
extern const GatedKernels gated_kernels;
extern const RowKernels row_kernels;
}  // namespace avx2
namespace avx512 {
extern const NormKernels norm_kernels;
extern const GatedKernels gated_kernels;
extern const RowKernels row_kernels;
}  // namespace avx512

}  // namespace cann_host::kernels
