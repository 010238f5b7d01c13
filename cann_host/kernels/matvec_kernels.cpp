// Products of few rows with a matrix. Compiled once per instruction set.

#include "cann_host/kernels/matvec_kernels.h"

#include "cann_host/kernels/row.h"

namespace cann_host::kernels {
namespace {

inline Vec<float> load_weight(const int8_t* p, Full) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_vector<__m128i>(p)));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  return __builtin_convertvector(load_vector<Lanes<int8_t, lanes>>(p), Vec<float>);
#endif
}
inline Vec<float> load_weight(const int8_t* p, Part part) {
  int8_t padded[lanes] = {};
  std::memcpy(padded, p, part.count);
  return load_weight(padded, Full{});
}
template <class T, class Place>
Vec<float> load_weight(const T* p, Place place) {
  return load(p, place);
}

/// x stays in the L1 cache, where load()'s halves would only cost instructions.
inline Vec<float> load_cached(const float* p, Full) { return load_vector<Vec<float>>(p); }
inline Vec<float> load_cached(const float* p, Part part) { return load(p, part); }

/// x in float, and the sum of each row behind all rows.
template <class T>
void widen_rows(const MatVec& a, float* wide) {
  const T* x = static_cast<const T*>(a.x);
  each_vector(a.rows * a.inner, [&](int64_t i, auto place) { store(wide + i, load(x + i, place), place); });
  for (int64_t m = 0; m < a.rows; ++m) {
    const float* row = wide + m * a.inner;
    wide[a.rows * a.inner + m] =
        sum_over(a.inner, [&](int64_t i, auto place) { return load(row + i, place); });
  }
}

template <class T, class W>
void multiply(const MatVec& a, const float* wide, int64_t begin, int64_t end) {
  const T* bias = static_cast<const T*>(a.bias);
  const float* sums = wide + a.rows * a.inner;
  for (int64_t n = begin; n < end; ++n) {
    const W* weight = static_cast<const W*>(a.weight) + n * a.weight_stride;
    for (int64_t m = 0; m < a.rows; ++m) {
      const float* x = wide + m * a.inner;
      float sum = sum_over(a.inner, [&](int64_t i, auto place) {
        return load_weight(weight + i, place) * load_cached(x + i, place);
      });
      if (a.offset != nullptr) sum += a.offset[n] * sums[m];
      if (a.scale != nullptr) sum *= a.scale[n];
      if (bias != nullptr) sum += to_float(bias[n]);
      static_cast<T*>(a.y)[m * a.columns + n] = from_float<T>(sum);
    }
  }
}

using Types = TypeList<float, Half, BFloat16>;

}  // namespace

namespace CANN_HOST_ISA {

extern const MatVecKernels matvec_kernels = {
    .widen = by_type<void (*)(const MatVec&, float*)>(Types{}, []<class T> { return &widen_rows<T>; }),
    .same = by_type<MatVecKernel>(Types{}, []<class T> { return &multiply<T, T>; }),
    .int8 = by_type<MatVecKernel>(Types{}, []<class T> { return &multiply<T, int8_t>; }),
};

}  // namespace CANN_HOST_ISA
}  // namespace cann_host::kernels
