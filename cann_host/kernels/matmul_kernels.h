#pragma once

#include "cann_host/kernels/matmul.h"

namespace cann_host::kernels {

/// Rows of c that are computed together.
constexpr int64_t matmul_row_block = 4;

/// `scratch` has room for one such block of a in float; unused for float32 where b_column or a_inner is 1.
using SmallMatmulKernel = void (*)(const SmallMatmul&, float* scratch);

struct SmallMatmulKernels {
  ByType<SmallMatmulKernel> by_type;
};

namespace baseline {
extern const SmallMatmulKernels matmul_kernels;
}
namespace avx2 {
extern const SmallMatmulKernels matmul_kernels;
}
namespace avx512 {
extern const SmallMatmulKernels matmul_kernels;
}

}  // namespace cann_host::kernels
