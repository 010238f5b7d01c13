// Memory formats of CANN's. Those of PyTorch's strides (NCHW, NHWC, ND, …) are names for the same bytes: a
// tensor has the one that it was given, or the one that goes with its number of dimensions.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_npu::ops {

/// The tensor's aclFormat.
int64_t format_of(const at::Tensor& self);

/// Gives the tensor a format, and returns it. A private format, which only Ascend hardware has, is not given;
/// a warning says so once.
at::Tensor& set_format(const char* op, at::Tensor& self, int64_t format);
const at::Tensor& set_format(const char* op, const at::Tensor& self, int64_t format);

/// A copy in a format, or `self` if it has it.
at::Tensor format_cast(const char* op, const at::Tensor& self, int64_t format);

}  // namespace torch_npu::ops
