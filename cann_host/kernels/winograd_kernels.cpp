// Transforms and products of Winograd's algorithm. Compiled once per instruction set.

#include "cann_host/kernels/winograd_kernels.h"

#include "cann_host/kernels/row.h"

namespace cann_host::kernels {
namespace {

constexpr int tile = 2;          // results of a tile along each side
constexpr int patch = tile + 2;  // pixels that they are made of
constexpr int products = patch * patch;

/// Where a tile lies.
struct Place {
  int64_t image, row, column;  // of its first result
};

int64_t result_rows(const WinogradConvolution& a) { return a.height + 2 * a.padding[0] - 2; }
int64_t result_columns(const WinogradConvolution& a) { return a.width + 2 * a.padding[1] - 2; }

Place place_of(const WinogradConvolution& a, int64_t number) {
  const int64_t rows = (result_rows(a) + tile - 1) / tile, columns = (result_columns(a) + tile - 1) / tile;
  return {number / (rows * columns), number / columns % rows * tile, number % columns * tile};
}

/// B^T of a column of four: what is multiplied.
template <class V>
void transform_pixels(V (&out)[patch], V a, V b, V c, V d) {
  out[0] = a - c;
  out[1] = b + c;
  out[2] = c - b;
  out[3] = b - d;
}

template <class Span>
void transform_patch(const float* const (&pixels)[products], int64_t channel, Span span, int64_t apart,
                     float* to) {
  Vec<float> columns[patch][patch];  // [column][row]
  for (int x = 0; x < patch; ++x) {
    const auto pixel = [&](int y) {
      const float* p = pixels[y * patch + x];
      return p == nullptr ? Vec<float>{} : load(p + channel, span);
    };
    transform_pixels(columns[x], pixel(0), pixel(1), pixel(2), pixel(3));
  }
  for (int y = 0; y < patch; ++y) {
    Vec<float> row[patch];
    transform_pixels(row, columns[0][y], columns[1][y], columns[2][y], columns[3][y]);
    for (int x = 0; x < patch; ++x) store(to + (y * patch + x) * apart + channel, row[x], span);
  }
}

void transform(const WinogradConvolution& a, const WinogradTiles& tiles, float* image) {
  for (int64_t t = 0; t < tiles.count; ++t) {
    const Place at = place_of(a, tiles.first + t);
    const float* pixels[products];  // null outside of the image
    for (int i = 0; i < products; ++i) {
      const int64_t y = at.row - a.padding[0] + i / patch, x = at.column - a.padding[1] + i % patch;
      const bool inside = y >= 0 && y < a.height && x >= 0 && x < a.width;
      pixels[i] = inside ? a.x + ((at.image * a.height + y) * a.width + x) * a.channels : nullptr;
    }
    each_vector(a.channels, [&](int64_t channel, auto span) {
      transform_patch(pixels, channel, span, tiles.count * a.channels, image + t * a.channels);
    });
  }
}

/// Tiles whose sums with two vectors of filters fit into registers.
#if defined(__AVX512F__)
constexpr int tiles_at_once = 14;
#elif defined(__aarch64__)
constexpr int tiles_at_once = 12;
#else
constexpr int tiles_at_once = 6;
#endif
constexpr int vectors = 2;

/// sums[t, filter] = the sum over channels of image[t, channel] * weight[channel, filter].
template <int count>
void multiply_tiles(const float* image, const float* weight, int64_t channels, float* sums) {
  for (int64_t v = 0; v < winograd_filters; v += vectors * lanes) {
    Vec<float> sum[count][vectors] = {};
    const float* factors = weight + v;
    for (int64_t c = 0; c < channels; ++c, factors += winograd_filters) {
      Vec<float> factor[vectors];
      for (int i = 0; i < vectors; ++i) factor[i] = load_vector<Vec<float>>(factors + i * lanes);
#pragma GCC unroll 16
      for (int t = 0; t < count; ++t) {
        const auto pixel = splat<Vec<float>>(image[t * channels + c]);
        for (int i = 0; i < vectors; ++i) sum[t][i] += pixel * factor[i];
      }
    }
    for (int t = 0; t < count; ++t) {
      for (int i = 0; i < vectors; ++i) store_vector(sums + t * winograd_filters + v + i * lanes, sum[t][i]);
    }
  }
}

/// The same for any number of tiles.
template <int most = tiles_at_once>
void multiply_all(int64_t count, const float* image, const float* weight, int64_t channels, float* sums) {
  for (; count >= most; count -= most, image += most * channels, sums += most * winograd_filters)
    multiply_tiles<most>(image, weight, channels, sums);
  if constexpr (most > 1) {
    if (count > 0) multiply_all<(most + 1) / 2>(count, image, weight, channels, sums);
  }
}

/// A^T of a column of four: two results.
template <class V>
void sum_products(V (&out)[tile], V a, V b, V c, V d) {
  out[0] = a + b + c;
  out[1] = b - c - d;
}

/// What follows a convolution, for filters from number `filter` on of the result in row `y` and column `x`.
template <class Span>
void store_result(const WinogradConvolution& a, const Place& at, int y, int x, int64_t filter, Span span,
                  Vec<float> result) {
  const int64_t pixel = (at.image * result_rows(a) + at.row + y) * result_columns(a) + at.column + x;
  const int64_t offset = pixel * a.filters + filter;
  if (a.bias != nullptr) result += load(a.bias + filter, span);
  if (a.residual != nullptr) result += load(a.residual + offset, span);
  if (a.relu) result = select(result < 0, Vec<float>{}, result);
  store(a.y + offset, result, span);
}

/// Calls f(y, x) for each result of a tile.
template <class F>
void each_result(const WinogradConvolution& a, const Place& at, const F& f) {
  for (int y = 0; y < tile && at.row + y < result_rows(a); ++y) {
    for (int x = 0; x < tile && at.column + x < result_columns(a); ++x) f(y, x);
  }
}

/// The results of one tile, of sums that are `apart`. False if one is infinite or no number.
template <class Span>
bool store_tile(const WinogradConvolution& a, const Place& at, int64_t filter, Span span, const float* sums,
                int64_t apart) {
  Vec<float> columns[patch][tile], rows[tile][tile];
  for (int x = 0; x < patch; ++x) {
    const auto sum = [&](int y) { return load_vector<Vec<float>>(sums + (y * patch + x) * apart); };
    sum_products(columns[x], sum(0), sum(1), sum(2), sum(3));
  }
  Vec<float> differences{};  // NaN where a result has no difference to itself
  for (int y = 0; y < tile; ++y) {
    sum_products(rows[y], columns[0][y], columns[1][y], columns[2][y], columns[3][y]);
    for (int x = 0; x < tile; ++x) differences += rows[y][x] - rows[y][x];
  }
  each_result(a, at, [&](int y, int x) { store_result(a, at, y, x, filter, span, rows[y][x]); });
  return mask_bits(differences != 0) == 0;
}

/// The weight [3, 3, channels, winograd_filters] of what pack_winograd() made of it, up to rounding.
void unpack(const float* packed, int64_t apart, int64_t numbers, float* plain) {
  for (int64_t i = 0; i < numbers; i += lanes) {
    const auto at = [&](int y, int x) {
      return load_vector<Vec<float>>(packed + (y * patch + x) * apart + i);
    };
    Vec<float> columns[patch][3];
    for (int x = 0; x < patch; ++x) {
      columns[x][0] = at(0, x);
      columns[x][1] = at(1, x) - at(2, x);
      columns[x][2] = at(3, x);
    }
    for (int y = 0; y < 3; ++y) {
      const Vec<float> row[3] = {columns[0][y], columns[1][y] - columns[2][y], columns[3][y]};
      for (int x = 0; x < 3; ++x) store_vector(plain + (y * 3 + x) * numbers + i, row[x]);
    }
  }
}

/// The results of one tile as the sums of products that define them. Where numbers are not finite, others
/// than theirs would become NaN in differences of the algorithm.
template <class Span>
void store_tile_by_definition(const WinogradConvolution& a, const Place& at, int64_t filter, Span span,
                              const float* plain) {
  each_result(a, at, [&](int y, int x) {
    Vec<float> sum{};
    for (int i = 0; i < 9; ++i) {
      const int64_t row = at.row + y + i / 3 - a.padding[0], column = at.column + x + i % 3 - a.padding[1];
      if (row < 0 || row >= a.height || column < 0 || column >= a.width) continue;
      const float* pixel = a.x + ((at.image * a.height + row) * a.width + column) * a.channels;
      const float* factors = plain + i * a.channels * winograd_filters;
      for (int64_t c = 0; c < a.channels; ++c)
        sum += pixel[c] * load_vector<Vec<float>>(factors + c * winograd_filters);
    }
    store_result(a, at, y, x, filter, span, sum);
  });
}

void multiply(const WinogradConvolution& a, const WinogradTiles& tiles, const float* image, float* sums,
              float* plain) {
  const int64_t numbers = a.channels * winograd_filters;  // of a group of filters and one product
  const int64_t weight_apart = (a.filters + winograd_filters - 1) / winograd_filters * numbers;
  const int64_t sums_apart = tiles.count * winograd_filters;
  for (int64_t first = tiles.first_filter; first < tiles.last_filter; first += winograd_filters) {
    const float* weight = a.weight + first / winograd_filters * numbers;
    for (int i = 0; i < products; ++i) {
      multiply_all(tiles.count, image + i * tiles.count * a.channels, weight + i * weight_apart, a.channels,
                   sums + i * sums_apart);
    }
    const int64_t left = tiles.last_filter - first;
    bool unpacked = false;
    for (int64_t t = 0; t < tiles.count; ++t) {
      const Place at = place_of(a, tiles.first + t);
      each_vector(left < winograd_filters ? left : winograd_filters, [&](int64_t i, auto span) {
        if (store_tile(a, at, first + i, span, sums + t * winograd_filters + i, sums_apart)) return;
        if (!unpacked) unpack(weight, weight_apart, numbers, plain);
        unpacked = true;
        store_tile_by_definition(a, at, first + i, span, plain + i);
      });
    }
  }
}

}  // namespace

namespace CANN_HOST_ISA {

extern const WinogradKernels winograd_kernels = {.transform = &transform, .multiply = &multiply};

}  // namespace CANN_HOST_ISA
}  // namespace cann_host::kernels
