// What the generated gradients and autocast rules of torch.ops.npu use: arguments that outlive a call.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/OptionalArrayRef.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace torch_npu {

/// Arguments that borrow become ones that own; lend() undoes that.
inline std::string own(std::string_view text) { return std::string(text); }
inline std::vector<int64_t> own(at::IntArrayRef list) { return list.vec(); }
inline std::optional<std::vector<int64_t>> own(at::OptionalIntArrayRef list) {
  return list.has_value() ? std::optional(list->vec()) : std::nullopt;
}
template <class T>
T own(const T& value) {
  return value;
}

inline std::string_view lend(const std::string& text) { return text; }
inline at::IntArrayRef lend(const std::vector<int64_t>& list) { return list; }
inline at::OptionalIntArrayRef lend(const std::optional<std::vector<int64_t>>& list) {
  return list.has_value() ? at::OptionalIntArrayRef(*list) : at::OptionalIntArrayRef();
}
template <class T>
const T& lend(const T& value) {
  return value;
}

inline bool needs_gradient(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }
inline bool needs_gradient(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() && needs_gradient(*tensor);
}

inline std::optional<at::Tensor> given_or_none(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

/// Autograd wants each result to be a tensor: one that is not there is an empty one.
inline at::Tensor or_placeholder(const at::Tensor& result, const at::Tensor& like) {
  return result.defined() ? result : at::empty({0}, like.options());
}

template <class T>
auto cast_for_autocast(at::ScalarType dtype, const T& tensors) {
  return at::autocast::cached_cast(dtype, tensors, at::kPrivateUse1);
}

}  // namespace torch_npu
