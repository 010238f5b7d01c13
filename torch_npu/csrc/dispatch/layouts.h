// Sparse (COO; CSR, CSC, BSR, BSC) and nested tensors on device npu: CPU kernels run on tensors of the same
// layout over views of the dense parts.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace torch_npu {

/// Turns a dense tensor of one device into one of the other.
using Relocate = std::function<at::Tensor(const at::Tensor&)>;

/// Whether a tensor's elements are addressed by sizes and strides alone.
inline bool is_dense(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_nested() && !tensor.is_quantized();
}

/// A tensor of the layout of `tensor` whose dense parts have been relocated to `type`.
/// Raises NotImplementedError for layouts other than sparse and nested ones.
at::Tensor relocate_parts(const at::Tensor& tensor, c10::DeviceType type, const Relocate& part);

/// Makes a sparse tensor what another one is that an operator changed in place. Nested tensors keep their
/// parts.
void assign_parts(const at::Tensor& to, const at::Tensor& from, const Relocate& part);

}  // namespace torch_npu
