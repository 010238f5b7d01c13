#include <c10/util/Exception.h>

#include <mutex>
#include <vector>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/device/stream.h"
#include "torch_npu/csrc/memory/driver.h"

namespace torch_npu::memory {
namespace {

bool is_out_of_memory(aclError code) {
  return code == ACL_ERROR_RT_MEMORY_ALLOCATION || code == ACL_ERROR_BAD_ALLOC;
}

class CannDriver final : public Driver {
 public:
  c10::DeviceIndex device_count() override { return device::device_count(); }
  c10::DeviceIndex current_device() override { return device::current_device(); }
  StreamHandle current_stream(c10::DeviceIndex index) override {
    return device::current_stream_handle(index);
  }
  StreamHandle stream_handle(const c10::Stream& stream) override { return device::stream_handle(stream); }

  void activate(c10::DeviceIndex index) override { device::activate(index); }

  void* allocate(c10::DeviceIndex index, size_t nbytes) override {
    device::activate(index);
    void* ptr = nullptr;
    const aclError code = cann::api().aclrtMalloc(&ptr, nbytes, ACL_MEM_MALLOC_HUGE_FIRST);
    if (is_out_of_memory(code)) return nullptr;
    cann::check(code, "aclrtMalloc");
    return ptr;
  }

  void release(c10::DeviceIndex index, void* ptr) override {
    device::activate(index);
    cann::api().aclrtFree.checked(ptr);
  }

  std::pair<size_t, size_t> memory_info(c10::DeviceIndex index) override {
    return device::memory_info(index);
  }

  void copy(void* dest, const void* src, size_t nbytes) override {
    device::activate(device::current_device());
    cann::api().aclrtMemcpy.checked(dest, nbytes, src, nbytes, ACL_MEMCPY_DEVICE_TO_DEVICE);
  }

  void* reserve_addresses(c10::DeviceIndex index, size_t nbytes) override {
    device::activate(index);
    constexpr uint64_t kHugePages = 1;
    void* ptr = nullptr;
    cann::api().aclrtReserveMemAddress.checked(&ptr, nbytes, 0, nullptr, kHugePages);
    return ptr;
  }

  void release_addresses(c10::DeviceIndex index, void* ptr) override {
    device::activate(index);
    cann::api().aclrtReleaseMemAddress.checked(ptr);
  }

  PhysicalMemory map_memory(c10::DeviceIndex index, void* ptr, size_t nbytes) override {
    device::activate(index);
    aclrtPhysicalMemProp properties{};
    properties.handleType = ACL_MEM_HANDLE_TYPE_NONE;
    properties.allocationType = ACL_MEM_ALLOCATION_TYPE_PINNED;
    properties.memAttr = ACL_HBM_MEM_HUGE;
    properties.location = {.id = static_cast<uint32_t>(index), .type = ACL_MEM_LOCATION_TYPE_DEVICE};
    aclrtDrvMemHandle memory = nullptr;
    const aclError code = cann::api().aclrtMallocPhysical(&memory, nbytes, &properties, 0);
    if (is_out_of_memory(code)) return nullptr;
    cann::check(code, "aclrtMallocPhysical");
    cann::api().aclrtMapMem.checked(ptr, nbytes, 0, memory, 0);
    return memory;
  }

  void unmap_memory(c10::DeviceIndex index, void* ptr, PhysicalMemory memory) override {
    device::activate(index);
    cann::api().aclrtUnmapMem.checked(ptr);
    cann::api().aclrtFreePhysical.checked(memory);
  }

  void synchronize(c10::DeviceIndex index) override { device::synchronize(index); }

  Event record_event(c10::DeviceIndex index, StreamHandle stream) override {
    device::activate(index);
    Event event = idle_event();
    cann::api().aclrtRecordEvent.checked(event, stream);
    return event;
  }

  bool event_completed(Event event) override {
    aclrtEventRecordedStatus status = ACL_EVENT_RECORDED_STATUS_NOT_READY;
    cann::api().aclrtQueryEventStatus.checked(event, &status);
    return status == ACL_EVENT_RECORDED_STATUS_COMPLETE;
  }

  void wait_for_event(Event event) override { cann::api().aclrtSynchronizeEvent.checked(event); }

  void release_event(Event event) override {
    std::lock_guard lock(mutex_);
    idle_events_.push_back(event);
  }

  size_t tail_padding() override {
    // Before Ascend 950, vector kernels read up to one 32-byte unit past the last element.
    return device::properties(device::current_device()).name.rfind("Ascend950", 0) == 0 ? 0 : 32;
  }

 private:
  /// Events are kept for reuse: making one costs the device more than recording it.
  Event idle_event() {
    {
      std::lock_guard lock(mutex_);
      if (!idle_events_.empty()) {
        const Event event = idle_events_.back();
        idle_events_.pop_back();
        return event;
      }
    }
    Event event = nullptr;
    const auto& unlimited = cann::api().aclrtCreateEventExWithFlag;
    (unlimited ? unlimited : cann::api().aclrtCreateEventWithFlag).checked(&event, ACL_EVENT_SYNC);
    return event;
  }

  std::mutex mutex_;
  std::vector<Event> idle_events_;
};

}  // namespace

Driver& cann_driver() {
  static auto& driver = *new CannDriver();  // outlives the tensors that are freed at exit
  return driver;
}

}  // namespace torch_npu::memory
