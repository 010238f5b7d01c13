#include "torch_npu/csrc/memory/expandable_segment.h"

namespace torch_npu::memory {

ExpandableSegment::ExpandableSegment(Driver& driver, c10::DeviceIndex device, size_t size, size_t chunk_size)
    : driver_(driver),
      device_(device),
      size_(size),
      chunk_size_(chunk_size),
      base_(driver.reserve_addresses(device, size)),
      chunks_(size / chunk_size) {}

ExpandableSegment::~ExpandableSegment() {
  unmap(base_, size_);
  driver_.release_addresses(device_, base_);
}

size_t ExpandableSegment::chunk_of(const void* ptr) const {
  return (static_cast<const char*>(ptr) - static_cast<const char*>(base_)) / chunk_size_;
}

void* ExpandableSegment::address_of(size_t chunk) const {
  return static_cast<char*>(base_) + chunk * chunk_size_;
}

bool ExpandableSegment::map(void* begin, size_t nbytes) {
  const size_t first = chunk_of(begin);
  const size_t last = first + nbytes / chunk_size_;
  try {
    for (size_t i = first; i < last; ++i) {
      chunks_[i] = driver_.map_memory(device_, address_of(i), chunk_size_);
      if (chunks_[i]) continue;
      unmap(begin, nbytes);
      return false;
    }
  } catch (...) {
    unmap(begin, nbytes);
    throw;
  }
  return true;
}

void ExpandableSegment::unmap(void* begin, size_t nbytes) {
  const size_t first = chunk_of(begin);
  const size_t last = first + nbytes / chunk_size_;
  for (size_t i = first; i < last; ++i) {
    if (chunks_[i]) driver_.unmap_memory(device_, address_of(i), chunks_[i]);
    chunks_[i] = nullptr;
  }
}

}  // namespace torch_npu::memory
