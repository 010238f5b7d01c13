#pragma once

// Convolutions of 3x3 in float32 by Winograd's algorithm F(2x2, 3x3): four results of 16 products instead of
// 36 (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015, section 4.1). Its rounding
// errors are about twice those of the sum of 9 * channels products that it replaces. Results that are
// infinite or NaN are computed a second time, by the definition.

#include <cstdint>

namespace cann_host::kernels {

/// y = convolution of x with stride 1, images with the channels last, and what follows it.
struct WinogradConvolution {
  const float* x;         ///< [batch, height, width, channels]
  const float* weight;    ///< of pack_winograd()
  const float* bias;      ///< [filters]; may be null
  const float* residual;  ///< like y, added to it; may be null
  float* y;               ///< [batch, height + 2 * padding[0] - 2, width + 2 * padding[1] - 2, filters]
  int64_t batch, height, width, channels, filters;
  int64_t padding[2];  ///< rows above and below, columns to the left and to the right
  bool relu;           ///< of the sum; NaN stays NaN
};
void convolve_winograd(const WinogradConvolution& arguments);

/// Numbers in a packed weight.
int64_t winograd_numbers(int64_t filters, int64_t channels);
/// weight: [filters, channels, 3, 3], of finite numbers.
void pack_winograd(const float* weight, int64_t filters, int64_t channels, float* packed);

/// Whether it is faster than oneDNN, for sizes as above and images of `results` pixels in all: transformed
/// weights are nearly twice as large, so that few results do not pay for reading them.
bool winograd_pays(int64_t results, int64_t channels, int64_t filters);

}  // namespace cann_host::kernels
