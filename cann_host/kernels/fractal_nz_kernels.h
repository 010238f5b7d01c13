#pragma once

#include "cann_host/kernels/fractal_nz.h"

namespace cann_host::kernels {

constexpr int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

/// Rows of x that the kernels for few rows take at a time. More are multiplied by panels of the weight.
constexpr int64_t nz_row_block = 32;
/// The same of a transposed weight, whose sums, a vector each, stay in the L1 cache then.
constexpr int64_t nz_transposed_row_block = 16;

/// Of all instruction sets, in columns and rows of the weight.
constexpr int64_t nz_widest_panel = 32, nz_deepest_panel = 512;

/// Products of one type.
struct NzProduct {
  struct Way {
    /// x as multiply() reads it, rows * padded(inner) elements of x_bytes.
    void (*prepare)(const NzMatmul&, void* prepared);
    /// Columns [begin, end) of y, on the calling thread; bounds inside of y are multiples of 16.
    void (*multiply)(const NzMatmul&, const void* prepared, int64_t begin, int64_t end);
  };

  /// The same for many rows.
  struct Panels {
    /// Columns [begin, end) of x, of which `begin` is a multiple of nz_deepest_panel.
    void (*prepare)(const NzMatmul&, int64_t begin, int64_t end, void* prepared);
    /// Bounds inside of y are multiples of nz_widest_panel. `sums` is memory for rows * (end - begin)
    /// numbers, the latter rounded up to whole panels.
    void (*multiply)(const NzMatmul&, const void* prepared, int64_t begin, int64_t end, float* sums);
  };

  int64_t x_bytes;
  Way plain, transposed;
  Panels panels;
};

using NzProducts = ByType<const NzProduct*>;

namespace baseline {
extern const NzProducts nz_products;
/// For processors that multiply pairs of bfloat16; null for instruction sets that never do.
extern const NzProduct* const nz_pairs_of_bfloat16;
}  // namespace baseline
namespace avx2 {
extern const NzProducts nz_products;
extern const NzProduct* const nz_pairs_of_bfloat16;
}  // namespace avx2
namespace avx512 {
extern const NzProducts nz_products;
extern const NzProduct* const nz_pairs_of_bfloat16;
}  // namespace avx512

}  // namespace cann_host::kernels
