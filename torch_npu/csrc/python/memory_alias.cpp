// Tensors on memory that another tensor's storage owns.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <memory>

#include "torch_npu/csrc/dispatch/packed.h"
#include "torch_npu/csrc/python/bindings.h"

namespace torch_npu::python {
namespace {

c10::Storage storage_at(c10::DataPtr data, size_t bytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                            std::move(data), /*allocator=*/nullptr,
                                                            /*resizable=*/false));
}

/// A tensor on the same memory that does not own it. A graph that works on it keeps the memory.
at::Tensor weak_ref_tensor(const at::Tensor& tensor) {
  const c10::Storage& owner = tensor.storage();
  c10::DataPtr memory(owner.mutable_data(), tensor.device());
  const PackedStorage* packed = packed_storage(owner);
  c10::Storage alias =
      packed ? packed->with_memory(std::move(memory)) : storage_at(std::move(memory), owner.nbytes());
  return at::empty({0}, tensor.options())
      .set_(std::move(alias), tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

/// Gives `tensor` a storage of its own: `elements` of `source`'s memory, from its element `first` on, which
/// it keeps. Its sizes and strides stay, even if they reach further.
void take_memory_of(const at::Tensor& tensor, const at::Tensor& source, int64_t first, int64_t elements) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_packed(source),
      "npu_change_data_ptr: src is in a private format (FRACTAL_NZ), of which no part can be "
      "taken; cast it back first: torch_npu.npu_format_cast(t, 2)");
  const auto bytes = static_cast<size_t>(elements) * tensor.element_size();
  auto kept = std::make_unique<c10::Storage>(source.storage());
  void* begin =
      static_cast<char*>(source.mutable_data_ptr()) + first * static_cast<int64_t>(source.element_size());
  const auto release = [](void* storage) { delete static_cast<c10::Storage*>(storage); };
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  impl.set_storage_keep_dtype(
      storage_at(c10::DataPtr(begin, kept.release(), release, source.device()), bytes));
  impl.set_storage_offset(0);
  follow_storage(tensor);
  impl.bump_version();
}

}  // namespace

void bind_memory_alias(py::module_& m) {
  m.def("_weak_ref_tensor", &weak_ref_tensor);
  m.def("_take_memory_of", &take_memory_of);
}

}  // namespace torch_npu::python
