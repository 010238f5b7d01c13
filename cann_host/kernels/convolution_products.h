#pragma once

// What the convolutions share, for files that are compiled once per instruction set.

#include "cann_host/kernels/convolution_kernels.h"
#include "cann_host/kernels/row.h"

namespace cann_host::kernels {
namespace {

/// Rows whose sums with two vectors of filters fit into registers.
#if defined(__AVX512F__)
constexpr int rows_at_once = 14;
#elif defined(__aarch64__)
constexpr int rows_at_once = 12;
#else
constexpr int rows_at_once = 6;
#endif
constexpr int vectors = 2;

/// What is asked for while products are summed: of each row lines that a group of filters fills, and the rows
/// of the image that come next.
struct Ahead {
  const float* results = nullptr;
  int64_t row_stride = 0;
  bool image = false;
};
constexpr int64_t line = 64 / sizeof(float);
constexpr int64_t lines_of_row = packed_filters / line;

/// sums[row, filter] of `rows` rows of the image with a group of filters.
template <int rows>
void multiply_rows(const float* image, const float* weight, int64_t channels, Ahead ahead, float* sums) {
  for (int64_t v = 0; v < packed_filters; v += vectors * lanes) {
    Vec<float> sum[rows][vectors];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < vectors; ++i) sum[r][i] = Vec<float>{};
    }
    const float* factors = weight + v;
    const float* next = image + (ahead.image ? rows * channels : 0);
    const int64_t step = ahead.image ? rows : 0;
    const auto add = [&](int64_t c) {
      Vec<float> factor[vectors];
      for (int i = 0; i < vectors; ++i) factor[i] = load_vector<Vec<float>>(factors + i * lanes);
      factors += packed_filters;
      __builtin_prefetch(next + c * step);
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const auto pixel = splat<Vec<float>>(image[r * channels + c]);
        for (int i = 0; i < vectors; ++i) sum[r][i] += pixel * factor[i];
      }
    };
    int64_t c = 0;
    if (v == 0 && ahead.results != nullptr) {
      for (; c < rows * lines_of_row && c < channels; ++c) {
        __builtin_prefetch(ahead.results + c / lines_of_row * ahead.row_stride + c % lines_of_row * line);
        add(c);
      }
    }
    for (; c < channels; ++c) add(c);
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < vectors; ++i) store_vector(sums + r * packed_filters + v + i * lanes, sum[r][i]);
    }
  }
}

/// The same for any number of rows.
template <int most = rows_at_once>
void multiply_all(int64_t count, const float* image, const float* weight, int64_t channels, Ahead ahead,
                  float* sums) {
  for (; count >= most; count -= most) {
    multiply_rows<most>(image, weight, channels, ahead, sums);
    image += most * channels;
    sums += most * packed_filters;
    if (ahead.results != nullptr) ahead.results += most * ahead.row_stride;
  }
  if constexpr (most > 1) {
    if (count > 0) multiply_all<(most + 1) / 2>(count, image, weight, channels, ahead, sums);
  }
}

/// What follows a convolution, for filters from number `filter` on of the result number `place` in y.
template <class Span>
void store_result(const Convolution& a, int64_t place, int64_t filter, Span span, Vec<float> result) {
  const int64_t offset = place * a.filters + filter;
  if (a.bias != nullptr) result += load(a.bias + filter, span);
  if (a.residual != nullptr) result += load(a.residual + offset, span);
  if (a.relu) result = select(result < 0, Vec<float>{}, result);
  store(a.y + offset, result, span);
}

}  // namespace
}  // namespace cann_host::kernels
