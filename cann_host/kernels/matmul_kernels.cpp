// Products of small matrices. Compiled once per instruction set.

#include "cann_host/kernels/matmul_kernels.h"

#include "cann_host/kernels/row.h"

namespace cann_host::kernels {
namespace {

/// A few rows of a (in float) with a part of b, and where the result goes.
template <class T>
struct Block {
  const float* a;
  int64_t a_row, a_inner;
  const T* b;
  int64_t b_inner, b_column;
  const T* bias;
  T* c;
  int64_t c_row, inner;

  Block from_column(int64_t column) const {
    Block block = *this;
    block.b += column * b_column;
    if (bias != nullptr) block.bias += column;
    block.c += column;
    return block;
  }
};

/// Neighbouring columns of b are neighbours in memory: `vectors` of them are multiplied by one number of a at
/// a time.
template <int rows, int vectors, class T, class Place>
void multiply_along_columns(const Block<T>& x, Place place) {
  Vec<float> sums[rows][vectors];
  for (int v = 0; v < vectors; ++v) {
    const Vec<float> start = x.bias == nullptr ? Vec<float>{} : load(x.bias + v * lanes, place);
    for (int r = 0; r < rows; ++r) sums[r][v] = start;
  }
  for (int64_t i = 0; i < x.inner; ++i) {
    Vec<float> b[vectors];
    for (int v = 0; v < vectors; ++v) b[v] = load(x.b + i * x.b_inner + v * lanes, place);
    for (int r = 0; r < rows; ++r) {
      const Vec<float> a = splat<Vec<float>>(x.a[r * x.a_row + i * x.a_inner]);
      for (int v = 0; v < vectors; ++v) sums[r][v] += a * b[v];
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) store(x.c + r * x.c_row + v * lanes, sums[r][v], place);
  }
}

template <int rows, class T>
void all_along_columns(const Block<T>& x, int64_t columns) {
  constexpr int together = 4;
  int64_t column = 0;
  for (; column + together * lanes <= columns; column += together * lanes) {
    multiply_along_columns<rows, together>(x.from_column(column), Full{});
  }
  for (; column + lanes <= columns; column += lanes) {
    multiply_along_columns<rows, 1>(x.from_column(column), Full{});
  }
  if (column < columns) multiply_along_columns<rows, 1>(x.from_column(column), Part{columns - column});
}

/// A column of b lies in one piece, as the weight of a linear layer: dot products with rows of a, which lie
/// in one piece as well.
template <int rows, int columns, class T>
void multiply_along_inner(const Block<T>& x) {
  Vec<float> sums[rows][columns] = {};
  each_vector(x.inner, [&](int64_t i, auto place) {
    Vec<float> a[rows];
    for (int r = 0; r < rows; ++r) a[r] = load(x.a + r * x.a_row + i, place);
    for (int k = 0; k < columns; ++k) {
      const Vec<float> b = load(x.b + k * x.b_column + i, place);
      for (int r = 0; r < rows; ++r) sums[r][k] += a[r] * b;
    }
  });
  for (int r = 0; r < rows; ++r) {
    float result[columns];
    if constexpr (columns == 4) {
      store_vector(result, sums_of_lanes(sums[r]));
    } else {
      for (int k = 0; k < columns; ++k) result[k] = sum_of_lanes(sums[r][k]);
    }
    for (int k = 0; k < columns; ++k) {
      const float bias = x.bias == nullptr ? 0 : to_float(x.bias[k]);
      x.c[r * x.c_row + k] = from_float<T>(result[k] + bias);
    }
  }
}

template <int rows, class T>
void all_along_inner(const Block<T>& x, int64_t columns) {
  constexpr int together = 4;
  int64_t column = 0;
  for (; column + together <= columns; column += together) {
    multiply_along_inner<rows, together>(x.from_column(column));
  }
  for (; column < columns; ++column) multiply_along_inner<rows, 1>(x.from_column(column));
}

template <int rows, class T>
void multiply_rows(const SmallMatmul& m, Block<T> block, const T* a, float* scratch) {
  const bool along_columns = m.b_column == 1;
  bool in_place = false;
  if constexpr (std::is_same_v<T, float>) in_place = along_columns || m.a_inner == 1;
  if (in_place) {
    block.a = reinterpret_cast<const float*>(a);
    block.a_row = m.a_row;
    block.a_inner = m.a_inner;
  } else {
    for (int r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < m.inner; ++i) {
        scratch[r * m.inner + i] = to_float(a[r * m.a_row + i * m.a_inner]);
      }
    }
    block.a = scratch;
    block.a_row = m.inner;
    block.a_inner = 1;
  }
  along_columns ? all_along_columns<rows>(block, m.columns) : all_along_inner<rows>(block, m.columns);
}

template <class T>
void multiply_blocks(const SmallMatmul& m, float* scratch) {
  const int64_t blocks = (m.rows + matmul_row_block - 1) / matmul_row_block;
  for (int64_t n = 0; n < m.batches * blocks; ++n) {
    const int64_t batch = n / blocks, row = n % blocks * matmul_row_block;
    const T* a = static_cast<const T*>(m.a) + batch * m.a_batch + row * m.a_row;
    Block<T> block{};
    block.b = static_cast<const T*>(m.b) + batch * m.b_batch;
    block.b_inner = m.b_inner;
    block.b_column = m.b_column;
    block.bias = static_cast<const T*>(m.bias);
    block.c = static_cast<T*>(m.c) + (batch * m.rows + row) * m.columns;
    block.c_row = m.columns;
    block.inner = m.inner;
    switch (m.rows - row) {
      case 1:
        multiply_rows<1>(m, block, a, scratch);
        break;
      case 2:
        multiply_rows<2>(m, block, a, scratch);
        break;
      case 3:
        multiply_rows<3>(m, block, a, scratch);
        break;
      default:
        multiply_rows<matmul_row_block>(m, block, a, scratch);
    }
  }
}

}  // namespace

namespace CANN_HOST_ISA {

extern const SmallMatmulKernels matmul_kernels = {
    .by_type = by_type<SmallMatmulKernel>(TypeList<float, Half, BFloat16>{},
                                          []<class T> { return &multiply_blocks<T>; }),
};

}  // namespace CANN_HOST_ISA
}  // namespace cann_host::kernels
