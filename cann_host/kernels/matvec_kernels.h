#pragma once

#include "cann_host/kernels/matvec.h"

namespace cann_host::kernels {

/// Works on columns [begin, end), on the calling thread. `wide` is x in float, and behind it the sum of each
/// row.
using MatVecKernel = void (*)(const MatVec&, const float* wide, int64_t begin, int64_t end);

/// By the type of x and y: weights of the same type, or int8.
struct MatVecKernels {
  ByType<void (*)(const MatVec&, float* wide)> widen;
  ByType<MatVecKernel> same, int8;
};

namespace baseline {
extern const MatVecKernels matvec_kernels;
}
namespace avx2 {
extern const MatVecKernels matvec_kernels;
}
namespace avx512 {
extern const MatVecKernels matvec_kernels;
}

}  // namespace cann_host::kernels
