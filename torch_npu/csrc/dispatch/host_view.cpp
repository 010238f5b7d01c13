#include "torch_npu/csrc/dispatch/host_view.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/dispatch/layouts.h"
#include "torch_npu/csrc/dispatch/packed.h"
#include "torch_npu/csrc/memory/caching_allocator.h"
#include "torch_npu/csrc/memory/host_alias.h"

namespace torch_npu {
namespace {

constexpr c10::DispatchKeySet kLazyBits = c10::DispatchKeySet(c10::DispatchKey::Conjugate) |
                                          c10::DispatchKeySet(c10::DispatchKey::Negative) |
                                          c10::DispatchKeySet(c10::DispatchKey::ZeroTensor);

constexpr c10::DispatchKeySet kHostKeys(c10::DispatchKey::CPU);
constexpr c10::DispatchKeySet kNpuKeys(c10::DispatchKey::PrivateUse1);

/// The CPU tensor for an npu argument: its metadata over the same bytes, for kernels below autograd.
class HostView final : public c10::TensorImpl {
 public:
  HostView(const c10::TensorImpl& argument, c10::Storage storage)
      : c10::TensorImpl(c10::TensorImpl::VIEW, std::move(storage), kHostKeys, argument.dtype()) {
    copy_generic_tensor_metadata(&argument, this);
    device_opt_ = c10::Device(c10::DeviceType::CPU);
    key_set_ = kHostKeys | (argument.key_set() & kLazyBits);
    // Without the keys of autograd it would have none, as inference tensors, and kernels that count their
    // changes themselves (foreach) would refuse it.
    version_counter_ = argument.version_counter();
  }
};

/// An npu tensor with the metadata of a CPU kernel's result that cannot itself become one.
class AdoptedTensor final : public c10::TensorImpl {
 public:
  AdoptedTensor(const c10::TensorImpl& result, c10::Storage storage)
      : c10::TensorImpl(std::move(storage), kNpuKeys, result.dtype()) {
    const c10::DispatchKeySet keys = key_set_;  // with those of autograd and autocast
    copy_generic_tensor_metadata(&result, this);
    device_opt_ = storage_.device();
    key_set_ = keys | (result.key_set() & kLazyBits);
  }
};

c10::Storage host_storage(const at::Tensor& npu) {
  const auto& storage = npu.unsafeGetTensorImpl()->unsafe_storage();
  if (memory::Block* block = memory::block_of(storage.data_ptr())) {
    return c10::Storage(memory::host_alias(*block, storage.nbytes()));
  }
  // Memory that the pool does not know: no bytes at all, or a foreign pointer. Nothing to keep alive.
  return unowned_host_storage(storage);
}

constinit thread_local const HostAllocationsFromPool* t_pooled_allocations = nullptr;

/// The CPU allocator of the process: npu memory inside HostAllocationsFromPool, else what was there before.
class PoolingCpuAllocator final : public c10::Allocator {
 public:
  explicit PoolingCpuAllocator(c10::Allocator* next) { next_ = next; }
  c10::DataPtr allocate(size_t bytes) override {
    const HostAllocationsFromPool* pooled = t_pooled_allocations;
    return pooled ? pooled->allocate(bytes) : next_->allocate(bytes);
  }
  // For memory that was allocated without a DataPtr, inside or outside a fallback.
  c10::DeleterFnPtr raw_deleter() const override { return &delete_raw; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    next_->copy_data(to, from, bytes);
  }

 private:
  static void delete_raw(void* ptr) {
    if (!memory::free_for_host(ptr)) next_->raw_deleter()(ptr);
  }
  static inline c10::Allocator* next_ =
      nullptr;  // one allocator a process; raw deleters have no other context
};

}  // namespace

void install_cpu_allocator() {
  // Above torch's own (0), below that of cann_host's operators (100).
  constexpr uint8_t kPriority = 50;
  static auto* allocator = new PoolingCpuAllocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(allocator, kPriority);
}

bool device_memory_is_host_accessible() {
  static const bool accessible = [] {
    const auto& probe = cann::api().cannHostDeviceMemoryIsHostAccessible;
    return static_cast<bool>(probe) && probe() != 0;
  }();
  return accessible;
}

c10::Storage unowned_host_storage(const c10::Storage& npu) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), npu.nbytes(),
      c10::DataPtr(const_cast<void*>(npu.data()), c10::Device(c10::DeviceType::CPU)), c10::GetCPUAllocator(),
      /*resizable=*/npu.resizable()));
}

HostAllocationsFromPool::HostAllocationsFromPool(c10::DeviceIndex device, aclrtStream stream)
    : device_(device), stream_(stream), outer_(std::exchange(t_pooled_allocations, this)) {}
HostAllocationsFromPool::~HostAllocationsFromPool() { t_pooled_allocations = outer_; }

c10::DataPtr HostAllocationsFromPool::allocate(size_t bytes) const {
  return memory::allocate_for_host(bytes, device_, stream_);
}

at::Tensor host_view(const at::Tensor& npu) { return host_view(npu, host_storage(npu)); }

at::Tensor host_view(const at::Tensor& npu, c10::Storage host) {
  TORCH_INTERNAL_ASSERT(!is_packed(npu), "the CPU cannot read memory in a private format");
  return at::Tensor(c10::make_intrusive<HostView>(*npu.unsafeGetTensorImpl(), std::move(host)));
}

at::Tensor HostCall::argument(at::Tensor tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
  if (!is_dense(tensor)) [[unlikely]] {
    const auto part = [this](const at::Tensor& t) { return argument(t); };
    composed_.push_back({tensor, relocate_parts(tensor, c10::DeviceType::CPU, part)});
    return composed_.back().view;
  }
  at::Tensor view = host_view(tensor);
  arguments_.push_back({std::move(tensor), view});
  return view;
}

void HostCall::write_back() {
  for (auto& [npu, view] : arguments_) {
    auto* npu_impl = npu.unsafeGetTensorImpl();
    auto* view_impl = view.unsafeGetTensorImpl();
    auto* npu_storage = npu_impl->unsafe_storage().unsafeGetStorageImpl();
    auto host = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
        view_impl->unsafe_storage().unsafeGetStorageImpl());
    if (host->data() != npu_storage->data()) {
      const size_t bytes = host->nbytes();
      npu_storage->set_data_ptr_noswap(take_over(std::move(host)));
      npu_storage->set_nbytes(bytes);
    }
    if (npu_impl->is_conj() != view_impl->is_conj()) npu_impl->_set_conj(view_impl->is_conj());
    if (npu_impl->is_neg() != view_impl->is_neg()) npu_impl->_set_neg(view_impl->is_neg());
    if (npu_impl->sizes() != view_impl->sizes() || npu_impl->strides() != view_impl->strides() ||
        npu_impl->storage_offset() != view_impl->storage_offset()) {
      npu_impl->set_sizes_and_strides(view_impl->sizes(), view_impl->strides(), view_impl->storage_offset());
    }
  }
  for (auto& [npu, view] : composed_) {
    assign_parts(npu, view, [this](const at::Tensor& t) { return result(t); });
  }
}

c10::DataPtr HostCall::take_over(c10::intrusive_ptr<c10::StorageImpl> host) {
  if (host->data() == nullptr) {  // no bytes, or a tensor of zeros without memory
    return {nullptr, c10::Device(c10::DeviceType::PrivateUse1, device::current_device())};
  }
  if (auto adopted = memory::adopt_host_storage(host)) return std::move(*adopted);
  auto& allocator = memory::caching_allocator();
  const size_t bytes = host->nbytes();
  c10::DataPtr data = allocator.allocate(bytes);
  if (bytes > 0) allocator.copy_data(data.get(), host->data(), bytes);
  copied_bytes_ += bytes;
  return data;
}

c10::Storage HostCall::npu_storage_of(const at::Tensor& cpu) {
  auto* host = cpu.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  for (const auto& [npu, view] : arguments_) {
    if (view.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == host) return npu.storage();
  }
  for (const auto& [seen, storage] : adopted_) {
    if (seen == host) return storage;
  }
  if (c10::raw::intrusive_ptr::use_count(host) == 1 && memory::turn_into_npu_storage(*host)) {
    return cpu.unsafeGetTensorImpl()->unsafe_storage();
  }
  const size_t bytes = host->nbytes();
  c10::DataPtr data = take_over(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(host));
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                             std::move(data), &memory::caching_allocator(),
                                                             /*resizable=*/true));
  if (several_results_) adopted_.emplace_back(host, storage);
  return storage;
}

at::Tensor HostCall::result(at::Tensor cpu) {
  if (!cpu.defined() || !cpu.is_cpu()) return cpu;
  for (const auto& [npu, view] : arguments_) {
    if (view.is_same(cpu)) return npu;
  }
  if (!is_dense(cpu)) {
    for (const auto& [npu, view] : composed_) {
      if (view.is_same(cpu)) return npu;
    }
    several_results_ = true;
    const auto part = [this](const at::Tensor& t) { return result(t); };
    return relocate_parts(cpu, c10::DeviceType::PrivateUse1, part);
  }
  c10::Storage storage = npu_storage_of(cpu);
  c10::TensorImpl& impl = *cpu.unsafeGetTensorImpl();
  // What was made from a HostView lacks the keys of autograd.
  if (cpu.use_count() > 1 || impl.is_inference() != c10::InferenceMode::is_enabled()) {
    return at::Tensor(c10::make_intrusive<AdoptedTensor>(impl, std::move(storage)));
  }
  const c10::Device device = storage.device();
  impl.set_storage_keep_dtype(std::move(storage));
  impl._change_backend_component_keys(device);
  return cpu;
}

}  // namespace torch_npu
