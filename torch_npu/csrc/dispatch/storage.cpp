// Operators that change which storage a tensor has, or how large it is.
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <torch/library.h>

#include "torch_npu/csrc/dispatch/deterministic.h"
#include "torch_npu/csrc/dispatch/device_switch.h"
#include "torch_npu/csrc/dispatch/outputs.h"
#include "torch_npu/csrc/dispatch/packed.h"

namespace torch_npu {
namespace {

/// Makes the storage large enough for what the tensor's sizes and strides reach.
void grow_storage(const at::Tensor& self) {
  if (self.numel() == 0) return;
  auto* impl = self.unsafeGetTensorImpl();
  const size_t needed =
      at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(), self.storage_offset());
  const c10::Storage& storage = impl->unsafe_storage();
  if (needed > storage.nbytes()) at::native::resize_bytes_nocuda(storage, needed);
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes,
                         std::optional<at::MemoryFormat> memory_format) {
  at::native::check_size_nonnegative(sizes);
  const DeviceSwitch on(self.device().index());
  auto* impl = self.unsafeGetTensorImpl();
  const auto bytes_before = static_cast<int64_t>(impl->unsafe_storage().nbytes());
  if (self.sizes() != sizes) impl->set_sizes_contiguous(sizes);
  if (memory_format.has_value()) {
    TORCH_CHECK(*memory_format != at::MemoryFormat::Preserve, "Unsupported memory format ", *memory_format);
    impl->empty_tensor_restride(*memory_format);
  }
  grow_storage(self);
  if (fills_uninitialized_memory()) [[unlikely]]
    at::native::fill_resize_deterministic_(self, bytes_before);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  TORCH_CHECK(source.device() == self.device(), "Expected storage of device ", self.device(),
              ", but it is on ", source.device());
  const DeviceSwitch on(self.device().index());
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  if (strides.data() == nullptr) {
    impl->set_sizes_contiguous(sizes);
    impl->set_storage_offset(offset);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  follow_storage(self);
  grow_storage(self);
  return self;
}

at::Tensor& set_storage_whole(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, elements, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  const at::Tensor nothing = new_tensor({0}, {}, self.options());
  return set_storage(self, nothing.storage(), 0, {0}, {});
}

/// Whether `self.data = from` is possible. PyTorch's own answer knows CPU and CUDA alone, for which
/// module.to() keeps the Parameter objects that optimizers and tied weights hold; with a "no" it would
/// replace them.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto is_dense = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_nested() &&
           (tensor.is_privateuseone() || tensor.is_cpu());
  };
  return (is_dense(self) && is_dense(from)) ||
         self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  m.impl("resize_", TORCH_FN(resize));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Storage", TORCH_FN(set_storage_whole));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("set_", TORCH_FN(set_nothing));
}

}  // namespace torch_npu
