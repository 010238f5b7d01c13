#pragma once

#include "cann_host/kernels/transpose.h"

namespace cann_host::kernels {

using TransposeKernel = void (*)(const Transpose&);

namespace baseline {
extern const TransposeKernel transpose_kernel;
}
namespace avx2 {
extern const TransposeKernel transpose_kernel;
}
namespace avx512 {
extern const TransposeKernel transpose_kernel;
}

}  // namespace cann_host::kernels
