#include <c10/util/Exception.h>

#include <algorithm>

#include "torch_npu/csrc/memory/device_pool.h"
#include "torch_npu/csrc/memory/sizes.h"

// Pools whose addresses are reserved at once (torch_npu.VMMemoryPool). Such an arena has one expandable
// segment whose pages go to the streams, and to their small and large blocks, as they need them.
namespace torch_npu::memory {

using c10::CachingAllocator::format_size;

namespace {

constexpr size_t kPage = kSegmentGranule;

}  // namespace

Arena& DevicePool::reserved_arena(c10::MempoolId_t id) {
  Arena& arena = private_arena(id, "VMMemoryPool");
  TORCH_INTERNAL_ASSERT(arena.reservation, "memory pool (", id.first, ", ", id.second,
                        ") has no reservation");
  return arena;
}

void DevicePool::open_reserved_pool(c10::MempoolId_t id, size_t size, bool map_all) {
  retain_pool(id);
  auto lock = lock_settled();
  Arena& arena = private_arena(id, "VMMemoryPool");
  try {
    size = round_up(size, kPage);
    auto segment = std::make_unique<ExpandableSegment>(driver_, device_, size, kPage);
    if (map_all) {
      auto map = [&] { return reserved_ + size <= limit() && segment->map(segment->base(), size); };
      bool mapped = map();
      if (!mapped && captures_ == 0) {
        release_cached();
        mapped = map();
      }
      if (!mapped) raise_out_of_memory(lock, size, default_arena_);
    }
    arena.reservation = segment.get();
    arena.is_fully_mapped = map_all;
    Block* block = new_segment(arena.pool_of(nullptr), segment->base(), size, /*is_small=*/false);
    block->mapped = false;
    block->expandable = segment.get();
    arena.unmapped.insert(block);
    add_segment(block, std::move(segment));
    if (map_all) count_reserved(block, true);
  } catch (...) {
    if (lock.owns_lock()) lock.unlock();
    release_pool(id);
    throw;
  }
}

void DevicePool::set_default_pool(c10::MempoolId_t id, bool is_default) {
  std::lock_guard lock(mutex_);
  Arena& arena = reserved_arena(id);
  std::erase(defaults_, &arena);
  if (is_default) defaults_.push_back(&arena);
}

void DevicePool::close_reserved_pool(c10::MempoolId_t id) {
  auto lock = lock_settled();
  Arena& arena = reserved_arena(id);
  TORCH_CHECK(captures_ == 0, "VMMemoryPool.close: a graph is being captured; close the pool afterwards");
  reclaim_all();
  const PoolUsage usage = usage_of(arena);
  if (usage.live > 0) {
    std::vector<Holding> live = holdings(&arena);
    lock.unlock();
    TORCH_CHECK(false, "VMMemoryPool.close: ", usage.live, " tensors live in the pool and have ",
                format_size(usage.in_use), ". Free them first; the pool stays as it is.",
                largest_holders(std::move(live)));
  }
  TORCH_CHECK(arena.use_count == 1, "VMMemoryPool.close: ", arena.use_count - 1,
              " graphs or use_mem_pool blocks use the pool; end them first");
  std::erase(defaults_, &arena);
  release_cached(arena);
  Block* whole = segments_.at(arena.reservation->base()).head;
  TORCH_INTERNAL_ASSERT(!whole->mapped && !whole->next);
  if (arena.is_fully_mapped) count_reserved(whole, false);
  remove_segment(whole);
  delete_block(whole);
  private_arenas_.erase(id);
}

PoolUsage DevicePool::usage_of(const Arena& arena) {
  PoolUsage usage;
  const auto& mapped = stats_.reserved_bytes_by_private_pools[arena.id][0];
  usage.size = arena.reservation->size();
  usage.in_use = static_cast<size_t>(arena.allocated_bytes.current);
  usage.peak_in_use = static_cast<size_t>(arena.allocated_bytes.peak);
  usage.mapped = static_cast<size_t>(mapped.current);
  usage.peak_mapped = static_cast<size_t>(mapped.peak);
  usage.allocations = arena.allocations;
  usage.hits = arena.hits;
  for (const Block* block = segments_.at(arena.reservation->base()).head; block; block = block->next) {
    if (block->mapped && !block->is_free()) ++usage.live;
    const bool is_free_memory = block->mapped ? block->is_free() : arena.is_fully_mapped;
    if (!is_free_memory) continue;
    usage.free_mapped += block->size;
    usage.largest_free = std::max(usage.largest_free, block->size);
  }
  return usage;
}

PoolUsage DevicePool::reserved_pool_usage(c10::MempoolId_t id) {
  const auto lock = lock_settled();
  return usage_of(reserved_arena(id));
}

const void* DevicePool::reserved_pool_base(c10::MempoolId_t id) {
  std::lock_guard lock(mutex_);
  return reserved_arena(id).reservation->base();
}

}  // namespace torch_npu::memory
