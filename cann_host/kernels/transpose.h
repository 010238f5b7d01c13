#pragma once

#include <cstdint>

namespace cann_host::kernels {

/// to[c, r] = from[r, c] for elements of two or four bytes. Strides are between rows, in elements. On the
/// calling thread.
struct Transpose {
  int64_t element_bytes;
  const void* from;  ///< [rows, columns]
  int64_t from_stride;
  void* to;  ///< [columns, rows]
  int64_t to_stride;
  int64_t rows, columns;
};
void transpose(const Transpose& arguments);

}  // namespace cann_host::kernels
