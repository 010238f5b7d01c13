#pragma once

#include <ATen/Context.h>
#include <ATen/native/TensorFactories.h>

namespace torch_npu {

/// Whether torch.utils.deterministic.fill_uninitialized_memory is in force.
inline bool fills_uninitialized_memory() {
  const auto& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory();
}

/// A new tensor, with NaN or the largest number in every element where that is in force.
inline at::Tensor uninitialized(at::Tensor tensor) {
  if (fills_uninitialized_memory()) [[unlikely]]
    at::native::fill_empty_deterministic_(tensor);
  return tensor;
}

}  // namespace torch_npu
