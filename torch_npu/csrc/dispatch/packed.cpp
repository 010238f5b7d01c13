#include "torch_npu/csrc/dispatch/packed.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/accumulate.h>

#include <memory>

#include "cann/aclnn/basic.h"
#include "cann/format_cast.h"
#include "torch_npu/csrc/dispatch/aclnn.h"
#include "torch_npu/csrc/dispatch/device_switch.h"
#include "torch_npu/csrc/dispatch/outputs.h"
#include "torch_npu/csrc/graph/recording.h"
#include "torch_npu/csrc/memory/caching_allocator.h"

namespace torch_npu {
namespace {

Aclnn<decltype(::aclnnNpuFormatCastGetWorkspaceSize)> format_cast("aclnnNpuFormatCast");

/// The keys of a TensorImpl, which are fixed when it is made; npu_format_cast_ changes what it stands for.
struct Keys final : c10::TensorImpl {
  static constexpr c10::DispatchKeySet c10::TensorImpl::* member = &Keys::key_set_;
};

at::Tensor tensor_on(c10::Storage storage, at::ScalarType dtype, at::IntArrayRef sizes) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                         c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  follow_storage(tensor);
  return tensor;
}

/// What CANN says that the storage has to be.
at::DimVector packed_sizes(const at::Tensor& plain, aclFormat format) {
  using Signature = decltype(::aclnnNpuFormatCastCalculateSizeAndFormat);
  constexpr const char* name = "aclnnNpuFormatCastCalculateSizeAndFormat";
  static const auto calculate = reinterpret_cast<Signature*>(cann::find_aclnn(name));
  TORCH_CHECK_NOT_IMPLEMENTED(calculate != nullptr && format_cast.available(), "the CANN in use (",
                              cann::info().root, ") has no ", name, "; a newer CANN may have it");
  const TensorHandle source(create_tensor(plain));
  // Rows of a block have 32 bytes, but those of wide types 16 elements.
  const aclDataType of_row = plain.itemsize() > 2 ? ACL_FLOAT16 : to_acl(plain.scalar_type());
  int64_t* sizes = nullptr;
  uint64_t count = 0;
  int given = ACL_FORMAT_UNDEFINED;
  cann::check(calculate(source, format, of_row, &sizes, &count, &given), name);
  const std::unique_ptr<int64_t[]> owned(sizes);
  TORCH_CHECK(given == format, name, " chose format ", given, " for ", format);
  return {sizes, sizes + count};
}

}  // namespace

PackedStorage::PackedStorage(c10::DataPtr memory, at::IntArrayRef sizes, at::ScalarType dtype,
                             aclFormat format, at::IntArrayRef storage_sizes)
    : c10::StorageImpl(use_byte_size_t(),
                       static_cast<int64_t>(c10::multiply_integers(sizes) * c10::elementSize(dtype)),
                       std::move(memory), &memory::caching_allocator(), /*resizable=*/false),
      sizes(sizes),
      dtype(dtype),
      format(format),
      storage_sizes(storage_sizes) {}

c10::Storage PackedStorage::with_memory(c10::DataPtr memory) const {
  return c10::Storage(
      c10::make_intrusive<PackedStorage>(std::move(memory), sizes, dtype, format, storage_sizes));
}

PackedStorage* packed_storage(const c10::Storage& storage) {
  return dynamic_cast<PackedStorage*>(storage.unsafeGetStorageImpl());
}

void follow_storage(const at::Tensor& tensor) {
  c10::DispatchKeySet& keys = tensor.unsafeGetTensorImpl()->*Keys::member;
  keys = packed_storage(tensor.storage()) ? keys.add(kPackedKey) : keys.remove(kPackedKey);
}

at::Tensor pack(const at::Tensor& plain, aclFormat format) {
  const DeviceSwitch on(plain.device().index());
  const at::Tensor source = plain.contiguous();
  const at::DimVector storage_sizes = packed_sizes(source, format);
  const auto bytes = static_cast<size_t>(c10::multiply_integers(storage_sizes)) * source.itemsize();
  c10::Storage storage(c10::make_intrusive<PackedStorage>(memory::caching_allocator().allocate(bytes),
                                                          source.sizes(), source.scalar_type(), format,
                                                          storage_sizes));
  at::Tensor packed = tensor_on(std::move(storage), source.scalar_type(), source.sizes());
  format_cast(source, packed);
  return packed;
}

at::Tensor unpack(const c10::Storage& packed) {
  const PackedStorage& memory = *packed_storage(packed);
  const DeviceSwitch on(packed.device().index());
  at::Tensor plain = new_tensor(memory.sizes, {}, at::TensorOptions(packed.device()).dtype(memory.dtype));
  format_cast(tensor_on(packed, memory.dtype, memory.sizes), plain);
  return plain;
}

void repack(const at::Tensor& plain, const c10::Storage& packed) {
  const PackedStorage& memory = *packed_storage(packed);
  const DeviceSwitch on(packed.device().index());
  format_cast(plain, tensor_on(packed, memory.dtype, memory.sizes));
}

at::Tensor on_plain_storage(const at::Tensor& packed, const at::Tensor& plain) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(plain.storage()),
                                                       c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                       packed.dtype());
  auto* impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(packed.sizes(), packed.strides(), packed.storage_offset());
  impl->_set_conj(packed.is_conj());
  impl->_set_neg(packed.is_neg());
  return view;
}

bool is_packed_matrix(const at::Tensor& tensor) {
  if (!is_packed(tensor) || tensor.dim() != 2 || tensor.storage_offset() != 0) return false;
  const PackedStorage& memory = *packed_storage(tensor.storage());
  if (memory.dtype != tensor.scalar_type() || memory.sizes.size() != 2) return false;
  const int64_t rows = memory.sizes[0], columns = memory.sizes[1];
  // A single row or column looks like its transpose.
  if (rows < 2 || columns < 2) return false;
  const bool whole =
      tensor.sizes() == at::IntArrayRef{rows, columns} && tensor.strides() == at::IntArrayRef{columns, 1};
  const bool transposed =
      tensor.sizes() == at::IntArrayRef{columns, rows} && tensor.strides() == at::IntArrayRef{1, columns};
  return whole || transposed;
}

aclTensor* create_packed_tensor(const at::Tensor& tensor) {
  const PackedStorage& memory = *packed_storage(tensor.storage());
  if (graph::Recording* recording = graph::current_recording(tensor.device().index())) [[unlikely]]
    recording->keep(tensor.storage());
  return cann::api().aclCreateTensor(tensor.sizes().data(), tensor.sizes().size(),
                                     to_acl(tensor.scalar_type()), tensor.strides().data(),
                                     tensor.storage_offset(), memory.format, memory.storage_sizes.data(),
                                     memory.storage_sizes.size(), const_cast<void*>(memory.data()));
}

}  // namespace torch_npu
