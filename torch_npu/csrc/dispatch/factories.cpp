// Empty tensors; every other factory fills one of these.
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <torch/library.h>

#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/dispatch/deterministic.h"
#include "torch_npu/csrc/dispatch/outputs.h"

namespace torch_npu {
namespace {

at::TensorOptions npu_options(std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                              std::optional<at::Device> device, std::optional<bool> pin_memory) {
  const at::Device on = device.value_or(at::Device(at::kPrivateUse1));
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned; this one is to be on ", on);
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kStrided) == at::kStrided, "torch.empty on ", on,
                              " makes strided tensors, not ", layout.value_or(at::kStrided));
  const auto index = on.has_index() ? on.index() : device::current_device();
  device::check_index(index);
  return at::TensorOptions().device(at::Device(at::kPrivateUse1, index)).dtype(c10::dtype_or_default(dtype));
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> memory_format) {
  return uninitialized(
      new_tensor(sizes, {}, npu_options(dtype, layout, device, pin_memory).memory_format(memory_format)));
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device,
                         std::optional<bool> pin_memory) {
  at::native::check_size_nonnegative(sizes);
  const auto options = npu_options(dtype, layout, device, pin_memory);
  return uninitialized(new_tensor(sizes, strides, options));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
}

}  // namespace torch_npu
