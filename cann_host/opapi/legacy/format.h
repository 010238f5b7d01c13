// CANN's internal formats: how the blocks that the cube unit works on lie in memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <cann/acl.h>

namespace cann_host::legacy {

bool is_internal(aclFormat format);

/// The tensor of shape `dims` that lies in `storage`, which has the format's shape. Throws c10::Error for
/// formats that are not known, and for shapes that the format does not have.
at::Tensor unpacked(const at::Tensor& storage, aclFormat format, at::IntArrayRef dims);

/// The other way; what fills blocks up is 0.
at::Tensor packed(const at::Tensor& plain, aclFormat format, at::IntArrayRef storage_dims);

}  // namespace cann_host::legacy
