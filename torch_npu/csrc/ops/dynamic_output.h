// Outputs whose shape the operator finds out: allocated as large as they can become, shrunk afterwards.
#pragma once

#include <ATen/core/Tensor.h>

#include "torch_npu/csrc/dispatch/aclnn.h"

namespace torch_npu {

class DynamicOutput {
 public:
  /// `op` is the operator's name ("aten::nonzero"). Raises if the work is recorded into a graph.
  DynamicOutput(const char* op, at::Tensor largest);

  /// To be passed to the operator.
  aclTensor* descriptor() const { return descriptor_; }

  /// Waits for the stream and gives the tensor the shape that the operator found.
  at::Tensor finish();

 private:
  at::Tensor tensor_;
  TensorHandle descriptor_;
};

}  // namespace torch_npu
