// Transposes of matrices, by blocks that are turned in registers. Compiled once per instruction set.

#include "cann_host/kernels/transpose_kernels.h"

#include "cann_host/kernels/row.h"
#include "cann_host/kernels/turn.h"

namespace cann_host::kernels {
namespace {

/// Words of 32 bits of a line of a block: one element, or two that are neighbours in a column.
inline Vec<float> load_line(const uint32_t* from, int64_t, bool) { return load_vector<Vec<float>>(from); }
inline Vec<float> load_line(const uint16_t* from, int64_t stride, bool has_next) {
  const Vec<uint32_t> low = load_half_bits(from);
  return bit_cast<Vec<float>>(has_next ? low | load_half_bits(from + stride) << 16 : low);
}

/// `lanes` columns of up to `lanes` words of rows.
template <class T>
void turn_block(const T* from, int64_t from_stride, int64_t rows, T* to, int64_t to_stride) {
  constexpr int packed = sizeof(uint32_t) / sizeof(T);
  Vec<float> lines[lanes];
  for (int i = 0; i < lanes; ++i) {
    const int64_t row = i * packed;
    lines[i] = row < rows ? load_line(from + row * from_stride, from_stride, row + 1 < rows) : Vec<float>{};
  }
  turn(lines);
  const bool whole = rows >= lanes * packed;
  for (int c = 0; c < lanes; ++c) {
    T* line = to + c * to_stride;
    if (whole) {
      store_vector(line, lines[c]);
    } else {
      std::memcpy(line, &lines[c], rows * sizeof(T));
    }
  }
}

/// Columns [begin, end), whose results stay in the L1 cache until their lines are full.
template <class T>
void transpose_columns(const Transpose& a, int64_t begin, int64_t end) {
  constexpr int64_t rows_at_once = lanes * static_cast<int64_t>(sizeof(uint32_t) / sizeof(T));
  const T* from = static_cast<const T*>(a.from);
  T* to = static_cast<T*>(a.to);
  const int64_t whole = begin + (end - begin) / lanes * lanes;
  for (int64_t r = 0; r < a.rows; r += rows_at_once) {
    const int64_t rows = a.rows - r < rows_at_once ? a.rows - r : rows_at_once;
    const T* block = from + r * a.from_stride;
    for (int64_t c = begin; c < whole; c += lanes)
      turn_block(block + c, a.from_stride, rows, to + c * a.to_stride + r, a.to_stride);
    for (int64_t c = whole; c < end; ++c) {
      for (int64_t i = 0; i < rows; ++i) to[c * a.to_stride + r + i] = block[i * a.from_stride + c];
    }
  }
}

template <class T>
void transpose_all(const Transpose& a) {
  constexpr int64_t together = 256;
  for (int64_t c = 0; c < a.columns; c += together)
    transpose_columns<T>(a, c, c + together < a.columns ? c + together : a.columns);
}

void transpose_elements(const Transpose& a) {
  a.element_bytes == sizeof(uint16_t) ? transpose_all<uint16_t>(a) : transpose_all<uint32_t>(a);
}

}  // namespace

namespace CANN_HOST_ISA {

extern const TransposeKernel transpose_kernel = &transpose_elements;

}  // namespace CANN_HOST_ISA
}  // namespace cann_host::kernels
