#pragma once

// Convolutions in float32 of images with the channels last, for weights that were packed before, and what
// follows them in the same pass: where they are faster than oneDNN's.
//
// Kernels of 3x3 by Winograd's algorithm F(2x2, 3x3): four results of 16 products instead of 36 (Lavin and
// Gray, "Fast Algorithms for Convolutional Neural Networks", 2015, section 4.1). Its rounding errors are
// about twice those of the sum of 9 * channels products that it replaces. Results that are infinite or NaN
// are computed a second time, by the definition.
//
// Kernels of 1x1 as matrix products, which keep a result in registers until bias, residual and relu are done.

#include <cstdint>

namespace cann_host::kernels {

enum class ConvolutionKernel : int32_t { one_by_one = 1, three_by_three = 3 };

/// y = relu(convolution of x + bias + residual).
struct Convolution {
  const float* x;         ///< [batch, height, width, channels]
  const float* weight;    ///< of pack_convolution()
  const float* bias;      ///< [filters]; may be null
  const float* residual;  ///< like y; may be null
  float* y;               ///< [batch, result_height, result_width, filters]
  int64_t batch, height, width, channels, filters;
  int64_t result_height, result_width;
  int64_t padding[2];  ///< of 3x3: rows above, columns to the left
  int64_t stride[2];   ///< of 1x1
  bool relu;           ///< NaN stays NaN
};
void convolve(ConvolutionKernel kernel, const Convolution& arguments);

/// Numbers in a packed weight.
int64_t packed_numbers(ConvolutionKernel kernel, int64_t filters, int64_t channels);
/// weight: [filters, channels, kernel, kernel], for 3x3 of finite numbers.
void pack_convolution(ConvolutionKernel kernel, const float* weight, int64_t filters, int64_t channels,
                      float* packed);

/// Whether it is faster than oneDNN for so many results of a filter: of a few, reading the weights takes the
/// time, and those for Winograd's algorithm are nearly twice as large.
bool convolution_pays(ConvolutionKernel kernel, int64_t results, int64_t channels, int64_t filters);

}  // namespace cann_host::kernels
