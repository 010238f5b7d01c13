#pragma once

// Loops over elements for files that are compiled once per instruction set (simd.h).

#include "cann_host/kernels/pointwise.h"
#include "cann_host/kernels/simd.h"

namespace cann_host::kernels {
namespace {

template <class T>
T scalar_as(Scalar scalar) {
  if constexpr (is_half_width_float<T>) {
    return from_float<T>(static_cast<float>(scalar.real));
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(scalar.real);
  } else if constexpr (std::is_same_v<T, bool>) {
    return scalar.real != 0;
  } else {
    return static_cast<T>(scalar.integer);
  }
}

/// An operand that is a tensor: values [i, i + step<T>).
template <class T>
struct TensorOperand {
  const T* data;

  Vec<Compute<T>> at(int64_t i) const { return widen(data + i); }
};

/// An operand that is a number, the same for each element.
template <class T>
struct ScalarOperand {
  Vec<Compute<T>> value;

  explicit ScalarOperand(Scalar scalar) : value(splat<Vec<Compute<T>>>(scalar_as<Compute<T>>(scalar))) {}
  Vec<Compute<T>> at(int64_t) const { return value; }
};

/// The first n < step<T> elements, padded with zeros.
template <class T>
struct PaddedOperand {
  T data[step<T>] = {};

  PaddedOperand(TensorOperand<T> tensor, int64_t n) { std::memcpy(data, tensor.data, n * sizeof(T)); }
  Vec<Compute<T>> at(int64_t) const { return widen(data); }
};

template <class T>
PaddedOperand<T> padded(TensorOperand<T> tensor, int64_t n) {
  return {tensor, n};
}
template <class T>
ScalarOperand<T> padded(ScalarOperand<T> scalar, int64_t) {
  return scalar;
}

/// out[0, n) = f(operands...), where f maps vectors of values to what lies in memory for `lanes` elements of
/// `out`.
///
/// The last vector ends with the last element and overlaps the one before. It is computed before anything is
/// stored, so `out` may be an operand. With `streaming` the same goes for the first one, after which `out` is
/// aligned.
template <int lanes, class Out, class F, class... Operand>
void map(Out* out, int64_t n, bool streaming, const F& f, const Operand&... operands) {
  if (n < lanes) {
    if (n <= 0) return;
    const auto value = f(padded(operands, n).at(0)...);
    std::memcpy(out, &value, n * sizeof(Out));
    return;
  }
  const int64_t last = n - lanes;
  const auto last_value = f(operands.at(last)...);
  constexpr int64_t alignment = sizeof last_value;
  if (streaming && reinterpret_cast<uintptr_t>(out) % sizeof(Out) == 0) {
    const auto first_value = f(operands.at(0)...);
    const int64_t misaligned = reinterpret_cast<uintptr_t>(out) % alignment;
    int64_t i = misaligned ? (alignment - misaligned) / static_cast<int64_t>(sizeof(Out)) : 0;
    for (; i < last; i += lanes) store_streaming(out + i, f(operands.at(i)...));
    store_vector(out, first_value);
    stream_fence();
  } else {
#pragma GCC unroll 4
    for (int64_t i = 0; i < last; i += lanes) store_vector(out + i, f(operands.at(i)...));
  }
  store_vector(out + last, last_value);
}

}  // namespace
}  // namespace cann_host::kernels
