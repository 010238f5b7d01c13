#include <algorithm>
#include <limits>

#include "torch_npu/csrc/memory/device_pool.h"
#include "torch_npu/csrc/memory/sizes.h"
#include "torch_npu/csrc/memory/statistics.h"

// Memory from and to the driver.
namespace torch_npu::memory {

using Action = History::Event::Action;
using Level = History::Level;

/// A segment for `size` bytes as one free block that is in no free list; null if the memory limit or the
/// driver refuses.
Block* DevicePool::allocate_segment(StreamPool& pool, size_t size, bool is_small) {
  const Arena& arena = pool.arena;
  const PluggableAllocator* source = arena.source.get();
  if (arena.reservation || (settings().expandable_segments && !source)) return expand(pool, size, is_small);
  const size_t segment_size = !arena.is_cached        ? size
                              : is_small              ? kSmallSegment
                              : size < kMinOwnSegment ? settings().large_segment_size
                                                      : round_up(size, kSegmentGranule);
  if (reserved_ + segment_size > limit()) return nullptr;
  if (source) driver_.activate(device_);
  void* ptr =
      source ? source->allocate(segment_size, device_, pool.stream) : driver_.allocate(device_, segment_size);
  if (!ptr) return nullptr;

  Block* block = new_segment(pool, ptr, segment_size, is_small);
  add_segment(block, nullptr);
  record(Action::SEGMENT_ALLOC, block, segment_size);
  increase(stats_.segment, index_of(block), 1);
  count_reserved(block, true);
  if (segment_size >= settings().max_split_size) stats_.oversize_segments.increase(1);
  return block;
}

Block* DevicePool::new_segment(StreamPool& pool, void* ptr, size_t size, bool is_small) {
  Block* block = new_block();
  block->ptr = ptr;
  block->size = size;
  block->is_small = is_small;
  block->device = device_;
  block->stream = pool.stream;
  block->pool = &pool;
  return block;
}

DevicePool::Segment& DevicePool::add_segment(Block* head, std::unique_ptr<ExpandableSegment> expandable) {
  ++head->pool->arena.segment_count;
  Segment segment{head, head->size, std::move(expandable), context_};
  return segments_.emplace(head->ptr, std::move(segment)).first->second;
}

void DevicePool::remove_segment(Block* head) {
  --head->pool->arena.segment_count;
  segments_.erase(head->ptr);
}

/// Gives up cached memory in steps, from the least to the most costly, until a segment can be had. A capture
/// forbids to give up any, for work that the driver would have to wait for may be on the captured streams.
Block* DevicePool::allocate_segment_or_reclaim(StreamPool& pool, size_t size, bool is_small) {
  const bool may_release = captures_ == 0;
  if (may_release && settings().garbage_collection_threshold > 0) collect_garbage(size);
  if (Block* block = allocate_segment(pool, size, is_small)) return block;
  if (!may_release) return nullptr;
  if (release_oversize(pool, size)) {
    if (Block* block = allocate_segment(pool, size, is_small)) return block;
  }
  ++stats_.num_alloc_retries;
  release_cached();
  return allocate_segment(pool, size, is_small);
}

// ---- giving back ----

/// Brings the reserved memory below the garbage collection threshold by releasing segments that have been
/// idle for longer than the average.
void DevicePool::collect_garbage(size_t size) {
  const auto threshold = static_cast<size_t>(settings().garbage_collection_threshold * limit());
  if (reserved_ + size <= threshold) return;
  std::vector<Block*> idle;
  for (const Arena* arena : arenas()) {
    if (!arena->is_releasable()) continue;
    for (const auto& [stream, pool] : arena->pools) {
      std::copy_if(pool->large.begin(), pool->large.end(), std::back_inserter(idle),
                   [](const Block* block) { return !block->is_split() && !block->expandable; });
    }
  }
  uint64_t mean = 0;  // of the time stamps of all idle segments
  for (const Block* block : idle) mean += block->idle_since / idle.size();
  std::sort(idle.begin(), idle.end(),
            [](const Block* a, const Block* b) { return a->idle_since < b->idle_since; });
  for (Block* block : idle) {
    if (reserved_ + size <= threshold || block->idle_since > mean) break;
    remove_free(block);
    release_segment(block);
  }
}

/// With a limit on splitting, releases oversize segments of this stream until `size` bytes were given back:
/// one that suffices, else the largest ones. Returns whether they reached `size`.
bool DevicePool::release_oversize(StreamPool& pool, size_t size) {
  const size_t max_split = settings().max_split_size;
  if (max_split == std::numeric_limits<size_t>::max() || !pool.arena.is_releasable()) return false;
  const auto found = pool.large.lower_bound(std::max(size, max_split));
  if (found != pool.large.end()) {
    Block* block = *found;
    if (block->is_split() || block->expandable) return false;
    remove_free(block);
    release_segment(block);
    return true;
  }
  size_t released = 0;
  while (released < size && !pool.large.empty()) {
    Block* largest = *pool.large.rbegin();
    if (largest->size < max_split || largest->is_split() || largest->expandable) break;
    released += largest->size;
    remove_free(largest);
    release_segment(largest);
  }
  return released >= size;
}

void DevicePool::empty_cache(c10::MempoolId_t id) {
  History::Context context = history_.gather(Level::ALL);
  const auto lock = lock_settled();
  context_ = std::move(context);
  if (captures_ > 0) return;
  if (id == kDefaultPool) {
    release_cached();
  } else if (const auto found = private_arenas_.find(id); found != private_arenas_.end()) {
    reclaim_all();
    release_cached(found->second);
    forget_unused_arenas();
  }
}

void DevicePool::release_cached() {
  reclaim_all();
  for (Arena* arena : arenas()) release_cached(*arena);
  forget_unused_arenas();
}

void DevicePool::release_cached(Arena& arena) {
  if (!arena.is_releasable()) return;
  std::vector<Block*> unused;
  auto collect = [&](Block* block) {
    if (block->expandable || !block->is_split()) unused.push_back(block);
  };
  for (const auto& [stream, pool] : arena.pools) {
    pool->small.for_each(collect);
    std::for_each(pool->large.begin(), pool->large.end(), collect);
  }
  // Unmapping a page does not wait for its last use, as freeing does; and a page of a fully mapped pool may
  // go to another stream at once.
  if (std::any_of(unused.begin(), unused.end(), [](const Block* block) { return block->expandable; })) {
    driver_.synchronize(device_);
  }
  for (Block* block : unused) {
    if (block->expandable) {
      unmap(block);
    } else {
      remove_free(block);
      release_segment(block);
    }
  }
}

void DevicePool::release_segment(Block* block) {
  if (const PluggableAllocator* source = block->pool->arena.source.get()) {
    driver_.activate(device_);
    source->release(block->ptr, block->size, device_, block->stream);
  } else {
    driver_.release(device_, block->ptr);
  }
  record(Action::SEGMENT_FREE, block, block->size);
  remove_segment(block);
  decrease(stats_.segment, index_of(block), 1);
  count_reserved(block, false);
  if (block->size >= settings().max_split_size) stats_.oversize_segments.decrease(1);
  delete_block(block);
}

// ---- expandable segments ----

/// Puts memory behind addresses next to free memory, if possible. Returns a free block of `size` bytes at
/// least that is in no free list, or null for lack of memory.
Block* DevicePool::expand(StreamPool& pool, size_t size, bool is_small) {
  Arena& arena = pool.arena;
  Block* block = find_unmapped(pool, size, is_small);
  if (!block && arena.reservation) return nullptr;
  if (!block) block = reserve_addresses(pool, is_small);
  const bool from_top = grows_from_top(pool, is_small);
  const size_t chunk = block->expandable->chunk_size();
  const size_t mapped_size = round_up(size - (from_top ? 0 : free_before(block, pool, is_small)), chunk);
  if (mapped_size > block->size) return nullptr;
  const size_t offset = from_top ? block->size - mapped_size : 0;
  if (!arena.is_fully_mapped) {
    if (reserved_ + mapped_size > limit()) return nullptr;
    if (!block->expandable->map(static_cast<char*>(block->ptr) + offset, mapped_size)) return nullptr;
  }

  FreeSet& unmapped = arena.unmapped_for(pool);
  unmapped.erase(block);
  if (offset > 0) {
    Block* low = std::exchange(block, cut(block, offset));
    unmapped.insert(low);
  } else if (mapped_size < block->size) {
    unmapped.insert(cut(block, mapped_size));
  }
  block->pool = &pool;
  block->stream = pool.stream;
  block->is_small = is_small;
  const int neighbours = block->adjoins(block->prev) + block->adjoins(block->next);
  std::vector<Block*> free_neighbours;
  for (Block* neighbour : {block->prev, block->next}) {
    if (!block->adjoins(neighbour) || !neighbour->is_free()) continue;
    count_inactive(neighbour, false);
    remove_free(neighbour);
    free_neighbours.push_back(neighbour);
  }
  block->mapped = true;
  if (!arena.is_fully_mapped) {
    count_reserved(block, true);
    record(Action::SEGMENT_MAP, block, block->size);
  }
  // A segment is a stretch of addresses with memory: this one is new, extends one or closes the gap between
  // two.
  if (neighbours == 0) increase(stats_.segment, index_of(block), 1);
  if (neighbours == 2) decrease(stats_.segment, index_of(block), 1);
  for (Block* neighbour : free_neighbours) {
    block = neighbour->ptr < block->ptr ? join(neighbour, block) : join(block, neighbour);
  }
  count_inactive(block, true);
  return block;
}

/// Bytes of the free block that ends where `gap` begins and can be joined with it.
size_t DevicePool::free_before(const Block* gap, const StreamPool& pool, bool is_small) {
  const Block* before = gap->prev;
  const bool fits = before && before->is_free() && before->pool == &pool && before->is_small == is_small;
  return fits ? before->size : 0;
}

/// Small blocks, which live long, begin at the end of a reserved range, so that they do not part the rest of
/// it.
bool DevicePool::grows_from_top(const StreamPool& pool, bool is_small) {
  return is_small && pool.arena.reservation;
}

/// The lowest (where growth is from the top the highest) addresses without memory that, with the free block
/// before them, suffice for `size` bytes.
Block* DevicePool::find_unmapped(StreamPool& pool, size_t size, bool is_small) {
  const bool from_top = grows_from_top(pool, is_small);
  Block* best = nullptr;
  for (Block* block : pool.arena.unmapped_for(pool)) {
    if (block->is_small != is_small && !pool.arena.reservation) continue;
    const size_t before = from_top ? 0 : free_before(block, pool, is_small);
    if (before + block->size < size) continue;
    if (!best || (block->ptr < best->ptr) != from_top) best = block;
  }
  return best;
}

/// A new expandable segment as one block without memory.
Block* DevicePool::reserve_addresses(StreamPool& pool, bool is_small) {
  const size_t chunk = is_small ? kSmallSegment : round_up(settings().large_segment_size, kSegmentGranule);
  // More addresses than memory, so that a segment with holes can still take all memory at its end.
  const size_t size = round_up(total_memory_ + total_memory_ / 8, chunk);
  auto segment = std::make_unique<ExpandableSegment>(driver_, device_, size, chunk);
  Block* block = new_segment(pool, segment->base(), size, is_small);
  block->mapped = false;
  block->expandable = segment.get();
  pool.unmapped.insert(block);
  add_segment(block, std::move(segment));
  return block;
}

/// Gives the whole chunks within a free block back to the driver, and the addresses too if nothing is left of
/// the segment.
void DevicePool::unmap(Block* block) {
  ExpandableSegment& segment = *block->expandable;
  const auto offset =
      static_cast<size_t>(static_cast<char*>(block->ptr) - static_cast<char*>(segment.base()));
  const size_t begin = round_up(offset, segment.chunk_size());
  const size_t end = (offset + block->size) / segment.chunk_size() * segment.chunk_size();
  if (begin >= end) return;

  count_inactive(block, false);
  remove_free(block);
  Block* gap = begin > offset ? cut(block, begin - offset) : block;
  Block* rest = gap->size > end - begin ? cut(gap, end - begin) : nullptr;
  const int neighbours = gap->adjoins(gap->prev) + gap->adjoins(gap->next);
  gap->mapped = false;
  Arena& arena = gap->pool->arena;
  if (!arena.is_fully_mapped) {
    segment.unmap(gap->ptr, gap->size);
    count_reserved(gap, false);
    record(Action::SEGMENT_UNMAP, gap, gap->size);
  }
  if (neighbours == 0) decrease(stats_.segment, index_of(gap), 1);
  if (neighbours == 2) increase(stats_.segment, index_of(gap), 1);
  for (Block* remaining : {gap != block ? block : nullptr, rest}) {
    if (!remaining) continue;
    insert_free(remaining);
    count_inactive(remaining, true);
  }

  FreeSet& unmapped = arena.unmapped_for(*gap->pool);
  if (gap->next && !gap->next->mapped) {
    unmapped.erase(gap->next);
    join(gap, gap->next);
  }
  if (gap->prev && !gap->prev->mapped) {
    unmapped.erase(gap->prev);
    gap = join(gap->prev, gap);
  }
  if (gap->prev || gap->next || arena.reservation) {
    unmapped.insert(gap);
  } else {
    remove_segment(gap);
    delete_block(gap);
  }
}

}  // namespace torch_npu::memory
