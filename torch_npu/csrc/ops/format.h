// Memory formats of CANN's. Those of PyTorch's strides (NCHW, NHWC, ND, …) are names for the same bytes: a
// tensor has the one that it was given, or the one that goes with its number of dimensions. FRACTAL_NZ is a
// layout of its own (dispatch/packed.h). Other private formats are not given; a warning says so once.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_npu::ops {

/// The tensor's aclFormat.
int64_t format_of(const at::Tensor& self);

/// Gives the tensor a format, and returns it. From or to FRACTAL_NZ it gets other memory, which no other
/// tensor may share.
at::Tensor& set_format(const char* op, at::Tensor& self, int64_t format);
const at::Tensor& set_format(const char* op, const at::Tensor& self, int64_t format);

/// A copy in a format, or `self` if it has it.
at::Tensor format_cast(const char* op, const at::Tensor& self, int64_t format);

/// A copy from or to FRACTAL_NZ: format_cast() below autograd.
at::Tensor cast_packed(const at::Tensor& self, int64_t format);
at::Tensor cast_packed_meta(const at::Tensor& self, int64_t format);

/// Elements of the memory of a tensor in FRACTAL_NZ, its padding included.
int64_t storage_size(const at::Tensor& self);

}  // namespace torch_npu::ops
