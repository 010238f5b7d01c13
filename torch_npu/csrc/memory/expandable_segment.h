#pragma once

#include <cstddef>
#include <vector>

#include "torch_npu/csrc/memory/driver.h"

namespace torch_npu::memory {

/// A range of device addresses that is reserved once and backed with memory chunk by chunk. It grows without
/// a new segment beside it, and chunks in its middle can be given back, so that it fragments less than fixed
/// segments.
class ExpandableSegment {
 public:
  /// Reserves addresses for `size` bytes. Both sizes are multiples of the driver's granularity, `size` of
  /// `chunk_size`.
  ExpandableSegment(Driver& driver, c10::DeviceIndex device, size_t size, size_t chunk_size);
  ~ExpandableSegment();
  ExpandableSegment(const ExpandableSegment&) = delete;

  void* base() const { return base_; }
  size_t size() const { return size_; }
  size_t chunk_size() const { return chunk_size_; }

  /// Backs whole chunks, none of which is backed. False, with nothing changed, if the device lacks the
  /// memory.
  bool map(void* begin, size_t nbytes);
  void unmap(void* begin, size_t nbytes);

 private:
  size_t chunk_of(const void* ptr) const;
  void* address_of(size_t chunk) const;

  Driver& driver_;
  const c10::DeviceIndex device_;
  const size_t size_;
  const size_t chunk_size_;
  void* const base_;
  std::vector<Driver::PhysicalMemory> chunks_;  // null where not backed
};

}  // namespace torch_npu::memory
