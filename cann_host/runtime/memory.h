// Which addresses are memory of devices, which are page-locked host memory.
#pragma once

#include <cann/acl.h>

#include <functional>
#include <map>
#include <optional>
#include <shared_mutex>

#include "device.h"

namespace cann_host {

enum class Place {
  device,
  host,       // aclrtMallocHost
  registered  // the caller's own, by aclrtHostRegister
};

struct Range {
  uintptr_t begin;
  size_t size;
  Place place;
  Device* device;                 // owner of the bytes; for host memory the device that was current, if any
  std::function<void()> release;  // gives the pages back

  bool contains(uintptr_t address) const { return address - begin < size; }
};

class MemoryMap {
 public:
  void add(Range range);
  /// Removes the range that begins exactly there.
  std::optional<Range> remove(const void* begin);
  std::optional<Range> find(const void* address) const;
  /// Bytes from `address` on that are memory of one device, across ranges that touch each other.
  size_t device_bytes_from(const void* address, size_t wanted) const;
  bool overlaps(uintptr_t begin, size_t size) const;

 private:
  const Range* containing(uintptr_t address) const;

  mutable std::shared_mutex mutex_;
  std::map<uintptr_t, Range> ranges_;
};

MemoryMap& memory_map();

/// Throw ACL_ERROR_INVALID_PARAM unless all the bytes are memory of one device, or none is.
void require_device_memory(const char* argument, const void* address, size_t size);
void require_host_memory(const char* argument, const void* address, size_t size);

/// True for memory that a device could read while the host goes on: device memory and page-locked memory.
bool is_pinned(const void* address);

}  // namespace cann_host
