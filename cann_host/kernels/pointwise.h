#pragma once

// Element-wise operations on contiguous tensors, on raw pointers: the fast paths under the most frequent
// aclnn ops.
//
// n is the number of elements. Pointers need only the alignment of the element type. `out` may be one of the
// inputs, but must not overlap one otherwise. float16 and bfloat16 are computed in float and rounded once.
// NaN and infinities behave as in ATen. Every function returns false, and has written nothing, if it has no
// kernel for the types; none of them checks anything else.
//
// Work of 32768 elements and more is shared among OMP_NUM_THREADS threads.

#include <cstdint>
#include <type_traits>

#include "cann_host/kernels/data_type.h"

namespace cann_host::kernels {

/// A number as ATen and CANN pass it: integers stay exact.
struct Scalar {
  double real;
  int64_t integer;

  template <class T>
    requires std::is_arithmetic_v<T>
  constexpr Scalar(T value)  // NOLINT(google-explicit-constructor): a number is what callers write
      : real(static_cast<double>(value)), integer(to_integer(value)) {}

 private:
  template <class T>
  static constexpr int64_t to_integer(T value) {
    if constexpr (std::is_floating_point_v<T>) {
      return value > T{-0x1p63} && value < T{0x1p63} ? static_cast<int64_t>(value) : 0;
    } else {
      return static_cast<int64_t>(value);
    }
  }
};

enum class BinaryOp : int {
  add,      ///< a + alpha * b
  sub,      ///< a - alpha * b
  mul,      ///< integers wrap
  div,      ///< true division; floating-point types only
  maximum,  ///< NaN if either is NaN
  minimum,
};
constexpr int binary_op_count = 6;

/// out = a op b. float32, float16, bfloat16, float64; int32 and int64 but for div.
bool binary(BinaryOp op, DataType type, const void* a, const void* b, void* out, int64_t n, Scalar alpha = 1);

/// out = a op b for a number b. It is not rounded to a 16-bit type first.
bool binary_scalar(BinaryOp op, DataType type, const void* a, Scalar b, void* out, int64_t n,
                   Scalar alpha = 1);

/// out = a op b for a number a.
bool scalar_binary(BinaryOp op, DataType type, Scalar a, const void* b, void* out, int64_t n,
                   Scalar alpha = 1);

enum class CompareOp : int { eq, ne, lt, le, gt, ge };
constexpr int compare_op_count = 6;

/// out (bool) = a op b. float32, float16, bfloat16, float64, int32, int64, bool and uint8.
bool compare(CompareOp op, DataType type, const void* a, const void* b, bool* out, int64_t n);

/// out (bool) = a op b for a number b, which is converted to `type` first.
bool compare_scalar(CompareOp op, DataType type, const void* a, Scalar b, bool* out, int64_t n);

enum class UnaryOp : int {
  neg,  ///< these three: float32, float16, bfloat16, float64, int32, int64
  abs,
  relu,
  sqrt,  ///< these three: float32, float16, bfloat16, float64
  rsqrt,
  reciprocal,
  exp,  ///< these and all below: float32, float16, bfloat16
  log,
  tanh,
  sigmoid,
  silu,
  erf,
  gelu_erf,   ///< x Φ(x)
  gelu_tanh,  ///< the tanh approximation of gelu
  fast_gelu,  ///< x sigmoid(1.702 x)
};
constexpr int unary_op_count = 15;

/// out = op(a). In float, exp, log, tanh, sigmoid and erf are off by at most 2 units in the last place.
bool unary(UnaryOp op, DataType type, const void* a, void* out, int64_t n);

/// out = a converted. float32, float16, bfloat16, float64, int32, int64, uint8 and bool, from and to each;
/// equal types are copied. To integers by truncation, to bool by comparing with 0. In place only for types of
/// equal size.
bool cast(DataType from, const void* a, DataType to, void* out, int64_t n);

/// out = value, converted. All types.
bool fill(DataType type, Scalar value, void* out, int64_t n);

}  // namespace cann_host::kernels
