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

/// Columns and rows whose sums are built together: several streams of memory are read at once, and a weight
/// is converted once for several rows.
constexpr int columns_at_once = 4;
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int rows_at_once = 4;
#else
constexpr int rows_at_once = 2;
#endif

/// Asks for the lines of `count` weights, this far before they are read.
template <class W>
void prefetch(const W* weight, int count) {
  constexpr int ahead = 1024, line = 64;
  const auto* from = reinterpret_cast<const char*>(weight) + ahead;
  for (int i = 0; i < count * static_cast<int>(sizeof(W)); i += line) __builtin_prefetch(from + i);
}

/// sums[c][r]: the product of column c of the weight with row r of x.
template <int columns, int rows, class W>
void multiply_block(const W* weight, int64_t stride, const float* x, int64_t inner,
                    float (&sums)[columns][rows]) {
  constexpr int parts = rows == 1 ? 2 : 1;  // more sums where few would wait for each other
  Vec<float> sum[columns][rows][parts] = {};
  const auto add = [&](int64_t i, int part, auto place) {
    Vec<float> factor[rows];
    for (int r = 0; r < rows; ++r) factor[r] = load_cached(x + r * inner + i, place);
    for (int c = 0; c < columns; ++c) {
      const Vec<float> w = load_weight(weight + c * stride + i, place);
      for (int r = 0; r < rows; ++r) sum[c][r][part] += w * factor[r];
    }
  };
  int64_t i = 0;
  for (; i + parts * lanes <= inner; i += parts * lanes) {
    for (int c = 0; c < columns; ++c) prefetch(weight + c * stride + i, parts * lanes);
    for (int part = 0; part < parts; ++part) add(i + part * lanes, part, Full{});
  }
  for (; i + lanes <= inner; i += lanes) add(i, 0, Full{});
  if (i < inner) add(i, 0, Part{inner - i});
  for (int c = 0; c < columns; ++c) {
    for (int r = 0; r < rows; ++r)
      sums[c][r] = sum_of_lanes(parts == 2 ? sum[c][r][0] + sum[c][r][1] : sum[c][r][0]);
  }
}

/// Columns [n, n + columns) and rows [m, m + rows) of y.
template <class T, class W, int columns, int rows>
void multiply_columns(const MatVec& a, const float* wide, int64_t n, int64_t m) {
  float sums[columns][rows];
  multiply_block(static_cast<const W*>(a.weight) + n * a.weight_stride, a.weight_stride, wide + m * a.inner,
                 a.inner, sums);
  const T* bias = static_cast<const T*>(a.bias);
  for (int c = 0; c < columns; ++c) {
    for (int r = 0; r < rows; ++r) {
      float sum = sums[c][r];
      if (a.offset != nullptr) sum += a.offset[n + c] * wide[a.rows * a.inner + m + r];
      if (a.scale != nullptr) sum *= a.scale[n + c];
      if (bias != nullptr) sum += to_float(bias[n + c]);
      static_cast<T*>(a.y)[(m + r) * a.columns + n + c] = from_float<T>(sum);
    }
  }
}

template <class T, class W, int columns>
void multiply_rows(const MatVec& a, const float* wide, int64_t n) {
  int64_t m = 0;
  for (; m + rows_at_once <= a.rows; m += rows_at_once)
    multiply_columns<T, W, columns, rows_at_once>(a, wide, n, m);
  for (; m + 2 <= a.rows; m += 2) multiply_columns<T, W, columns, 2>(a, wide, n, m);
  if (m < a.rows) multiply_columns<T, W, columns, 1>(a, wide, n, m);
}

template <class T, class W>
void multiply(const MatVec& a, const float* wide, int64_t begin, int64_t end) {
  int64_t n = begin;
  for (; n + columns_at_once <= end; n += columns_at_once) multiply_rows<T, W, columns_at_once>(a, wide, n);
  for (; n < end; ++n) multiply_rows<T, W, 1>(a, wide, n);
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
