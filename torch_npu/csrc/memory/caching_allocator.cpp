#include "torch_npu/csrc/memory/caching_allocator.h"

#include <c10/util/Exception.h>

#include "torch_npu/csrc/device/trace.h"
#include "torch_npu/csrc/memory/host_alias.h"

namespace torch_npu::memory {

using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::SegmentInfo;

namespace {

c10::Device npu(c10::DeviceIndex index) { return {c10::DeviceType::PrivateUse1, index}; }

}  // namespace

// ---- pools ----

DevicePool& NPUCachingAllocator::device_pool(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < kMaxDevices, "npu memory: no device has index ",
              static_cast<int>(device));
  DevicePool* pool = pools_[device].load(std::memory_order_acquire);
  return pool ? *pool : make_pool(device);
}

DevicePool& NPUCachingAllocator::make_pool(c10::DeviceIndex device) {
  const c10::DeviceIndex count = driver_.device_count();
  TORCH_CHECK(device < count, "npu memory: device index ", static_cast<int>(device),
              " is out of range, this process sees ", static_cast<int>(count), " npu device(s)");
  std::lock_guard lock(mutex_);
  DevicePool* pool = pools_[device].load(std::memory_order_acquire);
  if (!pool) {
    // Never deleted: tensors may be freed while the process exits.
    pool = new DevicePool(device, driver_);
    if (source_) pool->replace_source(source_);
    pools_[device].store(pool, std::memory_order_release);
  }
  return *pool;
}

void NPUCachingAllocator::replace_source(std::shared_ptr<const PluggableAllocator> source) {
  for (DevicePool* pool : existing_pools()) pool->replace_source(source);
  std::lock_guard lock(mutex_);
  source_ = std::move(source);
}

std::shared_ptr<const PluggableAllocator> NPUCachingAllocator::source() {
  std::lock_guard lock(mutex_);
  return source_;
}

std::vector<DevicePool*> NPUCachingAllocator::existing_pools() {
  std::vector<DevicePool*> result;
  for (const auto& pool : pools_) {
    if (DevicePool* existing = pool.load(std::memory_order_acquire)) result.push_back(existing);
  }
  return result;
}

bool NPUCachingAllocator::initialized() { return !existing_pools().empty(); }

// ---- allocation ----

c10::DataPtr NPUCachingAllocator::allocate(size_t nbytes) {
  const c10::DeviceIndex device = driver_.current_device();
  if (nbytes == 0) return {nullptr, npu(device)};
  Block* block = allocate_block(nbytes, device, driver_.current_stream(device));
  return {block->ptr, block, &delete_block, npu(device)};
}

Block* NPUCachingAllocator::allocate_block(size_t nbytes, c10::DeviceIndex device, StreamHandle stream) {
  Block* block = device_pool(device).allocate(nbytes, stream);
  device::trace(device::Trace::kMemoryAllocation, block->ptr);
  return block;
}

void NPUCachingAllocator::free_block(Block* block) {
  device::trace(device::Trace::kMemoryDeallocation, block->ptr);
  device_pool(block->device).free(block);
}

void delete_block(void* context) {
  auto* block = static_cast<Block*>(context);
  if (block->alias.load(std::memory_order_relaxed) && hand_over_to_alias(*block)) return;
  caching_allocator().free_block(block);
}

void NPUCachingAllocator::copy_data(void* dest, const void* src, std::size_t count) const {
  driver_.copy(dest, src, count);
}

void* NPUCachingAllocator::raw_alloc(size_t nbytes, c10::DeviceIndex device, StreamHandle stream) {
  if (nbytes == 0) return nullptr;
  Block* block = allocate_block(nbytes, device, stream);
  std::lock_guard lock(mutex_);
  raw_blocks_.emplace(block->ptr, block);
  return block->ptr;
}

void NPUCachingAllocator::raw_free(void* ptr) {
  if (!ptr) return;
  Block* block = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto found = raw_blocks_.find(ptr);
    TORCH_CHECK(found != raw_blocks_.end(), "npu memory: ", ptr,
                " was not allocated by caching_allocator_alloc, or is freed already");
    block = found->second;
    raw_blocks_.erase(found);
  }
  free_block(block);
}

namespace {

/// The block behind `data`; null for memory of other owners (from_blob, an IPC handle) and empty tensors,
/// which have nothing to delay.
Block* block_used_on(const char* function, const c10::DataPtr& data, c10::Stream stream) {
  Block* block = block_of(data);
  TORCH_CHECK(!block || stream.device() == data.device(), function, ": the memory is on ", data.device(),
              ", but the stream on ", stream.device());
  return block;
}

}  // namespace

void NPUCachingAllocator::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  if (Block* block = block_used_on("record_stream", data, stream))
    device_pool(block->device).record_stream(block, driver_.stream_handle(stream));
}

void NPUCachingAllocator::erase_stream(const c10::DataPtr& data, c10::Stream stream) {
  if (Block* block = block_used_on("erase_stream", data, stream))
    device_pool(block->device).erase_stream(block, driver_.stream_handle(stream));
}

void NPUCachingAllocator::emptyCache(c10::MempoolId_t mempool_id) {
  for (DevicePool* pool : existing_pools()) pool->empty_cache(mempool_id);
}

// ---- private pools ----

void NPUCachingAllocator::retain_pool(c10::DeviceIndex device, c10::MempoolId_t id) {
  device_pool(device).retain_pool(id);
}

void NPUCachingAllocator::begin_allocate_to_pool(c10::DeviceIndex device, c10::MempoolId_t id,
                                                 PoolFilter filter) {
  device_pool(device).begin_allocate_to_pool(id, std::move(filter));
}

void NPUCachingAllocator::end_allocate_to_pool(c10::DeviceIndex device, c10::MempoolId_t id) {
  device_pool(device).end_allocate_to_pool(id);
}

void NPUCachingAllocator::release_pool(c10::DeviceIndex device, c10::MempoolId_t id) {
  device_pool(device).release_pool(id);
}

int NPUCachingAllocator::pool_use_count(c10::DeviceIndex device, c10::MempoolId_t id) {
  return device_pool(device).pool_use_count(id);
}

c10::CachingAllocator::Stat NPUCachingAllocator::pool_bytes(c10::DeviceIndex device, c10::MempoolId_t id,
                                                            bool restart_peak) {
  return device_pool(device).pool_bytes(id, restart_peak);
}

bool NPUCachingAllocator::pin_unless_in(c10::MempoolId_t id, Block* block) {
  return device_pool(block->device).pin_unless_in(id, block);
}
void NPUCachingAllocator::unpin(Block* block) { device_pool(block->device).unpin(block); }

void NPUCachingAllocator::begin_capture(c10::DeviceIndex device) { device_pool(device).begin_capture(); }
void NPUCachingAllocator::end_capture(c10::DeviceIndex device) { device_pool(device).end_capture(); }

// ---- questions ----

DeviceStats NPUCachingAllocator::getDeviceStats(c10::DeviceIndex device) {
  return device_pool(device).stats();
}
void NPUCachingAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  device_pool(device).reset_accumulated_stats();
}
void NPUCachingAllocator::resetPeakStats(c10::DeviceIndex device) { device_pool(device).reset_peak_stats(); }

std::pair<size_t, size_t> NPUCachingAllocator::getMemoryInfo(c10::DeviceIndex device) {
  return driver_.memory_info(device);
}

bool NPUCachingAllocator::owns(const void* ptr) {
  for (DevicePool* pool : existing_pools()) {
    if (pool->owns(ptr)) return true;
  }
  return false;
}

void NPUCachingAllocator::set_memory_fraction(double fraction, c10::DeviceIndex device) {
  device_pool(device).set_memory_fraction(fraction);
}

double NPUCachingAllocator::memory_fraction(c10::DeviceIndex device) {
  return device_pool(device).memory_fraction();
}

std::vector<SegmentInfo> NPUCachingAllocator::snapshot(c10::MempoolId_t id) {
  std::vector<SegmentInfo> result;
  for (DevicePool* pool : existing_pools()) {
    std::vector<SegmentInfo> segments = pool->snapshot(id);
    result.insert(result.end(), std::make_move_iterator(segments.begin()),
                  std::make_move_iterator(segments.end()));
  }
  return result;
}

void NPUCachingAllocator::record_history(const History::Options& options) {
  for (c10::DeviceIndex device = 0; device < driver_.device_count(); ++device)
    device_pool(device).record_history(options);
}

std::vector<std::vector<History::Event>> NPUCachingAllocator::history() {
  std::vector<std::vector<History::Event>> result;
  for (c10::DeviceIndex device = 0; device < driver_.device_count(); ++device) {
    result.push_back(device_pool(device).history());
  }
  return result;
}

NPUCachingAllocator& caching_allocator() {
  // Never deleted: tensors may be freed while the process exits.
  static auto& allocator = *new NPUCachingAllocator(cann_driver());
  return allocator;
}

namespace {

const bool registered = [] {
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &caching_allocator());
  return true;
}();

}  // namespace

}  // namespace torch_npu::memory
