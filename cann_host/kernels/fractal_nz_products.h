#pragma once

// Products of few rows with a matrix in FRACTAL_NZ, for files that are compiled once per instruction set.
// They are templates of `P`, how numbers are multiplied:
//
//   Number                     of x, weight, bias and y in memory
//   X                          of x as the kernels read it
//   Weight                     a vector of `elements` numbers of the weight
//   deep                       how many products are added in one lane
//   parts                      vectors in the row of a block, at least one
//   load(weight)               Weight, as it lies in memory
//   load_deep(weight)          Weight of `deep` rows of a block (or a part of one), neighbours in one lane
//   along_inner(x, part)       of x[0..16), the factor for load() of rows of blocks
//   spread(x)                  of x[0..deep), the factor for load_deep()
//   multiply_add(sum, weight, factor)

#include "cann_host/kernels/fractal_nz_kernels.h"
#include "cann_host/kernels/row.h"

namespace cann_host::kernels {
namespace {

constexpr int block = 16;  // rows of a block, and columns of one

/// Calls f(first, number of them as a constant) for groups of `rows`, at most `most` at a time.
template <int most, class F>
void in_groups(int64_t rows, const F& f) {
  int64_t m = 0;
  for (; m + most <= rows; m += most) f(m, std::integral_constant<int, most>{});
  if constexpr (most > 1) {
    if (m < rows) in_groups<most / 2>(rows - m, [&](int64_t i, auto count) { f(m + i, count); });
  }
}

/// Columns [n, n + count) of row m of the result.
template <class T>
void store_results(const NzMatmul& a, int64_t m, int64_t n, int64_t count, const float* results) {
  T* y = static_cast<T*>(a.y) + m * a.columns + n;
  each_vector(count, [&](int64_t i, auto place) {
    Vec<float> result = load(results + i, place);
    if (a.bias != nullptr) result += load(static_cast<const T*>(a.bias) + n + i, place);
    store(y + i, result, place);
  });
}

template <class T>
void convert(const T* from, T* to, int64_t count) {
  std::memcpy(to, from, count * sizeof(T));
}
template <class T>
void convert(const T* from, float* to, int64_t count)
  requires(!std::is_same_v<T, float>)
{
  each_vector(count, [&](int64_t i, auto place) { store(to + i, load(from + i, place), place); });
}

// ---- The weight is [columns, inner], as that of a linear layer ----

/// x in blocks as well, one row behind the other: x[0..16) of all rows, the next ones of all rows, and so on.
template <class P>
void prepare_rows(const NzMatmul& a, void* prepared) {
  typename P::X* to = static_cast<typename P::X*>(prepared);
  for (int64_t k = 0; k < a.inner; k += block) {
    const int64_t count = k + block <= a.inner ? block : a.inner - k;
    for (int64_t m = 0; m < a.rows; ++m, to += block) {
      convert(static_cast<const typename P::Number*>(a.x) + m * a.inner + k, to, count);
      std::memset(to + count, 0, (block - count) * sizeof *to);
    }
  }
}

/// Sums of `M` rows of x over `K` columns of blocks: of each row of the weight by itself and, so that nothing
/// is added across a vector, in several parts. `stride` lies between columns of blocks.
template <class P, int M, int K>
void add_blocks(const typename P::Number* weight, int64_t stride, int64_t vectors, const typename P::X* x,
                int64_t x_stride, float* sums, int64_t sums_stride, bool first) {
  typename P::Factor factors[M][K][P::parts];
  for (int m = 0; m < M; ++m) {
    for (int k = 0; k < K; ++k) {
      for (int p = 0; p < P::parts; ++p) factors[m][k][p] = P::along_inner(x + k * x_stride + m * block, p);
    }
  }
  constexpr int vectors_a_line = 64 / sizeof(typename P::Number) / P::elements;
  constexpr int64_t ahead = 1024 / sizeof(typename P::Number);
  for (int64_t v = 0; v < vectors; v += P::parts) {
    // Each line is asked for in time, also those of the columns of blocks that come next and lie far away.
    if (first && v % vectors_a_line == 0) {
      const int64_t there = v * P::elements + ahead, rest = there - vectors * P::elements;
      const auto* next = rest < 0 ? weight + there : weight + K * stride + rest;
      for (int k = 0; k < K; ++k) __builtin_prefetch(next + k * stride);
    }
#pragma GCC unroll 4
    for (int p = 0; p < P::parts; ++p) {
      Vec<float> sum[M];
      float* at = sums + (v + p) * lanes;
      for (int m = 0; m < M; ++m) sum[m] = load_vector<Vec<float>>(at + m * sums_stride);
#pragma GCC unroll 4
      for (int k = 0; k < K; ++k) {
        const auto w = P::load(weight + k * stride + (v + p) * P::elements);
        for (int m = 0; m < M; ++m) sum[m] = P::multiply_add(sum[m], w, factors[m][k][p]);
      }
      for (int m = 0; m < M; ++m) store_vector(at + m * sums_stride, sum[m]);
    }
  }
}

/// The sums of four rows of `size` numbers, one behind the other.
template <int size>
Lanes<float, 4> sums_of_four(const float* rows) {
#if defined(__AVX2__)
  const auto row = [&](int i) {
    const __m256 sum = _mm256_loadu_ps(rows + i * size);
    return size == 8 ? sum : sum + _mm256_loadu_ps(rows + i * size + size - 8);
  };
  const __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(row(0), row(1)), _mm256_hadd_ps(row(2), row(3)));
  return _mm256_castps256_ps128(sums) + _mm256_extractf128_ps(sums, 1);
#else
  Lanes<float, 4> sums;
  for (int i = 0; i < 4; ++i) {
    Lanes<float, 4> sum = load_vector<Lanes<float, 4>>(rows + i * size);
    for (int k = 4; k < size; k += 4) sum += load_vector<Lanes<float, 4>>(rows + i * size + k);
    sums[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
  return sums;
#endif
}

/// A tile of the weight's rows at a time, whose partial sums stay in the cache.
template <class P>
void multiply_rows(const NzMatmul& a, const void* prepared, int64_t begin, int64_t end) {
  using T = typename P::Number;
  constexpr int row_sums = lanes * block / P::elements;
  constexpr int64_t few_rows = 4, long_tile = 128, tile_of_many = 32;
  constexpr int64_t most_sums = row_sums * (nz_row_block * tile_of_many);
  static_assert(few_rows * long_tile <= nz_row_block * tile_of_many);
  alignas(64) float sums[most_sums];
  const auto* xs = static_cast<const typename P::X*>(prepared);
  const int64_t x_stride = a.rows * block, stride = padded(a.columns) * block;
  const int64_t blocks = padded(a.inner) / block;
  const int64_t tile = a.rows > few_rows ? tile_of_many : long_tile;
  const int64_t sums_stride = tile * row_sums;
  for (int64_t n = begin; n < end; n += tile) {
    const int64_t whole = padded(end - n) < tile ? padded(end - n) : tile;
    std::memset(sums, 0, a.rows * sums_stride * sizeof(float));
    for (int64_t c = 0; c < blocks;) {
      const T* weight = static_cast<const T*>(a.weight) + c * stride + n * block;
      const bool several = c + 4 <= blocks;
      in_groups<4>(a.rows, [&]<int M>(int64_t m, std::integral_constant<int, M>) {
        const auto add = several ? &add_blocks<P, M, 4> : &add_blocks<P, M, 1>;
        add(weight, stride, whole * block / P::elements, xs + c * x_stride + m * block, x_stride,
            sums + m * sums_stride, sums_stride, m == 0);
      });
      c += several ? 4 : 1;
    }
    for (int64_t m = 0; m < a.rows; ++m) {
      float results[long_tile];
      for (int64_t r = 0; r < whole; r += 4)
        store_vector(results + r, sums_of_four<row_sums>(sums + m * sums_stride + r * row_sums));
      store_results<T>(a, m, n, n + whole <= end ? whole : end - n, results);
    }
  }
}

// ---- The weight is [inner, columns] ----

/// x[0..deep) of all rows, the next ones of all rows, and so on: as they are needed.
template <class P>
void prepare_columns(const NzMatmul& a, void* prepared) {
  typename P::X* to = static_cast<typename P::X*>(prepared);
  std::memset(to, 0, a.rows * padded(a.inner) * sizeof *to);
  for (int64_t m = 0; m < a.rows; ++m) {
    const auto* row = static_cast<const typename P::Number*>(a.x) + m * a.inner;
    for (int64_t k = 0; k < a.inner; k += block) {
      const int64_t count = k + block <= a.inner ? block : a.inner - k;
      typename P::X piece[block];
      convert(row + k, piece, count);
      for (int64_t i = 0; i < count; ++i)
        to[((k + i) / P::deep * a.rows + m) * P::deep + (k + i) % P::deep] = piece[i];
    }
  }
}

/// `M` rows of x with `C` columns of blocks of a weight.
template <class P, int M, int C>
void multiply_column(const NzMatmul& a, const typename P::Number* weight, const typename P::X* x, int64_t m,
                     int64_t n) {
  constexpr int side_by_side = M * C >= 4 ? 1 : 4 / (M * C);  // sums that hide the latency of the addition
  Vec<float> sums[side_by_side][C][M][block / lanes] = {};
  // Far enough for the memory, of which few rows ask much; several columns ask for it side by side.
  constexpr int ahead = 4096 / C / sizeof(*weight);
  const int64_t inner = padded(a.inner), stride = inner * block;
  for (int64_t k = 0; k < inner; k += side_by_side * P::deep) {
#pragma GCC unroll 4
    for (int s = 0; s < side_by_side; ++s) {
      const typename P::X* factors = x + ((k / P::deep + s) * a.rows + m) * P::deep;
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const auto* rows = weight + c * stride + (k + s * P::deep) * block;
        __builtin_prefetch(rows + ahead);
        for (int p = 0; p < block / lanes; ++p) {
          const auto w = P::load_deep(rows + p * lanes);
#pragma GCC unroll 16
          for (int i = 0; i < M; ++i)
            sums[s][c][i][p] = P::multiply_add(sums[s][c][i][p], w, P::spread(factors + i * P::deep));
        }
      }
    }
  }
  for (int c = 0; c < C; ++c, n += block) {
    for (int i = 0; i < M; ++i) {
      float results[block];
      for (int p = 0; p < block / lanes; ++p) {
        Vec<float> sum = sums[0][c][i][p];
        for (int s = 1; s < side_by_side; ++s) sum += sums[s][c][i][p];
        store_vector(results + p * lanes, sum);
      }
      store_results<typename P::Number>(a, m + i, n, n + block <= a.columns ? block : a.columns - n, results);
    }
  }
}

template <class P>
void multiply_columns(const NzMatmul& a, const void* prepared, int64_t begin, int64_t end) {
  constexpr int most = lanes == block ? 16 : 4;  // rows whose sums fit into registers
  constexpr int streams = 4;  // of the weight: one does not take all that the memory gives to one row
  const auto* x = static_cast<const typename P::X*>(prepared);
  for (int64_t n = begin; n < end;) {
    const auto* weight = static_cast<const typename P::Number*>(a.weight) + n * padded(a.inner);
    if (a.rows == 1 && n + streams * block <= end) {
      multiply_column<P, 1, streams>(a, weight, x, 0, n);
      n += streams * block;
      continue;
    }
    in_groups<most>(a.rows, [&]<int M>(int64_t m, std::integral_constant<int, M>) {
      multiply_column<P, M, 1>(a, weight, x, m, n);
    });
    n += block;
  }
}

}  // namespace
}  // namespace cann_host::kernels
