#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include "settings.h"
#include "stream.h"

namespace cann_host {

MemoryMap& memory_map() {
  static auto* map = new MemoryMap;
  return *map;
}

void MemoryMap::add(Range range) {
  std::unique_lock lock(mutex_);
  ranges_.emplace(range.begin, std::move(range));
}

std::optional<Range> MemoryMap::remove(const void* begin) {
  std::unique_lock lock(mutex_);
  auto node = ranges_.extract(reinterpret_cast<uintptr_t>(begin));
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped());
}

const Range* MemoryMap::containing(uintptr_t address) const {
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return nullptr;
  const Range& range = std::prev(after)->second;
  return range.contains(address) ? &range : nullptr;
}

std::optional<Range> MemoryMap::find(const void* address) const {
  std::shared_lock lock(mutex_);
  const Range* range = containing(reinterpret_cast<uintptr_t>(address));
  if (!range) return std::nullopt;
  return Range{range->begin, range->size, range->place, range->device, {}};
}

size_t MemoryMap::device_bytes_from(const void* address, size_t wanted) const {
  std::shared_lock lock(mutex_);
  auto start = reinterpret_cast<uintptr_t>(address);
  const Device* device = nullptr;
  size_t bytes = 0;
  while (bytes < wanted) {
    const Range* range = containing(start + bytes);
    if (!range || range->place != Place::device || (device && range->device != device)) break;
    device = range->device;
    bytes = range->begin + range->size - start;
  }
  return std::min(bytes, wanted);
}

bool MemoryMap::overlaps(uintptr_t begin, size_t size) const {
  std::shared_lock lock(mutex_);
  auto after = ranges_.lower_bound(begin);
  return containing(begin) || (after != ranges_.end() && after->first < begin + size);
}

namespace {

class MappedViews {
 public:
  void add(const void* pointer) {
    std::lock_guard lock(mutex_);
    views_.insert(pointer);
  }
  bool remove(const void* pointer) {
    std::lock_guard lock(mutex_);
    return views_.erase(pointer) != 0;
  }
  bool has(const void* pointer) {
    std::lock_guard lock(mutex_);
    return views_.count(pointer) != 0;
  }

 private:
  std::mutex mutex_;
  std::set<const void*> views_;
};

MappedViews& mapped_views() {
  static auto* views = new MappedViews;
  return *views;
}

/// Host memory that was registered is memory of the device, too: here at the same address.
bool is_mapped(const void* address, size_t size) {
  const auto range = memory_map().find(address);
  if (!range || size > range->begin + range->size - reinterpret_cast<uintptr_t>(address)) return false;
  return range->place == Place::registered ||
         (range->place == Place::host && mapped_views().has(reinterpret_cast<const void*>(range->begin)));
}

}  // namespace

void require_device_memory(const char* argument, const void* address, size_t size) {
  require_pointer(address, argument);
  if (!size) return;
  size_t bytes = memory_map().device_bytes_from(address, size);
  if (bytes == size || is_mapped(address, size)) return;
  if (bytes == 0) {
    refuse(ACL_ERROR_INVALID_PARAM, "%s=%p is host memory, or was freed; memory of a device was expected",
           argument, address);
  }
  refuse(ACL_ERROR_INVALID_PARAM, "%s=%p has %zu bytes left in its allocation, %zu were asked for", argument,
         address, bytes, size);
}

void require_host_memory(const char* argument, const void* address, size_t size) {
  require_pointer(address, argument);
  if (!size) return;
  auto range = memory_map().find(address);
  if (!range) return;
  if (range->place == Place::device) {
    refuse(ACL_ERROR_INVALID_PARAM, "%s=%p is memory of device %d; host memory was expected", argument,
           address, range->device->id);
  }
  size_t left = range->begin + range->size - reinterpret_cast<uintptr_t>(address);
  if (range->place == Place::host && left < size) {
    refuse(ACL_ERROR_INVALID_PARAM, "%s=%p has %zu bytes left in its allocation, %zu were asked for",
           argument, address, left, size);
  }
}

bool is_pinned(const void* address) { return memory_map().find(address).has_value(); }

namespace {

constexpr size_t alignment = 512;
constexpr size_t page = 4096;
constexpr size_t huge_page = size_t{2} << 20;

struct Block {
  void* address;
  std::function<void()> release;
};

constexpr size_t rounded_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

/// Of whole huge pages, so that the kernel can back it with them.
Block map_block(size_t size) {
  size = rounded_up(size, huge_page);
  size_t slack = size + huge_page;
  void* range =
      mmap(nullptr, slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return {};
  auto first = reinterpret_cast<uintptr_t>(range);
  uintptr_t begin = rounded_up(first, huge_page);
  if (begin > first) munmap(range, begin - first);
  if (size_t tail = first + slack - (begin + size)) munmap(reinterpret_cast<void*>(begin + size), tail);
  void* address = reinterpret_cast<void*>(begin);
  madvise(address, size, MADV_HUGEPAGE);  // advice only: without it the pages are small ones
  return {address, [=] { munmap(address, size); }};
}

Block allocate_block(size_t size, size_t unit) {
  if (size >= huge_page) return map_block(size);
  void* address = std::aligned_alloc(unit, rounded_up(size, unit));
  return {address, [=] { std::free(address); }};
}

void require_size(size_t size) {
  if (size == 0) refuse(ACL_ERROR_INVALID_PARAM, "size=0: expected a positive number of bytes");
  if (size > SIZE_MAX / 4)
    refuse(ACL_ERROR_RT_MEMORY_ALLOCATION, "size=%zu bytes is more than any machine has", size);
}

aclError malloc_device(const char* function, void** pointer, size_t size) {
  return entry(function, [&] {
    require_pointer(pointer, "devPtr");
    *pointer = nullptr;
    Device& device = current_device();
    require_size(size);
    size_t taken = rounded_up(size, alignment);
    device.take_memory(taken);
    Block block = allocate_block(taken, alignment);
    if (!block.address) {
      device.give_memory(taken);
      refuse(ACL_ERROR_RT_MEMORY_ALLOCATION, "the host has no %zu bytes for device %d", taken, device.id);
    }
    memory_map().add(
        {reinterpret_cast<uintptr_t>(block.address), taken, Place::device, &device, block.release});
    *pointer = block.address;
  });
}

void malloc_host(void** pointer, size_t size) {
  require_pointer(pointer, "hostPtr");
  *pointer = nullptr;
  Device& device = current_device();
  require_size(size);
  Block block = allocate_block(size, page);  // clients map its pages for the device
  if (!block.address) refuse(ACL_ERROR_RT_MEMORY_ALLOCATION, "the host has no %zu bytes", size);
  memory_map().add({reinterpret_cast<uintptr_t>(block.address), size, Place::host, &device, block.release});
  *pointer = block.address;
}

/// Removes what begins at `pointer` and is in `place`, after the work of its device.
Range free_range(const void* pointer, const char* argument, Place place, const char* origin) {
  require_pointer(pointer, argument);
  auto range = memory_map().find(pointer);
  if (!range || range->place != place || range->begin != reinterpret_cast<uintptr_t>(pointer)) {
    refuse(ACL_ERROR_INVALID_PARAM, "%s=%p is not what %s returned, or was freed before", argument, pointer,
           origin);
  }
  if (place == Place::device) {
    synchronize(*range->device, {});
  } else {  // any device may be copying from or to it
    for (uint32_t id = 0; id < device_count(); ++id) synchronize(device_of(id), {});
  }
  auto removed = memory_map().remove(pointer);
  if (!removed) refuse(ACL_ERROR_INVALID_PARAM, "%s=%p was freed by another thread", argument, pointer);
  return std::move(*removed);
}

/// Memory of aclrtMallocHost that a client also maps for the device: it is page-locked already, and its
/// addresses are the device's.
void register_host(void* pointer, uint64_t size) {
  require_pointer(pointer, "ptr");
  require_size(size);
  auto begin = reinterpret_cast<uintptr_t>(pointer);
  const auto range = memory_map().find(pointer);
  if (range && range->place == Place::host && size <= range->begin + range->size - begin) {
    return mapped_views().add(pointer);
  }
  if (memory_map().overlaps(begin, size)) {
    refuse(ACL_ERROR_INVALID_PARAM,
           "ptr=%p: some of its %zu bytes are registered or allocated by the runtime already", pointer,
           static_cast<size_t>(size));
  }
  Device* const device = thread_context ? thread_context->device : nullptr;
  memory_map().add({begin, size, Place::registered, device, [] {}});
}

}  // namespace
}  // namespace cann_host

using namespace cann_host;

aclError aclrtMalloc(void** pointer, size_t size, aclrtMemMallocPolicy) {
  return malloc_device(__func__, pointer, size);
}

aclError aclrtMallocAlign32(void** pointer, size_t size, aclrtMemMallocPolicy) {
  return malloc_device(__func__, pointer, size);
}

aclError aclrtMallocCached(void** pointer, size_t size, aclrtMemMallocPolicy) {
  return malloc_device(__func__, pointer, size);
}

aclError aclrtFree(void* pointer) {
  return entry(__func__, [&] {
    Range range = free_range(pointer, "devPtr", Place::device, "aclrtMalloc");
    range.device->give_memory(range.size);
    range.release();
  });
}

aclError aclrtMallocHost(void** pointer, size_t size) {
  return entry(__func__, [&] { malloc_host(pointer, size); });
}

aclError aclrtMallocHostWithCfg(void** pointer, uint64_t size, aclrtMallocConfig* config) {
  return entry(__func__, [&] {
    if (config && config->numAttrs) require_pointer(config->attrs, "cfg->attrs");
    malloc_host(pointer, size);
  });
}

aclError aclrtFreeHost(void* pointer) {
  return entry(__func__, [&] { free_range(pointer, "hostPtr", Place::host, "aclrtMallocHost").release(); });
}

aclError aclrtHostRegister(void* pointer, uint64_t size, aclrtHostRegisterType type, void** device_pointer) {
  return entry(__func__, [&] {
    require_pointer(device_pointer, "devPtr");
    if (type != ACL_HOST_REGISTER_MAPPED) {
      refuse(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "type=%d: only ACL_HOST_REGISTER_MAPPED is supported", type);
    }
    register_host(pointer, size);
    *device_pointer = pointer;
  });
}

aclError aclrtHostRegisterV2(void* pointer, uint64_t size, uint32_t) {
  return entry(__func__, [&] { register_host(pointer, size); });
}

aclError aclrtHostUnregister(void* pointer) {
  return entry(__func__, [&] {
    if (!mapped_views().remove(pointer)) free_range(pointer, "ptr", Place::registered, "aclrtHostRegister");
  });
}

aclError aclrtPointerGetAttributes(const void* pointer, aclrtPtrAttributes* attributes) {
  return entry(__func__, [&] {
    require_pointer(pointer, "ptr");
    require_pointer(attributes, "attributes");
    std::memset(attributes, 0, sizeof *attributes);
    attributes->location.type = ACL_MEM_LOCATION_TYPE_UNREGISTERED;
    auto range = memory_map().find(pointer);
    if (!range) return;
    bool on_device = range->place == Place::device;
    attributes->location.type = on_device ? ACL_MEM_LOCATION_TYPE_DEVICE : ACL_MEM_LOCATION_TYPE_HOST;
    attributes->location.id = on_device ? static_cast<uint32_t>(range->device->id) : 0;
    attributes->pageSize = range->size >= huge_page ? huge_page : page;
  });
}

aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* total) {
  return entry(__func__, [&] {
    require_pointer(free, "free");
    require_pointer(total, "total");
    *total = settings().device_memory;
    *free = *total - std::min(*total, current_or_first_device().memory_used.load());
  });
}

aclError aclrtGetMemUsageInfo(uint32_t id, aclrtMemUsageInfo* info, size_t capacity, size_t* count) {
  return entry(__func__, [&] {
    require_pointer(info, "memUsageInfo");
    require_pointer(count, "outputNum");
    if (capacity == 0) refuse(ACL_ERROR_INVALID_PARAM, "inputNum=0: expected room for one module at least");
    Device& device = device_of(id);
    std::memset(info, 0, sizeof *info);
    std::snprintf(info->name, sizeof info->name, "APP");
    info->curMemSize = device.memory_used.load();
    info->memPeakSize = device.memory_peak.load();
    *count = 1;
  });
}

int32_t cannHostDeviceMemoryIsHostAccessible(void) { return 1; }
