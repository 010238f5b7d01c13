#include "cann_host/kernels/convolution.h"

#include <memory>

#include "cann_host/kernels/convolution_kernels.h"
#include "cann_host/kernels/isa.h"
#include "cann_host/kernels/parallel.h"

namespace cann_host::kernels {
namespace {

ConvolutionKernels convolution_kernels() noexcept {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::avx512:
      return {avx512::winograd_kernels, avx512::one_by_one_kernel};
    case Isa::avx2:
      return {avx2::winograd_kernels, avx2::one_by_one_kernel};
    case Isa::baseline:
      break;
  }
#endif
  return {baseline::winograd_kernels, baseline::one_by_one_kernel};
}

constexpr int products = 16;  // of a tile in Winograd's algorithm

int64_t divided(int64_t n, int64_t by) { return (n + by - 1) / by; }
int64_t groups_of(int64_t filters) { return divided(filters, packed_filters); }

std::unique_ptr<float[]> room_for(int64_t numbers) {
  return std::make_unique_for_overwrite<float[]>(numbers);
}

/// Calls work(from, to, part) for parts with numbers [from, to) of `units` times `filters`: of at most
/// `together` units, and of all filters where there are parts enough for all threads. Of a part of few units
/// each thread takes some filters. `multiplications`: of a unit with a filter.
template <class Work>
void share_out(int64_t units, int64_t filters, int64_t together, int64_t multiplications, const Work& work) {
  const int64_t parts = divided(units, together), threads = omp_get_max_threads();
  const int64_t shares = parts >= threads ? 1 : std::min(threads, groups_of(filters));
  const int64_t some = groups_of(divided(filters, shares)) * packed_filters;
  constexpr int64_t least = 1 << 20;
  const int64_t grain = std::max<int64_t>(1, least / (multiplications * std::min(units, together) * some));
  parallel_for(parts * shares, grain, 1, [&](int64_t begin, int64_t end) {
    work([&](const auto& each) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i / shares * together, filter = i % shares * some;
        if (filter < filters)
          each(ConvolutionPart{first, std::min(together, units - first), filter,
                               std::min(filter + some, filters)});
      }
    });
  });
}

void by_winograd(const Convolution& a) {
  const WinogradKernels kernels = convolution_kernels().winograd;
  const int64_t tiles = a.batch * divided(a.result_height, 2) * divided(a.result_width, 2);
  constexpr int64_t together = 28;  // for whose images and sums the L2 cache is large enough
  share_out(tiles, a.filters, together, products * a.channels, [&](const auto& each_part) {
    const auto image = room_for(products * together * a.channels);
    const auto sums = room_for(products * together * packed_filters);
    const auto plain = room_for(9 * a.channels * packed_filters);
    int64_t transformed = -1;
    each_part([&](const ConvolutionPart& part) {
      if (part.first != transformed) kernels.transform(a, part, image.get());
      transformed = part.first;
      kernels.multiply(a, part, image.get(), sums.get(), plain.get());
    });
  });
}

void by_products(const Convolution& a) {
  const OneByOneKernel kernel = convolution_kernels().one_by_one;
  constexpr int64_t numbers = 1 << 16;  // of the image, half of an L2 cache's
  constexpr int64_t rows = 84;          // a multiple of what the kernels take at a time
  const int64_t together = std::max<int64_t>(1, numbers / a.channels / rows) * rows;
  const bool dense = a.stride[0] == 1 && a.stride[1] == 1;
  share_out(a.batch * a.result_height * a.result_width, a.filters, together, a.channels,
            [&](const auto& each_part) {
              const auto image = room_for(dense ? 0 : together * a.channels);
              each_part([&](const ConvolutionPart& part) { kernel(a, part, image.get()); });
            });
}

/// G of a column of three.
void transform_column(float (&out)[4], float a, float b, float c) {
  out[0] = a;
  out[1] = (a + b + c) / 2;
  out[2] = (a - b + c) / 2;
  out[3] = c;
}

/// A filter of 3x3 of one channel, in numbers that are `apart`.
void pack_3x3(const float* weight, int64_t apart, float* packed) {
  float columns[3][4], row[4];
  for (int x = 0; x < 3; ++x) transform_column(columns[x], weight[x], weight[3 + x], weight[6 + x]);
  for (int y = 0; y < 4; ++y) {
    transform_column(row, columns[0][y], columns[1][y], columns[2][y]);
    for (int x = 0; x < 4; ++x) packed[(y * 4 + x) * apart] = row[x];
  }
}

}  // namespace

int64_t packed_numbers(ConvolutionKernel kernel, int64_t filters, int64_t channels) {
  return (kernel == ConvolutionKernel::three_by_three ? products : 1) * channels * groups_of(filters) *
         packed_filters;
}

void pack_convolution(ConvolutionKernel kernel, const float* weight, int64_t filters, int64_t channels,
                      float* packed) {
  const int64_t all = groups_of(filters) * packed_filters;
  std::fill_n(packed, filters == all ? 0 : packed_numbers(kernel, filters, channels), 0.0f);
  parallel_for(filters, 32, packed_filters, [&](int64_t begin, int64_t end) {
    for (int64_t filter = begin; filter < end; ++filter) {
      float* to = packed + filter / packed_filters * channels * packed_filters + filter % packed_filters;
      for (int64_t c = 0; c < channels; ++c, to += packed_filters) {
        if (kernel == ConvolutionKernel::one_by_one) {
          *to = weight[filter * channels + c];
        } else {
          pack_3x3(weight + (filter * channels + c) * 9, all * channels, to);
        }
      }
    }
  });
}

bool convolution_pays(ConvolutionKernel kernel, int64_t results, int64_t channels, int64_t filters) {
  const int64_t least = kernel == ConvolutionKernel::three_by_three ? 64 : 128;
  return results >= least && channels >= 16 && filters >= 16;
}

void convolve(ConvolutionKernel kernel, const Convolution& a) {
  kernel == ConvolutionKernel::three_by_three ? by_winograd(a) : by_products(a);
}

}  // namespace cann_host::kernels
