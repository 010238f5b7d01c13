#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <utility>

#include "torch_npu/csrc/memory/block.h"

namespace torch_npu::memory {

/// What the allocators ask of a device. CANN implements it (cann_driver.cpp), and the allocator's own tests
/// do. Every function throws c10::Error when the device reports a failure; `allocate` returns null for lack
/// of memory.
class Driver {
 public:
  using Event = void*;
  using PhysicalMemory = void*;

  virtual ~Driver() = default;

  virtual c10::DeviceIndex device_count() = 0;
  virtual c10::DeviceIndex current_device() = 0;
  virtual StreamHandle current_stream(c10::DeviceIndex device) = 0;
  virtual StreamHandle stream_handle(const c10::Stream& stream) = 0;

  /// Makes the device current in this thread, for code that calls it directly.
  virtual void activate(c10::DeviceIndex device) = 0;

  virtual void* allocate(c10::DeviceIndex device, size_t nbytes) = 0;
  virtual void release(c10::DeviceIndex device, void* ptr) = 0;
  /// Free and total bytes of the device.
  virtual std::pair<size_t, size_t> memory_info(c10::DeviceIndex device) = 0;
  virtual void copy(void* dest, const void* src, size_t nbytes) = 0;

  /// Addresses without memory.
  virtual void* reserve_addresses(c10::DeviceIndex device, size_t nbytes) = 0;
  virtual void release_addresses(c10::DeviceIndex device, void* ptr) = 0;
  /// Puts memory behind reserved addresses; null for lack of memory.
  virtual PhysicalMemory map_memory(c10::DeviceIndex device, void* ptr, size_t nbytes) = 0;
  virtual void unmap_memory(c10::DeviceIndex device, void* ptr, PhysicalMemory memory) = 0;

  /// Waits for all work on the device.
  virtual void synchronize(c10::DeviceIndex device) = 0;
  virtual Event record_event(c10::DeviceIndex device, StreamHandle stream) = 0;
  virtual bool event_completed(Event event) = 0;
  virtual void wait_for_event(Event event) = 0;
  virtual void release_event(Event event) = 0;

  /// Bytes past the end of an allocation that the device's kernels may read.
  virtual size_t tail_padding() = 0;
};

Driver& cann_driver();

}  // namespace torch_npu::memory
