// Transforms and products of Winograd's algorithm. Compiled once per instruction set.

#include "cann_host/kernels/convolution_products.h"

namespace cann_host::kernels {
namespace {

constexpr int tile = 2;          // results of a tile along each side
constexpr int patch = tile + 2;  // pixels that they are made of
constexpr int products = patch * patch;

/// Where a tile lies.
struct Place {
  int64_t image, row, column;  // of its first result
};

Place place_of(const Convolution& a, int64_t number) {
  const int64_t rows = (a.result_height + tile - 1) / tile, columns = (a.result_width + tile - 1) / tile;
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

void transform(const Convolution& a, const ConvolutionPart& tiles, float* image) {
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

/// A^T of a column of four: two results.
template <class V>
void sum_products(V (&out)[tile], V a, V b, V c, V d) {
  out[0] = a + b + c;
  out[1] = b - c - d;
}

/// Calls f(y, x, number of the result) for each result of a tile.
template <class F>
void each_result(const Convolution& a, const Place& at, const F& f) {
  for (int y = 0; y < tile && at.row + y < a.result_height; ++y) {
    for (int x = 0; x < tile && at.column + x < a.result_width; ++x)
      f(y, x, ((at.image * a.result_height) + at.row + y) * a.result_width + at.column + x);
  }
}

/// The results of one tile, of sums that are `apart`. False if one is infinite or no number.
template <class Span>
bool store_tile(const Convolution& a, const Place& at, int64_t filter, Span span, const float* sums,
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
  each_result(a, at, [&](int y, int x, int64_t place) { store_result(a, place, filter, span, rows[y][x]); });
  return mask_bits(differences != 0) == 0;
}

/// The weight [3, 3, channels, packed_filters] of what pack_convolution() made of it, up to rounding.
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
void store_tile_by_definition(const Convolution& a, const Place& at, int64_t filter, Span span,
                              const float* plain) {
  each_result(a, at, [&](int y, int x, int64_t place) {
    Vec<float> sum{};
    for (int i = 0; i < 9; ++i) {
      const int64_t row = at.row + y + i / 3 - a.padding[0], column = at.column + x + i % 3 - a.padding[1];
      if (row < 0 || row >= a.height || column < 0 || column >= a.width) continue;
      const float* pixel = a.x + ((at.image * a.height + row) * a.width + column) * a.channels;
      const float* factors = plain + i * a.channels * packed_filters;
      for (int64_t c = 0; c < a.channels; ++c)
        sum += pixel[c] * load_vector<Vec<float>>(factors + c * packed_filters);
    }
    store_result(a, place, filter, span, sum);
  });
}

void multiply(const Convolution& a, const ConvolutionPart& tiles, const float* image, float* sums,
              float* plain) {
  const int64_t numbers = a.channels * packed_filters;  // of a group of filters and one product
  const int64_t weight_apart = (a.filters + packed_filters - 1) / packed_filters * numbers;
  const int64_t sums_apart = tiles.count * packed_filters;
  for (int64_t first = tiles.first_filter; first < tiles.last_filter; first += packed_filters) {
    const float* weight = a.weight + first / packed_filters * numbers;
    for (int i = 0; i < products; ++i) {
      multiply_all(tiles.count, image + i * tiles.count * a.channels, weight + i * weight_apart, a.channels,
                   {}, sums + i * sums_apart);
    }
    const int64_t left = tiles.last_filter - first;
    bool unpacked = false;
    for (int64_t t = 0; t < tiles.count; ++t) {
      const Place at = place_of(a, tiles.first + t);
      each_vector(left < packed_filters ? left : packed_filters, [&](int64_t i, auto span) {
        if (store_tile(a, at, first + i, span, sums + t * packed_filters + i, sums_apart)) return;
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
