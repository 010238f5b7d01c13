#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <cstddef>

#include "torch_npu/csrc/memory/block.h"

/// Counting in c10's statistics: each is kept for all blocks, for small and for large ones.
namespace torch_npu::memory {

inline size_t index_of(const Block* block) {
  using c10::CachingAllocator::StatType;
  return static_cast<size_t>(block->is_small ? StatType::SMALL_POOL : StatType::LARGE_POOL);
}

inline void increase(c10::CachingAllocator::StatArray& stat, size_t index, size_t amount) {
  stat[0].increase(amount);
  stat[index].increase(amount);
}

inline void decrease(c10::CachingAllocator::StatArray& stat, size_t index, size_t amount) {
  stat[0].decrease(amount);
  stat[index].decrease(amount);
}

/// Calls `f` with every Stat of `stats`.
template <typename F>
void for_each_stat(c10::CachingDeviceAllocator::DeviceStats& stats, F f) {
  for (auto* array :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    std::for_each(array->begin(), array->end(), f);
  }
  for (auto& [id, array] : stats.reserved_bytes_by_private_pools) {
    std::for_each(array.begin(), array.end(), f);
  }
  f(stats.oversize_allocations);
  f(stats.oversize_segments);
}

}  // namespace torch_npu::memory
