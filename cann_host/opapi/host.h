// What the bodies of host operators (opspec/aclnn/*.yaml and cann_host/opapi/ops) may use.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUFunctions.h>
#include <ATen/ScalarOps.h>

#include <optional>
#include <string_view>
#include <vector>

#include "cann_host/opapi/arguments.h"
#include "cann_host/opapi/fast.h"
#include "cann_host/opapi/placement.h"

namespace cann_host {

/// A number as operand of a tensor: it decides the category of the result's dtype, not its width, as in
/// PyTorch.
inline at::Tensor number(const at::Scalar& value) { return at::native::wrapped_scalar_tensor(value); }

/// The number in a tensor of one element: seeds and offsets that come from device memory.
inline int64_t first(const at::Tensor& tensor) { return tensor.item<int64_t>(); }

/// An empty list of dimensions means all of them.
inline at::OptionalIntArrayRef all_if_empty(at::IntArrayRef dims) {
  return dims.empty() ? at::OptionalIntArrayRef() : at::OptionalIntArrayRef(dims);
}

/// `mode` of aclnnDivMod*: 0 true division, 1 trunc, 2 floor.
inline std::optional<std::string_view> rounding_mode(int mode) {
  if (mode == 0) return std::nullopt;
  return mode == 1 ? "trunc" : "floor";
}

/// CANN's 0 for an argument that is not given.
inline std::optional<int64_t> none_if_zero(int64_t value) {
  return value == 0 ? std::nullopt : std::optional(value);
}

/// A scale of an interpolation; 0 or less means that sizes decide.
inline std::optional<double> scale_factor(double scale) {
  return scale > 0 ? std::optional(scale) : std::nullopt;
}

/// Factors of products and convolutions: float16 as float32. ATen's own in float16 round between the steps,
/// and run at a hundredth of the speed where the processor has no float16 arithmetic; the NPU adds in float32
/// as well.
inline at::Tensor exact(const at::Tensor& factor) {
  return factor.scalar_type() == at::kHalf ? factor.to(at::kFloat) : factor;
}

/// For operators that ATen's CPU kernels have in float32 and float64 only.
inline at::Tensor widened(const at::Tensor& tensor) {
  return at::isReducedFloatingType(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
}

}  // namespace cann_host
