// What operators on int8 matrices share.
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

}  // namespace cann_host
