#include "torch_npu/csrc/dispatch/outputs.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>

#include "torch_npu/csrc/dispatch/device_switch.h"
#include "torch_npu/csrc/memory/caching_allocator.h"

namespace torch_npu {

at::Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, const at::TensorOptions& options) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  auto* allocator = &memory::caching_allocator();
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  const DeviceSwitch on(options.device().index());
  return strides.empty()
             ? at::detail::empty_generic(sizes, allocator, keys, dtype, options.memory_format_opt())
             : at::detail::empty_strided_generic(sizes, strides, allocator, keys, dtype);
}

at::Tensor new_output(at::IntArrayRef sizes, at::ScalarType dtype, const at::Tensor& like,
                      at::MemoryFormat format) {
  return new_tensor(sizes, {}, at::TensorOptions().device(like.device()).dtype(dtype).memory_format(format));
}

at::Tensor new_output_like(const at::Tensor& like, at::ScalarType dtype) {
  const auto options = at::TensorOptions().device(like.device()).dtype(dtype);
  if (like.is_non_overlapping_and_dense()) return new_tensor(like.sizes(), like.strides(), options);
  return new_tensor(like.sizes(), at::infer_dense_strides(like.sizes(), like.strides()), options);
}

at::Tensor new_plain_output(const at::Tensor& like, at::ScalarType dtype) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(like.sizes(), &memory::caching_allocator(), keys, dtype, std::nullopt);
}

void resize_given(const at::Tensor& out, at::IntArrayRef sizes, at::IntArrayRef strides,
                  const at::TensorOptions& options) {
  TORCH_CHECK(options.dtype() == out.dtype(), "Expected out tensor to have dtype ", options.dtype(),
              ", but got ", out.dtype(), " instead");
  TORCH_CHECK(options.device() == out.device(), "Expected out tensor to have device ", options.device(),
              ", but got ", out.device(), " instead");
  if (!at::native::resize_output(out, sizes)) return;
  if (!strides.empty()) {
    out.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  } else if (options.memory_format_opt().has_value()) {
    out.unsafeGetTensorImpl()->empty_tensor_restride(*options.memory_format_opt());
  }
}

void resize_output(const at::Tensor& out, at::IntArrayRef sizes, at::ScalarType dtype, const at::Tensor& like,
                   at::MemoryFormat format) {
  resize_given(out, sizes, {}, at::TensorOptions().device(like.device()).dtype(dtype).memory_format(format));
}

void resize_output_like(const at::Tensor& out, const at::Tensor& like, at::ScalarType dtype) {
  const bool dense = like.is_non_overlapping_and_dense();
  resize_given(out, like.sizes(), dense ? like.strides() : at::IntArrayRef(),
               at::TensorOptions().device(like.device()).dtype(dtype));
}

void check_inplace_result(const at::Tensor& self, at::IntArrayRef sizes, const at::TensorOptions& options) {
  TORCH_CHECK(options.dtype() == self.dtype(), "Bad in-place call: input tensor dtype ", self.dtype(),
              " and output tensor dtype ", options.dtype(), " should match");
  TORCH_CHECK(options.device() == self.device(), "Bad in-place call: input tensor device ", self.device(),
              " and output tensor device ", options.device(), " should match");
  TORCH_CHECK(sizes == self.sizes(), "Bad in-place call: input tensor size ", self.sizes(),
              " and output tensor size ", sizes, " should match");
}

}  // namespace torch_npu
