#include "cann_host/kernels/winograd.h"

#include <memory>

#include "cann_host/kernels/isa.h"
#include "cann_host/kernels/parallel.h"
#include "cann_host/kernels/winograd_kernels.h"

namespace cann_host::kernels {
namespace {

const WinogradKernels& winograd_kernels() noexcept {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::avx512:
      return avx512::winograd_kernels;
    case Isa::avx2:
      return avx2::winograd_kernels;
    case Isa::baseline:
      break;
  }
#endif
  return baseline::winograd_kernels;
}

constexpr int products = 16;

int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// Tiles that are transformed at a time: their images stay in the L2 cache, but weights are read anew for
/// each such part.
int64_t tiles_together(int64_t tiles, int64_t channels) {
  constexpr int64_t most_numbers = 1 << 17, least = 28, most = 112;
  return std::min(tiles, std::clamp(most_numbers / products / channels / least * least, least, most));
}

/// G of a column of three.
void transform_column(float (&out)[4], float a, float b, float c) {
  out[0] = a;
  out[1] = (a + b + c) / 2;
  out[2] = (a - b + c) / 2;
  out[3] = c;
}

}  // namespace

int64_t winograd_numbers(int64_t filters, int64_t channels) {
  return products * channels * rounded_up(filters, winograd_filters);
}

void pack_winograd(const float* weight, int64_t filters, int64_t channels, float* packed) {
  const int64_t groups = rounded_up(filters, winograd_filters) / winograd_filters;
  const int64_t apart = groups * channels * winograd_filters;
  parallel_for(groups * winograd_filters, 32, 1, [&](int64_t begin, int64_t end) {
    for (int64_t filter = begin; filter < end; ++filter) {
      for (int64_t c = 0; c < channels; ++c) {
        float columns[3][4] = {}, row[4];
        const float* w = weight + (filter * channels + c) * 9;
        for (int x = 0; x < 3 && filter < filters; ++x)
          transform_column(columns[x], w[x], w[3 + x], w[6 + x]);
        float* to = packed + (filter / winograd_filters * channels + c) * winograd_filters +
                    filter % winograd_filters;
        for (int y = 0; y < 4; ++y) {
          transform_column(row, columns[0][y], columns[1][y], columns[2][y]);
          for (int x = 0; x < 4; ++x) to[(y * 4 + x) * apart] = row[x];
        }
      }
    }
  });
}

bool winograd_pays(int64_t results, int64_t channels, int64_t filters) {
  return channels >= 16 && filters >= 16 && results >= 64;
}

void convolve_winograd(const WinogradConvolution& a) {
  const WinogradKernels& kernels = winograd_kernels();
  const int64_t rows = a.height + 2 * a.padding[0] - 2, columns = a.width + 2 * a.padding[1] - 2;
  const int64_t tiles = a.batch * ((rows + 1) / 2) * ((columns + 1) / 2);
  if (tiles <= 0) return;
  const int64_t together = tiles_together(tiles, a.channels), parts = (tiles + together - 1) / together;
  // Few tiles are shared out by filters, and each thread transforms the image for itself.
  const int64_t shares = parts >= omp_get_max_threads() ? 1 : omp_get_max_threads();
  const int64_t filters = rounded_up((a.filters + shares - 1) / shares, winograd_filters);
  constexpr int64_t products_a_thread = 1 << 18;
  const int64_t grain =
      std::max<int64_t>(1, products_a_thread / (products * together * a.channels * filters));
  parallel_for(parts * shares, grain, 1, [&](int64_t begin, int64_t end) {
    const auto image = std::make_unique_for_overwrite<float[]>(products * together * a.channels);
    const auto sums = std::make_unique_for_overwrite<float[]>(products * together * winograd_filters);
    const auto plain = std::make_unique_for_overwrite<float[]>(9 * a.channels * winograd_filters);
    int64_t transformed = -1;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t part = i / shares, filter = i % shares * filters;
      if (filter >= a.filters) continue;
      const WinogradTiles some{part * together, std::min(together, tiles - part * together), filter,
                               std::min(filter + filters, a.filters)};
      if (part != transformed) kernels.transform(a, some, image.get());
      transformed = part;
      kernels.multiply(a, some, image.get(), sums.get(), plain.get());
    }
  });
}

}  // namespace cann_host::kernels
