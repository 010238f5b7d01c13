#pragma once

// What the weights of a softmax are made of, for files that are compiled once per instruction set.

#include "cann_host/kernels/math.h"

namespace cann_host::kernels {
namespace {

constexpr float log2_e = 1.44269504f;

/// The larger one, by one instruction; either where one is NaN.
inline Vec<float> larger_number(Vec<float> a, Vec<float> b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#elif defined(__SSE2__)
  return _mm_max_ps(a, b);
#else
  return select(a > b, a, b);
#endif
}

/// 2^x for x of at most 0, or NaN: for the weights of a softmax. With AVX-512 a third of the instructions of
/// exp_for(); what would be denormal is zero then.
template <class T>
Vec<float> exp2_of_difference(Vec<float> x) {
#if defined(__AVX512F__)
  // 2^r, 0 <= r < 1; 3e-6 and 2e-9
  static constexpr float coarse[] = {1.00000262f, 0.693003833f, 0.241442755f, 0.0520114601f, 0.0135341678f};
  static constexpr float fine[] = {1.0f,           0.693147004f,   0.24022983f,    0.0554833412f,
                                   0.00967884064f, 0.00124396873f, 0.000217022549f};
  constexpr int less_its_floor = 1 | _MM_FROUND_NO_EXC;
  const Vec<float> r = _mm512_reduce_ps(x, less_its_floor);
  const Vec<float> power = is_half_width_float<T> ? polynomial(r, coarse) : polynomial(r, fine);
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, splat<Vec<float>>(-126), _CMP_NLT_UQ), power, x);
#else
  return exp_for<T>(x * 0.693147181f);
#endif
}

}  // namespace
}  // namespace cann_host::kernels
