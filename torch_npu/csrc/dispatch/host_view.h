// npu tensors as CPU tensors over the same bytes, and back: how ATen's CPU kernels run on npu tensors without
// a copy. Only for devices whose memory the host can address (cann_host).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <utility>

#include "cann/acl.h"

namespace torch_npu {

/// Whether the host may read and write device memory through its address. Known once a CANN is loaded.
bool device_memory_is_host_accessible();

/// A CPU tensor over the bytes of a strided npu tensor. It must not outlive the npu tensor's storage.
at::Tensor host_view(const at::Tensor& npu);

/// A CPU storage over the bytes of an npu storage, which someone else keeps as long as it is used.
c10::Storage unowned_host_storage(const c10::Storage& npu);

/// A CPU tensor with the shape of an npu tensor over a storage of the above kind.
at::Tensor host_view(const at::Tensor& npu, c10::Storage host);

/// The tensors of one call of a CPU kernel: views of its npu arguments, and what becomes of its results.
class HostCall {
 public:
  /// `several_results`: the kernel returns more than one tensor, so that two of them may share memory.
  explicit HostCall(bool several_results) : several_results_(several_results) {}

  /// The CPU view of an npu argument; anything else is passed through.
  at::Tensor argument(at::Tensor tensor);

  /// Carries changes of shape, strides and storage (out=, resize_, in-place) from the views back to the npu
  /// tensors.
  void write_back();

  /// The npu tensor for a result of the CPU kernel: the argument itself, a view of an argument's storage, or
  /// the result itself moved to npu, memory included; another tensor if somebody else holds the result.
  at::Tensor result(at::Tensor cpu);

  /// Bytes that had to be copied because a result did not lie in device memory.
  size_t copied_bytes() const { return copied_bytes_; }

 private:
  /// The memory of a CPU storage as npu memory: the same where it comes from the pool, else a copy.
  c10::DataPtr take_over(c10::intrusive_ptr<c10::StorageImpl> host);
  c10::Storage npu_storage_of(const at::Tensor& cpu);

  struct Pair {
    at::Tensor npu;
    at::Tensor view;
  };
  c10::SmallVector<Pair, 6> arguments_;  // dense ones, and the parts of the others
  c10::SmallVector<Pair, 1> composed_;   // sparse and nested ones
  bool several_results_;
  c10::SmallVector<std::pair<const c10::StorageImpl*, c10::Storage>, 2> adopted_;  // if several_results_
  size_t copied_bytes_ = 0;
};

/// Puts the allocator behind HostAllocationsFromPool in front of torch's, once and before a CANN is loaded:
/// cann_host's own tells allocations apart by who asks and therefore must be asked first.
void install_cpu_allocator();

/// While it lives, memory that ATen allocates on the CPU in this thread comes from a device's pool, so that
/// results can be taken over without a copy.
class HostAllocationsFromPool {
 public:
  HostAllocationsFromPool(c10::DeviceIndex device, aclrtStream stream);
  ~HostAllocationsFromPool();
  HostAllocationsFromPool(const HostAllocationsFromPool&) = delete;
  HostAllocationsFromPool& operator=(const HostAllocationsFromPool&) = delete;

  c10::DataPtr allocate(size_t bytes) const;

 private:
  const c10::DeviceIndex device_;
  const aclrtStream stream_;
  const HostAllocationsFromPool* const outer_;
};

}  // namespace torch_npu
