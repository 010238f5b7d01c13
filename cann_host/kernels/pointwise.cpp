#include "cann_host/kernels/pointwise.h"

#include <cstring>

#include "cann_host/kernels/isa.h"
#include "cann_host/kernels/parallel.h"
#include "cann_host/kernels/pointwise_kernels.h"

namespace cann_host::kernels {
namespace {

constexpr int64_t grain = 16384;   // elements per thread from which a second thread pays
constexpr int64_t alignment = 64;  // elements: pieces of different threads share no cache line

const PointwiseKernels& pointwise_kernels() noexcept {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::avx512:
      return avx512::pointwise_kernels;
    case Isa::avx2:
      return avx2::pointwise_kernels;
    case Isa::baseline:
      break;
  }
#endif
  return baseline::pointwise_kernels;
}

const CastKernels& cast_kernels() noexcept {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::avx512:
      return avx512::cast_kernels;
    case Isa::avx2:
      return avx2::cast_kernels;
    case Isa::baseline:
      break;
  }
#endif
  return baseline::cast_kernels;
}

bool run(PointwiseKernel kernel, Operands operands, int64_t n, int64_t out_element_bytes) {
  if (!kernel) return false;
  // In place the lines of the result are in the cache already.
  const bool in_place = operands.out == operands.a || operands.out == operands.b;
  operands.streaming = n * out_element_bytes > streaming_bytes && !in_place;
  parallel_for(n, grain, alignment, [&](int64_t begin, int64_t end) { kernel(operands, begin, end); });
  return true;
}

bool run_binary(const PointwiseKernels::Binary& kernels, BinaryOp op, DataType type, Operands operands,
                int64_t n) {
  const bool scaled = (op == BinaryOp::add || op == BinaryOp::sub) && operands.alpha.real != 1;
  if (scaled && op == BinaryOp::sub) {
    operands.alpha.real = -operands.alpha.real;
    operands.alpha.integer = -operands.alpha.integer;
  }
  return run(scaled ? kernels.add_scaled[type] : kernels.op[static_cast<int>(op)][type], operands, n,
             size_of(type));
}

}  // namespace

bool binary(BinaryOp op, DataType type, const void* a, const void* b, void* out, int64_t n, Scalar alpha) {
  return run_binary(pointwise_kernels().tensor_tensor, op, type, {a, b, out, 0, alpha, false}, n);
}

bool binary_scalar(BinaryOp op, DataType type, const void* a, Scalar b, void* out, int64_t n, Scalar alpha) {
  return run_binary(pointwise_kernels().tensor_scalar, op, type, {a, nullptr, out, b, alpha, false}, n);
}

bool scalar_binary(BinaryOp op, DataType type, Scalar a, const void* b, void* out, int64_t n, Scalar alpha) {
  return run_binary(pointwise_kernels().scalar_tensor, op, type, {nullptr, b, out, a, alpha, false}, n);
}

bool compare(CompareOp op, DataType type, const void* a, const void* b, bool* out, int64_t n) {
  return run(pointwise_kernels().compare[static_cast<int>(op)][type], {a, b, out, 0, 1, false}, n,
             sizeof(bool));
}

bool compare_scalar(CompareOp op, DataType type, const void* a, Scalar b, bool* out, int64_t n) {
  return run(pointwise_kernels().compare_scalar[static_cast<int>(op)][type], {a, nullptr, out, b, 1, false},
             n, sizeof(bool));
}

bool unary(UnaryOp op, DataType type, const void* a, void* out, int64_t n) {
  return run(pointwise_kernels().unary[static_cast<int>(op)][type], {a, nullptr, out, 0, 1, false}, n,
             size_of(type));
}

bool cast(DataType from, const void* a, DataType to, void* out, int64_t n) {
  if (from == to) {
    const int64_t bytes = size_of(from);
    parallel_for(n, grain, alignment, [=](int64_t begin, int64_t end) {
      std::memmove(static_cast<char*>(out) + begin * bytes, static_cast<const char*>(a) + begin * bytes,
                   (end - begin) * bytes);
    });
    return bytes > 0;
  }
  const auto* from_type = cast_kernels().cast[from];
  return from_type && run((*from_type)[to], {a, nullptr, out, 0, 1, false}, n, size_of(to));
}

bool fill(DataType type, Scalar value, void* out, int64_t n) {
  return run(cast_kernels().fill[type], {nullptr, nullptr, out, value, 1, false}, n, size_of(type));
}

}  // namespace cann_host::kernels
