// What operators on int8 and int4 numbers share.
#pragma once

#include <ATen/ATen.h>

namespace cann_host {

/// The exact int32 product of int8 matrices.
inline at::Tensor int_product(const at::Tensor& a, const at::Tensor& b) {
  if (a.dim() == 2 && b.dim() == 2) return at::_int_mm(a.contiguous(), b.contiguous());
  return at::matmul(a.to(at::kInt), b.to(at::kInt));
}

/// A scale that TransQuantParamV2 wrapped, or a plain one.
inline at::Tensor plain_scale(const at::Tensor& scale) {
  if (scale.scalar_type() != at::kLong) return scale.to(at::kFloat);
  return scale.bitwise_and(0xffffffff).to(at::kInt).view(at::kFloat);
}

/// int4 numbers (any integer dtype) of the last dimension, eight in an int32, the first lowest.
at::Tensor packed_int4(const at::Tensor& numbers);

/// An int8 matrix of one, or of packed int4 along the last or (where a transposed tensor came) the dimension
/// before.
at::Tensor as_int8(const at::Tensor& numbers);

/// Rounds into the range of `out`'s dtype; an int32 `out` holds packed int4 unless `dtype` is int32.
void store_rounded(const at::Tensor& values, at::ScalarType dtype, const at::Tensor& out);

/// Each row as int8, by a scale of its own: its largest magnitude over 127.
void quantize_rows(const at::Tensor& values, const at::Tensor& out, const at::Tensor& scales);

}  // namespace cann_host
