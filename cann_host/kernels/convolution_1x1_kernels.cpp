// Convolutions of 1x1 as matrix products. Compiled once per instruction set.

#include "cann_host/kernels/convolution_products.h"

namespace cann_host::kernels {
namespace {

/// The pixels of some results, one behind the other.
void gather(const Convolution& a, const ConvolutionPart& part, float* image) {
  for (int64_t i = 0; i < part.count; ++i) {
    const int64_t place = part.first + i, line = place / a.result_width;
    const int64_t row = line % a.result_height * a.stride[0], column = place % a.result_width * a.stride[1];
    const int64_t pixel = (line / a.result_height * a.height + row) * a.width + column;
    std::memcpy(image + i * a.channels, a.x + pixel * a.channels, a.channels * sizeof(float));
  }
}

void one_by_one(const Convolution& a, const ConvolutionPart& part, float* image) {
  const bool dense = a.stride[0] == 1 && a.stride[1] == 1;
  if (!dense) gather(a, part, image);
  const float* pixels = dense ? a.x + part.first * a.channels : image;
  float sums[rows_at_once * packed_filters];
  for (int64_t filter = part.first_filter; filter < part.last_filter; filter += packed_filters) {
    const float* weight = a.weight + filter * a.channels;
    const int64_t there =
        part.last_filter - filter < packed_filters ? part.last_filter - filter : packed_filters;
    for (int64_t row = 0; row < part.count; row += rows_at_once) {
      const int64_t place = part.first + row;
      const int64_t count = part.count - row < rows_at_once ? part.count - row : rows_at_once;
      // Results are written late: their lines are asked for, and are there then.
      const Ahead ahead{(a.residual == nullptr ? a.y : a.residual) + place * a.filters + filter, a.filters,
                        dense && filter == part.first_filter};
      multiply_all(count, pixels + row * a.channels, weight, a.channels, ahead, sums);
      for (int64_t r = 0; r < count; ++r) {
        each_vector(there, [&](int64_t i, auto span) {
          store_result(a, place + r, filter + i, span,
                       load_vector<Vec<float>>(sums + r * packed_filters + i));
        });
      }
    }
  }
}

}  // namespace

namespace CANN_HOST_ISA {

extern const OneByOneKernel one_by_one_kernel = &one_by_one;

}  // namespace CANN_HOST_ISA
}  // namespace cann_host::kernels
