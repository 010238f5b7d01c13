#pragma once

#include <cstdint>

#include "cann_host/kernels/data_type.h"

namespace cann_host::kernels {

/// FRACTAL_NZ, in which the matrix unit of an NPU reads a matrix: blocks of 16 rows and as many columns as
/// make 32 bytes (16 for wider types). The blocks of a column of blocks follow each other, and inside of a
/// block rows do. What edges lack of a block is zero.
struct FractalNz {
  static constexpr int64_t block_rows = 16;

  int64_t element_bytes;
  int64_t batches;
  int64_t rows;
  int64_t columns;

  static constexpr int64_t block_columns(int64_t element_bytes) { return element_bytes == 1 ? 32 : 16; }
  int64_t row_blocks() const { return (rows + block_rows - 1) / block_rows; }
  int64_t column_blocks() const {
    return (columns + block_columns(element_bytes) - 1) / block_columns(element_bytes);
  }
  /// Elements of one matrix, those of the padding included.
  int64_t matrix() const {
    return row_blocks() * block_rows * column_blocks() * block_columns(element_bytes);
  }
};

/// From a contiguous matrix, or a batch of them, and back.
void pack(const FractalNz& layout, const void* plain, void* packed);
void unpack(const FractalNz& layout, const void* packed, void* plain);

/// Rows [first, first + rows) of each matrix; `first` is a multiple of 16.
void unpack_rows(const FractalNz& layout, const void* packed, int64_t first, int64_t rows, void* plain);

/// Products by instructions that multiply whole matrices of bfloat16, which are not the kernels' own.
struct NzTiles {
  /// sums[rows, 32] += x[rows, depth] panel[depth, 32], all dense; the panel has pairs of rows, element by
  /// element. depth is a multiple of 16.
  void (*multiply_add)(int64_t rows, int64_t depth, const void* x, const void* panel, float* sums);
  void (*release)();  ///< by each thread, after its last product
};

/// y[m, n] = Σ x[m, k] w[k, n] + bias[n]; of few rows at the speed at which the weight is read.
struct NzMatmul {
  DataType type;       ///< of all tensors: float32, float16, bfloat16
  const void* x;       ///< [rows, inner], contiguous
  const void* weight;  ///< in FRACTAL_NZ: w [inner, columns], or its transpose
  const void* bias;    ///< [columns]; may be null
  void* y;             ///< [rows, columns], contiguous
  int64_t rows;
  int64_t columns;
  int64_t inner;
  bool transposed;                 ///< the weight is [columns, inner], as that of a linear layer
  const NzTiles* tiles = nullptr;  ///< for bfloat16, where the processor has such instructions
};

/// False for types that it does not take.
bool nz_matmul(const NzMatmul& arguments);

}  // namespace cann_host::kernels
