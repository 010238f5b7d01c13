#pragma once

#include "cann_host/kernels/convolution.h"

namespace cann_host::kernels {

/// Filters that lie side by side in a packed weight; those that are missing are zeros. The weight is
/// [filters / packed_filters, channels, packed_filters], and of that 16 for Winograd's algorithm.
constexpr int64_t packed_filters = 32;

/// Units of the image times some filters. Units are tiles of 2x2 results, or single results, numbered along
/// rows, then columns, then images.
struct ConvolutionPart {
  int64_t first, count;
  int64_t first_filter, last_filter;  ///< the former a multiple of packed_filters
};

struct WinogradKernels {
  /// Of tiles: [16, count, channels] numbers, by which weights are multiplied.
  void (*transform)(const Convolution&, const ConvolutionPart&, float* image);
  /// Their results for some filters. `sums` is room for [16, count, packed_filters] numbers, `plain` for
  /// [9, channels, packed_filters].
  void (*multiply)(const Convolution&, const ConvolutionPart&, const float* image, float* sums, float* plain);
};

/// Results of 1x1 kernels. `image` is room for [count, channels] numbers, used where the stride is not 1.
using OneByOneKernel = void (*)(const Convolution&, const ConvolutionPart&, float* image);

struct ConvolutionKernels {
  WinogradKernels winograd;
  OneByOneKernel one_by_one;
};

namespace baseline {
extern const WinogradKernels winograd_kernels;
extern const OneByOneKernel one_by_one_kernel;
}  // namespace baseline
namespace avx2 {
extern const WinogradKernels winograd_kernels;
extern const OneByOneKernel one_by_one_kernel;
}  // namespace avx2
namespace avx512 {
extern const WinogradKernels winograd_kernels;
extern const OneByOneKernel one_by_one_kernel;
}  // namespace avx512

}  // namespace cann_host::kernels
