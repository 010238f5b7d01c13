#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

#include "torch_npu/csrc/memory/device_pool.h"
#include "torch_npu/csrc/memory/statistics.h"

// Statistics, history and snapshots.
namespace torch_npu::memory {

using c10::CachingAllocator::Stat;
using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::SegmentInfo;
using Action = History::Event::Action;

// ---- history and profiler ----

void DevicePool::record_history(const History::Options& options) {
  std::lock_guard lock(mutex_);
  history_.configure(options);
  context_.reset();
}

std::vector<History::Event> DevicePool::history() {
  std::lock_guard lock(mutex_);
  return history_.events();
}

/// Frees have the call stack of the allocation unless they are recorded with their own.
void DevicePool::record(Action action, const Block* block, size_t size) {
  if (!history_.enabled()) [[likely]]
    return;
  history_.record(action, device_, block->ptr, size, block->stream, block->pool->arena.id,
                  context_ ? context_ : block->context);
}

void DevicePool::report_to_profiler(const Block* block, int64_t change) const {
  c10::reportMemoryUsageToProfiler(block->ptr, change, stats_.allocated_bytes[0].current, reserved_,
                                   c10::Device(c10::DeviceType::PrivateUse1, device_));
}

// ---- questions ----

DeviceStats DevicePool::stats() {
  const auto lock = lock_settled();
  DeviceStats stats = stats_;
  const size_t max_split = settings().max_split_size;
  stats.max_split_size =
      max_split == std::numeric_limits<size_t>::max() ? -1 : static_cast<int64_t>(max_split);
  return stats;
}

void DevicePool::reset_accumulated_stats() {
  const auto lock = lock_settled();
  for_each_stat(stats_, [](Stat& stat) { stat.reset_accumulated(); });
  stats_.num_alloc_retries = stats_.num_ooms = stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = stats_.num_device_free = 0;
}

void DevicePool::reset_peak_stats() {
  const auto lock = lock_settled();
  for_each_stat(stats_, [](Stat& stat) { stat.reset_peak(); });
  for (Arena* arena : arenas()) arena->allocated_bytes.reset_peak();
  auto& of_pools = stats_.reserved_bytes_by_private_pools;
  for (auto pool = of_pools.begin(); pool != of_pools.end();) {
    pool = private_arenas_.count(pool->first) ? std::next(pool) : of_pools.erase(pool);
  }
}

void DevicePool::set_memory_fraction(double fraction) {
  TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1, "the memory fraction must be from 0 to 1, but is ",
                    fraction);
  std::lock_guard lock(mutex_);
  fraction_ = fraction;
}

double DevicePool::memory_fraction() {
  std::lock_guard lock(mutex_);
  return fraction_;
}

bool DevicePool::owns(const void* ptr) {
  std::lock_guard lock(mutex_);
  auto segment = segments_.upper_bound(ptr);
  if (segment == segments_.begin()) return false;
  --segment;
  return ptr < static_cast<const char*>(segment->first) + segment->second.size;
}

namespace {

SegmentInfo describe_segment(const Block* first) {
  SegmentInfo segment;
  segment.device = first->device;
  segment.address = reinterpret_cast<size_t>(first->ptr);
  segment.stream = first->stream;
  segment.is_large = !first->is_small;
  segment.owner_private_pool_id = first->pool->arena.id;
  segment.is_expandable = first->expandable != nullptr;
  return segment;
}

void add_block(SegmentInfo& segment, const Block* block) {
  BlockInfo& info = segment.blocks.emplace_back();
  info.size = block->size;
  info.requested_size = block->requested_size;
  info.allocated = block->allocated;
  info.active = !block->is_free();
  info.context_when_allocated = block->context;
  segment.total_size += block->size;
  segment.requested_size += block->requested_size;
  if (info.allocated) segment.allocated_size += block->size;
  if (info.active) segment.active_size += block->size;
}

}  // namespace

std::vector<SegmentInfo> DevicePool::snapshot(c10::MempoolId_t id) {
  const auto lock = lock_settled();
  history_.record(Action::SNAPSHOT, device_, nullptr, 0, nullptr, id, nullptr);
  std::vector<SegmentInfo> result;
  for (const auto& [address, segment] : segments_) {
    if (id != kDefaultPool && segment.head->pool->arena.id != id) continue;
    for (const Block* block = segment.head; block; block = block->next) {
      if (!block->mapped) continue;
      // A stretch of an expandable segment that has memory is reported as a segment.
      if (!block->adjoins(block->prev)) {
        result.push_back(describe_segment(block));
        result.back().context_when_allocated = segment.context;
      }
      add_block(result.back(), block);
    }
  }
  return result;
}

}  // namespace torch_npu::memory
