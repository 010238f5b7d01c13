#pragma once

#include "cann_host/kernels/winograd.h"

namespace cann_host::kernels {

/// Filters that lie side by side in a packed weight, [16 products, filters / winograd_filters, channels,
/// winograd_filters]. Those that are missing are zeros.
constexpr int64_t winograd_filters = 32;

/// Tiles are of 2 x 2 results, numbered along rows, then columns, then images.
struct WinogradTiles {
  int64_t first, count;
  int64_t first_filter, last_filter;  ///< the former a multiple of winograd_filters
};

struct WinogradKernels {
  /// Of tiles that lie in `image`: [16, count, channels] numbers, by which weights are multiplied.
  void (*transform)(const WinogradConvolution&, const WinogradTiles&, float* image);
  /// Their results for some filters. `sums` is room for [16, count, winograd_filters] numbers, `plain` for
  /// [9, channels, winograd_filters].
  void (*multiply)(const WinogradConvolution&, const WinogradTiles&, const float* image, float* sums,
                   float* plain);
};

namespace baseline {
extern const WinogradKernels winograd_kernels;
}
namespace avx2 {
extern const WinogradKernels winograd_kernels;
}
namespace avx512 {
extern const WinogradKernels winograd_kernels;
}

}  // namespace cann_host::kernels
