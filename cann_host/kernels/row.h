#pragma once

// Loops over the elements of a row for files that are compiled once per instruction set (simd.h): whole
// vectors and then the rest, which is padded with zeros.

#include "cann_host/kernels/simd.h"

namespace cann_host::kernels {
namespace {

constexpr int lanes = width<float>;

/// A whole vector of elements.
struct Full {};
/// The first `count` elements of a vector.
struct Part {
  int64_t count;
};

template <class T>
Vec<float> load(const T* p, Full) {
  return widen(p);
}
#if defined(__AVX512F__)
inline __mmask16 mask_of(Part part) { return static_cast<__mmask16>((1U << part.count) - 1); }
#elif defined(__AVX2__)
inline __m256i mask_of(Part part) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(part.count)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
#endif

// With a mask: a copy to a padded vector would be read back before its parts are in the cache.
template <class T>
Vec<float> load(const T* p, Part part) {
  alignas(sizeof(T) * lanes) T padded[lanes] = {};
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<T, float>) return _mm512_maskz_loadu_ps(mask_of(part), p);
  if constexpr (sizeof(T) == 2) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(padded), _mm256_maskz_loadu_epi16(mask_of(part), p));
    return widen(padded);
  }
#elif defined(__AVX2__)
  if constexpr (std::is_same_v<T, float>) return _mm256_maskload_ps(p, mask_of(part));
#endif
  std::memcpy(padded, p, part.count * sizeof(T));
  return widen(padded);
}

template <class T>
void store(T* p, Vec<float> v, Full) {
  narrow(p, v);
}
template <class T>
void store(T* p, Vec<float> v, Part part) {
  const auto packed = pack<T>(v);
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<T, float>) return _mm512_mask_storeu_ps(p, mask_of(part), packed);
  if constexpr (sizeof(T) == 2) {
    return _mm256_mask_storeu_epi16(p, mask_of(part), bit_cast<__m256i>(packed));
  }
#elif defined(__AVX2__)
  if constexpr (std::is_same_v<T, float>) return _mm256_maskstore_ps(p, mask_of(part), packed);
#endif
  std::memcpy(p, &packed, part.count * sizeof(T));
}

inline Vec<float> only(Vec<float> v, Full, float) { return v; }
/// v with `other` in the lanes that are padding.
inline Vec<float> only(Vec<float> v, Part part, float other) {
  return select(lane_numbers<int32_t>() < static_cast<int32_t>(part.count), v, splat<Vec<float>>(other));
}

/// As if stored as T and loaded again.
template <class T>
Vec<float> rounded(Vec<float> v) {
  if constexpr (std::is_same_v<T, float>) {
    return v;
  } else {
    T stored[lanes];
    narrow(stored, v);
    return widen(stored);
  }
}

/// f(i, Full or Part) for each vector of n elements.
template <class F>
void each_vector(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(i, Full{});
  if (i < n) f(i, Part{n - i});
}

inline float sum_of_lanes(Vec<float> v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(v);
#elif defined(__AVX2__)
  const __m128 half = _mm256_castps256_ps128(v) + _mm256_extractf128_ps(v, 1);
  const __m128 pair = half + _mm_movehl_ps(half, half);
  return pair[0] + pair[1];
#else
  float sum = 0;
  for (int i = 0; i < lanes; ++i) sum += v[i];
  return sum;
#endif
}

/// The sums of four vectors, in a third of the steps.
inline Lanes<float, 4> sums_of_lanes(const Vec<float> (&v)[4]) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
  const auto half = [](__m512 x) { return _mm512_castps512_ps256(x) + _mm512_extractf32x8_ps(x, 1); };
#else
  const auto half = [](__m256 x) { return x; };
#endif
  const __m256 sums =
      _mm256_hadd_ps(_mm256_hadd_ps(half(v[0]), half(v[1])), _mm256_hadd_ps(half(v[2]), half(v[3])));
  return _mm256_castps256_ps128(sums) + _mm256_extractf128_ps(sums, 1);
#else
  return Lanes<float, 4>{sum_of_lanes(v[0]), sum_of_lanes(v[1]), sum_of_lanes(v[2]), sum_of_lanes(v[3])};
#endif
}

/// The larger number; NaN if either is.
inline Vec<float> larger(Vec<float> a, Vec<float> b) { return select((a > b) | (a != a), a, b); }

/// NaN if any lane is.
inline float maximum_of_lanes(Vec<float> v) {
#pragma GCC unroll 4
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    v = larger(v, __builtin_shuffle(v, lane_numbers<int32_t>() ^ distance));
  return v[0];
}

/// The sum of f(i, Full or Part) over n elements. Four sums side by side hide the latency of the addition and
/// keep the rounding error small.
template <class F>
float sum_over(int64_t n, const F& f) {
  Vec<float> sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) sums[k] += f(i + k * lanes, Full{});
  }
  for (; i + lanes <= n; i += lanes) sums[0] += f(i, Full{});
  if (i < n) sums[1] += only(f(i, Part{n - i}), Part{n - i}, 0);
  return sum_of_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

/// The maximum of f(i, Full or Part) over n > 0 elements; NaN if any is. Four side by side, as in sum_over().
template <class F>
float maximum_over(int64_t n, const F& f) {
  const Vec<float> least = splat<Vec<float>>(-__builtin_inff());
  Vec<float> maxima[4] = {least, least, least, least};
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) maxima[k] = larger(maxima[k], f(i + k * lanes, Full{}));
  }
  for (; i + lanes <= n; i += lanes) maxima[0] = larger(maxima[0], f(i, Full{}));
  if (i < n) maxima[1] = larger(maxima[1], only(f(i, Part{n - i}), Part{n - i}, -__builtin_inff()));
  return maximum_of_lanes(larger(larger(maxima[0], maxima[1]), larger(maxima[2], maxima[3])));
}

/// The offset of row number `row`, counted over three dimensions.
inline int64_t offset_of(int64_t row, const int64_t (&sizes)[3], const int64_t (&strides)[3]) {
  const int64_t last = row % sizes[2], rest = row / sizes[2];
  return last * strides[2] + rest % sizes[1] * strides[1] + rest / sizes[1] * strides[0];
}

}  // namespace
}  // namespace cann_host::kernels
