// Small questions that generated kernels ask about their arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/op_registration/adaption.h>
#include <c10/util/MaybeOwned.h>

#include <atomic>
#include <optional>

#include "torch_npu/csrc/dispatch/device_switch.h"

namespace torch_npu {

/// cubeMathType of CANN's matrix operators: compute in the dtype of the arguments, no HF32.
inline constexpr int8_t kKeepDtype = 0;

/// The cubeMathType that torch.npu.matmul and torch.npu.conv have chosen for float32.
struct CubeMath {
  static inline std::atomic<int8_t> matmul{kKeepDtype};
  static inline std::atomic<int8_t> convolution{kKeepDtype};
};
inline int8_t matmul_math() { return CubeMath::matmul.load(std::memory_order_relaxed); }
inline int8_t convolution_math() { return CubeMath::convolution.load(std::memory_order_relaxed); }

/// A 0-dim CPU tensor: PyTorch lets it stand beside tensors of any device (Python numbers arrive like this).
inline bool is_host_scalar(const at::Tensor& tensor) { return tensor.dim() == 0 && tensor.is_cpu(); }

/// A Python number that PyTorch wrapped into a tensor: it does not take part in type promotion within its
/// category.
inline bool is_number(const at::Tensor& tensor) {
  return is_host_scalar(tensor) && tensor.unsafeGetTensorImpl()->is_wrapped_number() && !tensor.is_complex();
}

/// Whether an operator with an aclScalar in place of `other` promotes dtypes as PyTorch does here: a number
/// does not widen the dtype of self, but a 0-dim tensor of a higher category, or beside a 0-dim self, does.
inline bool acts_as_number(const at::Tensor& other, const at::Tensor& self) {
  if (!is_host_scalar(other)) return false;
  const auto category = [](at::ScalarType dtype) {
    return at::isComplexType(dtype) ? 3 : at::isFloatingType(dtype) ? 2 : dtype == at::kBool ? 0 : 1;
  };
  return other.unsafeGetTensorImpl()->is_wrapped_number() ||
         (self.dim() > 0 && category(other.scalar_type()) <= category(self.scalar_type()));
}

/// The value of a host scalar.
at::Scalar host_scalar(const at::Tensor& tensor);

/// Floating point, contiguous and on an npu: an elementwise result has the same sizes, strides and dtype.
inline bool plain(const at::Tensor& self) {
  return self.is_privateuseone() && self.is_contiguous() && at::isFloatingType(self.scalar_type()) &&
         !self.is_neg();
}
inline bool plain(const at::Tensor& self, const at::Tensor& other) {
  return plain(self) && plain(other) && self.scalar_type() == other.scalar_type() &&
         self.sizes() == other.sizes() && self.device() == other.device();
}

/// The same for a result that is written to self: other must be self or lie elsewhere.
inline bool plain_inplace(const at::Tensor& self) { return plain(self); }
inline bool plain_inplace(const at::Tensor& self, const at::Tensor& other) {
  return plain(self, other) && (self.is_same(other) || !self.is_alias_of(other));
}

/// Whether the operator takes the tensor's dtype; bit i of the mask stands for at::ScalarType i. Undefined
/// tensors and host scalars (which are converted to the operator's dtype) pass.
inline bool takes(uint64_t mask, const at::Tensor& tensor) {
  return !tensor.defined() || (mask >> static_cast<int>(tensor.scalar_type()) & 1) != 0 ||
         is_host_scalar(tensor);
}
inline bool takes(uint64_t mask, const std::optional<at::Tensor>& tensor) {
  return !tensor.has_value() || takes(mask, *tensor);
}
template <class List>
bool takes_all(uint64_t mask, const List& tensors) {
  for (const auto& tensor : tensors) {
    if (!takes(mask, tensor)) return false;
  }
  return true;
}
inline bool takes(uint64_t mask, at::TensorList tensors) { return takes_all(mask, tensors); }
inline bool takes(uint64_t mask, const at::ITensorListRef& tensors) { return takes_all(mask, tensors); }

/// The tensor itself, or a copy on the current device, in `dtype`, of a host scalar.
c10::MaybeOwned<at::Tensor> on_device(const at::Tensor& tensor, at::ScalarType dtype);

namespace detail {
inline void same_device(std::optional<at::Device>&, const char*) {}
template <class T, class... Rest>
void same_device(std::optional<at::Device>& common, const char* method, const T& argument, const char* name,
                 const Rest&... rest) {
  c10::impl::check_and_update_common_device(common, argument, method, name);
  same_device(common, method, rest...);
}
}  // namespace detail

/// Raises PyTorch's error if the tensors (each followed by its name) are not all on one device.
template <class... Args>
void same_device(const char* method, const Args&... arguments_and_names) {
  std::optional<at::Device> common;
  detail::same_device(common, method, arguments_and_names...);
}

}  // namespace torch_npu
