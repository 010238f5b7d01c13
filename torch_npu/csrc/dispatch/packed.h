// Tensors in a private format of CANN's (FRACTAL_NZ): their bytes lie otherwise than sizes and strides say.
#pragma once

#include <ATen/DimVector.h>
#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include "cann/acl.h"

namespace torch_npu {

/// A key of the dispatcher's that nobody else uses. It lies below autograd and Python's modes and above the
/// device: whatever is done to a tensor with it passes packed_calls.cpp, and plain tensors pay nothing.
constexpr c10::DispatchKey kPackedKey = c10::DispatchKey::CustomRNGKeyId;

inline bool is_packed(const at::Tensor& tensor) { return tensor.key_set().has(kPackedKey); }

/// Memory in a private format. To PyTorch it has as many bytes as the plain tensor would have, so that what
/// copies whole storages (torch.save, deepcopy) gets all of its numbers and no padding.
class PackedStorage final : public c10::StorageImpl {
 public:
  PackedStorage(c10::DataPtr memory, at::IntArrayRef sizes, at::ScalarType dtype, aclFormat format,
                at::IntArrayRef storage_sizes);

  const at::DimVector sizes;  // of the contiguous tensor that was packed
  const at::ScalarType dtype;
  const aclFormat format;
  const at::DimVector storage_sizes;  // padding included

  /// The same memory under another DataPtr.
  c10::Storage with_memory(c10::DataPtr memory) const;
};

/// Null for plain storage.
PackedStorage* packed_storage(const c10::Storage& storage);

/// Gives the tensor the key that goes with its storage. To be called when it got another one.
void follow_storage(const at::Tensor& tensor);

/// A packed copy of an npu tensor with two dimensions or more.
at::Tensor pack(const at::Tensor& plain, aclFormat format);

/// A plain copy of all numbers, as they lay when they were packed.
at::Tensor unpack(const c10::Storage& packed);

/// Packs `plain`, as unpack() gave it, into the memory where it came from.
void repack(const at::Tensor& plain, const c10::Storage& packed);

/// The tensor's view of packed storage, on plain storage with the same numbers.
at::Tensor on_plain_storage(const at::Tensor& packed, const at::Tensor& plain);

/// A matrix that products read as it is: all of a packed matrix or its transpose.
bool is_packed_matrix(const at::Tensor& tensor);

/// create_tensor() of aclnn.h for packed ones.
aclTensor* create_packed_tensor(const at::Tensor& tensor);

}  // namespace torch_npu
