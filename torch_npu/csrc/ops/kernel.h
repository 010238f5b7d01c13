// What hand-written kernels share.
#pragma once

#include "cann/aclnn.h"
#include "torch_npu/csrc/dispatch/aclnn.h"
#include "torch_npu/csrc/dispatch/fallback.h"
#include "torch_npu/csrc/dispatch/outputs.h"
#include "torch_npu/csrc/dispatch/rules.h"
#include "torch_npu/csrc/ops/nn_sizes.h"

namespace torch_npu::ops {

/// Whether this CANN has the operator and all tensors have one of the dtypes of the mask.
template <class Op, class... Tensors>
bool native(Op& op, uint64_t dtypes, const Tensors&... tensors) {
  return op.available() && (takes(dtypes, tensors) && ...);
}

/// An output that is wanted, else undefined.
inline at::Tensor new_output_if(bool wanted, at::IntArrayRef sizes, at::ScalarType dtype,
                                const at::Tensor& like,
                                at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  return wanted ? new_output(sizes, dtype, like, format) : at::Tensor();
}

}  // namespace torch_npu::ops
