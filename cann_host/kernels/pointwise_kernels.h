#pragma once

#include "cann_host/kernels/pointwise.h"

namespace cann_host::kernels {

/// Results that are larger are written past the caches: in chains of operations that is up to 3 times as fast
/// from 6 MiB on, and even at 4 MiB.
constexpr int64_t streaming_bytes = 4 << 20;

/// What a kernel works on. Kernels of one input use `a`.
struct Operands {
  const void* a;
  const void* b;
  void* out;
  Scalar scalar;  ///< stands for the operand that is no tensor
  Scalar alpha;
  bool streaming;  ///< write past the caches: for results that do not fit in them
};

/// Works on elements [begin, end), on the calling thread.
using PointwiseKernel = void (*)(const Operands&, int64_t begin, int64_t end);

/// What pointwise_kernels.cpp and cast_kernels.cpp provide for each instruction set.
struct PointwiseKernels {
  /// add_scaled is a + alpha * b; the others are those of BinaryOp, without alpha.
  struct Binary {
    ByType<PointwiseKernel> op[binary_op_count];
    ByType<PointwiseKernel> add_scaled;
  };
  Binary tensor_tensor, tensor_scalar, scalar_tensor;
  ByType<PointwiseKernel> compare[compare_op_count];
  ByType<PointwiseKernel> compare_scalar[compare_op_count];
  ByType<PointwiseKernel> unary[unary_op_count];
};

struct CastKernels {
  ByType<const ByType<PointwiseKernel>*> cast;  // [from][to]
  ByType<PointwiseKernel> fill;                 // with Operands::scalar
};

namespace baseline {
extern const PointwiseKernels pointwise_kernels;
extern const CastKernels cast_kernels;
}  // namespace baseline
namespace avx2 {
extern const PointwiseKernels pointwise_kernels;
extern const CastKernels cast_kernels;
}  // namespace avx2
namespace avx512 {
extern const PointwiseKernels pointwise_kernels;
extern const CastKernels cast_kernels;
}  // namespace avx512

}  // namespace cann_host::kernels
