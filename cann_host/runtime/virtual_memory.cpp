// Reserved addresses, physical memory, and the one mapped to the other. Physical memory is part of an
// anonymous file.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "memory.h"
#include "stream.h"

namespace cann_host {
namespace {

constexpr size_t granularity = size_t{2} << 20;

/// The sparse file that holds the physical memory of all devices. It is one for all, because clients map
/// gigabytes in pieces of 2 MB, and a process may have few files open.
class PhysicalFile {
 public:
  int descriptor() const { return descriptor_; }

  /// The offset of `size` bytes of zeros; nothing if the host refuses.
  std::optional<off_t> take(size_t size) {
    std::lock_guard lock(mutex_);
    auto fits = [size](const auto& range) { return range.second >= size; };
    auto found = std::find_if(free_.begin(), free_.end(), fits);
    if (found != free_.end()) {
      auto [offset, length] = *found;
      free_.erase(found);
      if (length > size) free_.emplace(offset + size, length - size);
      return static_cast<off_t>(offset);
    }
    if (descriptor_ < 0 || ftruncate(descriptor_, static_cast<off_t>(end_ + size))) return std::nullopt;
    end_ += size;
    return static_cast<off_t>(end_ - size);
  }

  /// Gives the pages back to the host.
  void give(off_t offset, size_t size) {
    const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    if (fallocate(descriptor_, mode, offset, static_cast<off_t>(size))) return;  // dirty: never used again
    std::lock_guard lock(mutex_);
    auto range = free_.emplace(static_cast<size_t>(offset), size).first;
    if (auto next = std::next(range); next != free_.end() && range->first + range->second == next->first) {
      range->second += next->second;
      free_.erase(next);
    }
    if (range == free_.begin()) return;
    if (auto before = std::prev(range); before->first + before->second == range->first) {
      before->second += range->second;
      free_.erase(range);
    }
  }

 private:
  std::mutex mutex_;
  const int descriptor_ = memfd_create("cann_host", MFD_CLOEXEC);
  size_t end_ = 0;
  std::map<size_t, size_t> free_;  // length by offset; neighbours are joined
};

PhysicalFile& physical_file() {
  static auto* file = new PhysicalFile;
  return *file;
}

/// Lives until its handle is freed and nothing is mapped to it any more.
struct Physical {
  Physical(Device& device, size_t size) : device(device), size(size) {
    auto taken = physical_file().take(size);
    if (!taken) {
      refuse(ACL_ERROR_RT_MEMORY_ALLOCATION, "the host has no %zu bytes for device %d", size, device.id);
    }
    offset = *taken;
  }
  ~Physical() {
    physical_file().give(offset, size);
    device.give_memory(size);
  }

  Device& device;
  const size_t size;
  off_t offset;  // in physical_file()
};

struct PhysicalHandle {
  std::shared_ptr<Physical> memory;
};

constinit HandleTable<PhysicalHandle, 1 << 18> physical_handles{"physical memory"};

struct Reservations {
  std::mutex mutex;
  std::map<uintptr_t, size_t> sizes;
  std::map<uintptr_t, std::pair<size_t, std::shared_ptr<Physical>>> mappings;

  bool has_mapping_in(uintptr_t begin, size_t size) const {
    auto first = mappings.lower_bound(begin);
    return first != mappings.end() && first->first < begin + size;
  }
};

Reservations& reservations() {
  static auto* all = new Reservations;
  return *all;
}

void require_granular(const char* argument, size_t value) {
  if (value == 0 || value % granularity) {
    refuse(ACL_ERROR_INVALID_PARAM, "%s=%zu: expected a positive multiple of %zu", argument, value,
           granularity);
  }
}

void* map_aligned(size_t size, size_t alignment, void* wanted) {
  size_t slack = size + alignment;
  void* range = mmap(wanted, slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) refuse(ACL_ERROR_RT_MEMORY_ALLOCATION, "no %zu bytes of addresses are free", size);
  auto first = reinterpret_cast<uintptr_t>(range);
  uintptr_t begin = (first + alignment - 1) / alignment * alignment;
  if (begin > first) munmap(range, begin - first);
  if (size_t tail = first + slack - (begin + size)) munmap(reinterpret_cast<void*>(begin + size), tail);
  return reinterpret_cast<void*>(begin);
}

void reserve(void** pointer, size_t size, size_t alignment, void* wanted) {
  require_pointer(pointer, "virPtr");
  *pointer = nullptr;
  // Addresses belong to no device, and clients reserve some before they have chosen one.
  if (size == 0 || size > SIZE_MAX / 4)
    refuse(ACL_ERROR_INVALID_PARAM, "size=%zu: expected a number of bytes", size);
  size = (size + granularity - 1) / granularity * granularity;
  if (alignment & (alignment - 1)) {
    refuse(ACL_ERROR_INVALID_PARAM, "alignment=%zu: expected 0 or a power of two", alignment);
  }
  *pointer = map_aligned(size, std::max(alignment, granularity), wanted);
  std::lock_guard lock(reservations().mutex);
  reservations().sizes[reinterpret_cast<uintptr_t>(*pointer)] = size;
}

void release(void* pointer) {
  require_pointer(pointer, "virPtr");
  auto& all = reservations();
  std::lock_guard lock(all.mutex);
  auto found = all.sizes.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == all.sizes.end()) {
    refuse(ACL_ERROR_INVALID_PARAM, "virPtr=%p is not what aclrtReserveMemAddress returned", pointer);
  }
  if (all.has_mapping_in(found->first, found->second)) {
    refuse(ACL_ERROR_INVALID_PARAM,
           "virPtr=%p: memory is mapped in this reservation; call aclrtUnmapMem first", pointer);
  }
  munmap(pointer, found->second);
  all.sizes.erase(found);
}

void malloc_physical(aclrtDrvMemHandle* handle, size_t size, const aclrtPhysicalMemProp* prop,
                     uint64_t flags) {
  require_pointer(handle, "handle");
  *handle = nullptr;
  require_pointer(prop, "prop");
  require_granular("size", size);
  if (flags) refuse(ACL_ERROR_INVALID_PARAM, "flags=%lu: expected 0", flags);
  if (prop->location.type != ACL_MEM_LOCATION_TYPE_DEVICE) {
    refuse(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "prop->location.type=%d: only memory of devices is supported",
           prop->location.type);
  }
  Device& device = device_of(prop->location.id);
  device.take_memory(size);
  std::shared_ptr<Physical> memory;
  try {
    memory = std::make_shared<Physical>(device, size);
  } catch (...) {
    device.give_memory(size);
    throw;
  }
  *handle = physical_handles.create(PhysicalHandle{std::move(memory)});
}

void map(void* pointer, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t flags) {
  require_pointer(pointer, "virPtr");
  require_granular("size", size);
  if (flags) refuse(ACL_ERROR_INVALID_PARAM, "flags=%lu: expected 0", flags);
  auto& memory = physical_handles.get(handle, "handle").memory;
  if (offset % granularity || size > memory->size || offset > memory->size - size) {
    refuse(ACL_ERROR_INVALID_PARAM,
           "offset=%zu and size=%zu do not lie in the %zu bytes of the physical memory", offset, size,
           memory->size);
  }
  auto begin = reinterpret_cast<uintptr_t>(pointer);
  auto& all = reservations();
  std::lock_guard lock(all.mutex);
  auto after = all.sizes.upper_bound(begin);
  bool inside =
      after != all.sizes.begin() && begin + size <= std::prev(after)->first + std::prev(after)->second;
  if (!inside || begin % granularity) {
    refuse(ACL_ERROR_INVALID_PARAM,
           "virPtr=%p and size=%zu do not lie in a reservation, at a multiple of %zu", pointer, size,
           granularity);
  }
  if (memory_map().overlaps(begin, size)) {
    refuse(ACL_ERROR_INVALID_PARAM, "virPtr=%p: memory is mapped there already", pointer);
  }
  if (mmap(pointer, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, physical_file().descriptor(),
           memory->offset + static_cast<off_t>(offset)) == MAP_FAILED) {
    refuse(ACL_ERROR_RT_MEMORY_ALLOCATION, "the host cannot map %zu bytes at %p", size, pointer);
  }
  madvise(pointer, size, MADV_HUGEPAGE);
  all.mappings[begin] = {size, memory};
  memory_map().add({begin, size, Place::device, &memory->device, [] {}});
}

void unmap(void* pointer) {
  require_pointer(pointer, "virPtr");
  auto& all = reservations();
  Device* device;
  {
    std::lock_guard lock(all.mutex);
    auto found = all.mappings.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == all.mappings.end()) {
      refuse(ACL_ERROR_INVALID_PARAM, "virPtr=%p: aclrtMapMem mapped nothing there", pointer);
    }
    device = &found->second.second->device;
  }
  synchronize(*device, {});
  std::lock_guard lock(all.mutex);
  auto mapping = all.mappings.extract(reinterpret_cast<uintptr_t>(pointer));
  if (mapping.empty()) refuse(ACL_ERROR_INVALID_PARAM, "virPtr=%p was unmapped by another thread", pointer);
  memory_map().remove(pointer);
  mmap(pointer, mapping.mapped().first, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
       -1, 0);
}

void set_access(void* pointer, size_t size, const aclrtMemAccessDesc* desc, size_t count) {
  require_device_memory("virPtr", pointer, size);
  require_pointer(desc, "desc");
  for (size_t i = 0; i < count; ++i) {
    if (desc[i].location.type == ACL_MEM_LOCATION_TYPE_DEVICE) device_of(desc[i].location.id);
    if (desc[i].flags != ACL_RT_MEM_ACCESS_FLAGS_READWRITE) {
      refuse(
          ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
          "desc[%zu].flags=%d: only ACL_RT_MEM_ACCESS_FLAGS_READWRITE is supported, and every device has it",
          i, desc[i].flags);
    }
  }
}

}  // namespace
}  // namespace cann_host

using namespace cann_host;

aclError aclrtMemGetAllocationGranularity(aclrtPhysicalMemProp* prop, aclrtMemGranularityOptions,
                                          size_t* size) {
  return entry(__func__, [&] {
    require_pointer(prop, "prop");
    require_pointer(size, "granularity");
    *size = granularity;
  });
}

aclError aclrtReserveMemAddress(void** pointer, size_t size, size_t alignment, void* wanted, uint64_t) {
  return entry(__func__, [&] { reserve(pointer, size, alignment, wanted); });
}

aclError aclrtReleaseMemAddress(void* pointer) {
  return entry(__func__, [&] { release(pointer); });
}

aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t size, const aclrtPhysicalMemProp* prop,
                             uint64_t flags) {
  return entry(__func__, [&] { malloc_physical(handle, size, prop, flags); });
}

aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
  return entry(__func__, [&] { physical_handles.destroy(physical_handles.get(handle, "handle")); });
}

aclError aclrtMapMem(void* pointer, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t flags) {
  return entry(__func__, [&] { map(pointer, size, offset, handle, flags); });
}

aclError aclrtUnmapMem(void* pointer) {
  return entry(__func__, [&] { unmap(pointer); });
}

aclError aclrtMemSetAccess(void* pointer, size_t size, aclrtMemAccessDesc* desc, size_t count) {
  return entry(__func__, [&] { set_access(pointer, size, desc, count); });
}
