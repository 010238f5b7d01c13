#include "torch_npu/csrc/memory/pinned.h"

#include <c10/core/Event.h>

#include <chrono>
#include <cstring>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/device/stream.h"
#include "torch_npu/csrc/memory/settings.h"

namespace torch_npu::memory {
namespace {

/// Runs `f` and adds its microseconds to `stat`.
template <typename F>
void timed(std::mutex& mutex, c10::CachingAllocator::DurationStat& stat, F f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  const auto time = std::chrono::steady_clock::now() - start;
  std::lock_guard lock(mutex);
  stat.increase(std::chrono::duration_cast<std::chrono::microseconds>(time).count());
}

class PinnedCache final : public at::CachingHostAllocatorImpl<c10::Stream, c10::Event> {
 public:
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    std::memcpy(dest, src, count);
  }

 private:
  using Block = at::HostBlock<c10::Stream>;

  void allocate_host_memory(size_t size, void** ptr) override {
    settings();  // the cache reads PyTorch's settings, which PYTORCH_NPU_ALLOC_CONF may change
    device::activate(device::current_device());
    timed(stats_.timing_mutex_, stats_.host_alloc_time,
          [&] { cann::api().aclrtMallocHost.checked(ptr, size); });
  }

  void free_block(Block* block) override {
    device::activate(device::current_device());
    timed(stats_.timing_mutex_, stats_.host_free_time,
          [&] { cann::api().aclrtFreeHost.checked(block->ptr_); });
  }

  void record_stream(std::optional<std::vector<c10::Event>>& events, c10::Stream stream) override {
    events->emplace_back(stream.device_type()).record(stream);
  }

  bool query_event(c10::Event& event) override { return event.query(); }

  c10::Stream get_current_stream() const override { return device::current_stream(device::current_device()); }
  bool stream_is_capturing(c10::Stream stream) const override { return device::is_capturing(stream); }
};

void delete_pinned(void* block);

class PinnedAllocator final : public at::CachingHostAllocatorInterface<PinnedCache, delete_pinned> {
 public:
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }  // the context is the block, not the memory
};

PinnedAllocator& allocator() {
  static auto& instance = *new PinnedAllocator();  // outlives the tensors that are freed at exit
  return instance;
}

void delete_pinned(void* block) { allocator().free(block); }

const at::HostAllocatorRegistry<c10::DeviceType::PrivateUse1> registered(&allocator());

}  // namespace

at::HostAllocator& pinned_allocator() { return allocator(); }

}  // namespace torch_npu::memory
