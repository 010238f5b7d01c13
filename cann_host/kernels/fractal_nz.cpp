#include "cann_host/kernels/fractal_nz.h"

#include <cstring>
#include <memory>

#include "cann_host/kernels/fractal_nz_kernels.h"
#include "cann_host/kernels/isa.h"
#include "cann_host/kernels/parallel.h"

namespace cann_host::kernels {
namespace {

/// Memory for vectors is a number of these: a vector across two lines of the cache takes twice the time.
struct alignas(64) Line {
  char bytes[64];
};

std::unique_ptr<Line[]> lines_for(int64_t bytes) {
  return std::make_unique_for_overwrite<Line[]>(bytes / sizeof(Line) + 1);
}

/// Of a few bytes, most often a whole row of a block.
void copy_bytes(char* to, const char* from, int64_t count) {
  switch (count) {
    case 32:
      std::memcpy(to, from, 32);
      break;
    case 64:
      std::memcpy(to, from, 64);
      break;
    default:
      std::memcpy(to, from, count);
  }
}

/// copy(byte in the matrices, byte in the packed ones, bytes of them that are no padding, bytes) for each row
/// of each block with rows [first, first + rows) of the matrices; the former lie as if there were no others.
template <class Copy>
void each_block_row(const FractalNz& l, int64_t first, int64_t rows, const Copy& copy) {
  const int64_t block = FractalNz::block_columns(l.element_bytes), bytes = block * l.element_bytes;
  const int64_t row_blocks = (rows + FractalNz::block_rows - 1) / FractalNz::block_rows;
  const int64_t column_blocks = l.column_blocks();
  // So many columns of blocks fill a line of the cache in the matrix.
  const int64_t together = std::max<int64_t>(1, sizeof(Line) / bytes);
  constexpr int64_t bytes_a_thread = 1 << 18;
  const int64_t grain = std::max<int64_t>(
      1, bytes_a_thread / std::max<int64_t>(1, column_blocks * bytes * FractalNz::block_rows));
  parallel_for(l.batches * row_blocks, grain, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t batch = i / row_blocks, row_block = i % row_blocks;
      const int64_t packed_row = first + row_block * FractalNz::block_rows;
      for (int64_t c = 0; c < column_blocks; c += together) {
        for (int64_t r = 0; r < FractalNz::block_rows; ++r) {
          const int64_t row = row_block * FractalNz::block_rows + r;
          for (int64_t k = c; k < std::min(c + together, column_blocks); ++k) {
            const int64_t there = std::min(block, l.columns - k * block) * l.element_bytes;
            const int64_t plain = ((batch * rows + row) * l.columns + k * block) * l.element_bytes;
            const int64_t packed = batch * l.matrix() * l.element_bytes +
                                   (k * l.row_blocks() * FractalNz::block_rows + packed_row + r) * bytes;
            copy(plain, packed, row < rows ? there : 0, bytes);
          }
        }
      }
    }
  });
}

const NzProduct* nz_product(DataType type) noexcept {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::avx512:
      if (type == DataType::bfloat16 && __builtin_cpu_supports("avx512bf16"))
        return avx512::nz_pairs_of_bfloat16;
      return avx512::nz_products[type];
    case Isa::avx2:
      return avx2::nz_products[type];
    case Isa::baseline:
      break;
  }
#endif
  return baseline::nz_products[type];
}

/// Whole matrices at a time: for more rows than the others read a weight at its speed with. The panels must
/// be of bfloat16 as it is.
bool multiplies_tiles(const NzProduct& product, const NzMatmul& a) {
  constexpr int64_t few = 4;
  return a.tiles != nullptr && a.type == DataType::bfloat16 && product.x_bytes == size_of(a.type) &&
         a.rows > few;
}

/// Rows [first, first + rows) of a product.
NzMatmul rows_of(NzMatmul a, int64_t first, int64_t rows) {
  a.x = static_cast<const char*>(a.x) + first * a.inner * size_of(a.type);
  a.y = static_cast<char*>(a.y) + first * a.columns * size_of(a.type);
  a.rows = rows;
  return a;
}

void multiply_rows(const NzProduct& product, const NzMatmul& a) {
  const auto& [prepare, multiply] = a.transposed ? product.transposed : product.plain;
  const auto prepared = lines_for(a.rows * padded(a.inner) * product.x_bytes);
  prepare(a, prepared.get());
  constexpr int64_t elements_a_thread = 1 << 16;  // of the weight, from which a second thread pays
  const int64_t grain = std::max<int64_t>(16, elements_a_thread / std::max<int64_t>(1, a.inner));
  parallel_for(a.columns, grain, 16,
               [&](int64_t begin, int64_t end) { multiply(a, prepared.get(), begin, end); });
}

void multiply_panels(const NzProduct& product, const NzMatmul& a) {
  const auto& [prepare, multiply] = product.panels;
  const auto prepared = lines_for(a.rows * padded(a.inner) * product.x_bytes);
  constexpr int64_t elements_a_thread = 1 << 16;  // of x
  parallel_for(a.inner, std::max(nz_deepest_panel, elements_a_thread / a.rows), nz_deepest_panel,
               [&](int64_t begin, int64_t end) { prepare(a, begin, end, prepared.get()); });
  // Columns whose sums, with a part of x, fill half of the L2 cache: of 2 MiB where there are tiles.
  const int64_t fit = a.tiles != nullptr ? std::min<int64_t>(512, (1 << 17) / a.rows) : (1 << 16) / a.rows;
  const int64_t together = std::max(nz_widest_panel, fit / nz_widest_panel * nz_widest_panel);
  parallel_for(a.columns, nz_widest_panel, nz_widest_panel, [&](int64_t begin, int64_t end) {
    const auto sums = lines_for(a.rows * together * static_cast<int64_t>(sizeof(float)));
    for (int64_t n = begin; n < end; n += together) {
      multiply(a, prepared.get(), n, std::min(n + together, end), reinterpret_cast<float*>(sums.get()));
    }
    if (a.tiles != nullptr) a.tiles->release();
  });
}

}  // namespace

void pack(const FractalNz& layout, const void* plain, void* packed) {
  const auto* from = static_cast<const char*>(plain);
  auto* to = static_cast<char*>(packed);
  each_block_row(layout, 0, layout.rows,
                 [&](int64_t plain_at, int64_t packed_at, int64_t there, int64_t bytes) {
                   if (there > 0) copy_bytes(to + packed_at, from + plain_at, there);
                   if (there < bytes) std::memset(to + packed_at + there, 0, bytes - there);
                 });
}

void unpack(const FractalNz& layout, const void* packed, void* plain) {
  unpack_rows(layout, packed, 0, layout.rows, plain);
}

void unpack_rows(const FractalNz& layout, const void* packed, int64_t first, int64_t rows, void* plain) {
  const auto* from = static_cast<const char*>(packed);
  auto* to = static_cast<char*>(plain);
  each_block_row(layout, first, rows, [&](int64_t plain_at, int64_t packed_at, int64_t there, int64_t) {
    if (there > 0) copy_bytes(to + plain_at, from + packed_at, there);
  });
}

bool nz_matmul(const NzMatmul& arguments) {
  NzMatmul a = arguments;
  const NzProduct* product = nz_product(a.type);
  if (product == nullptr) return false;
  const bool tiles = multiplies_tiles(*product, a);
  if (!tiles) a.tiles = nullptr;
  constexpr int64_t rows_at_once = 512;  // of which x, as the kernels read it, stays in the caches
  const int64_t few = a.transposed ? nz_transposed_row_block : nz_row_block;
  const auto multiply = tiles || a.rows > few ? &multiply_panels : &multiply_rows;
  for (int64_t m = 0; m < a.rows; m += rows_at_once)
    multiply(*product, rows_of(a, m, std::min(rows_at_once, a.rows - m)));
  return true;
}

}  // namespace cann_host::kernels
