#include "torch_npu/csrc/memory/device_pool.h"

#include <c10/util/Exception.h>
#include <c10/util/llvmMathExtras.h>

#include <algorithm>

namespace torch_npu::memory {

using c10::CachingAllocator::format_size;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::SegmentInfo;
using Action = History::Event::Action;
using Level = History::Level;

namespace {

constexpr size_t kMinBlock = 512;                    // all sizes are multiples of it
constexpr size_t kSmallMax = size_t{1} << 20;        // largest size that comes from a small segment
constexpr size_t kSmallSegment = size_t{2} << 20;    // segments that small blocks are cut from
constexpr size_t kMinOwnSegment = size_t{10} << 20;  // from here on each allocation gets its own segment
constexpr size_t kSegmentGranule = size_t{2} << 20;  // sizes of own segments are multiples of it
constexpr size_t kExabyte = size_t{1} << 60;

size_t round_up(size_t size, size_t multiple) { return (size + multiple - 1) / multiple * multiple; }

/// The next of `divisions` equal steps between two powers of 2: 1200 with 4 divisions gives 1280.
size_t round_up_to_division(size_t size, size_t divisions) {
  const size_t step = c10::llvm::PowerOf2Floor(size) / divisions;
  return round_up(size, std::max<size_t>(step, 1));
}

size_t index_of(const Block* block) {
  return static_cast<size_t>(block->is_small ? StatType::SMALL_POOL : StatType::LARGE_POOL);
}

void increase(StatArray& stat, size_t pool, size_t amount) {
  stat[0].increase(amount);
  stat[pool].increase(amount);
}

void decrease(StatArray& stat, size_t pool, size_t amount) {
  stat[0].decrease(amount);
  stat[pool].decrease(amount);
}

/// Calls `f` with every Stat of `stats`.
template <typename F>
void for_each_stat(DeviceStats& stats, F f) {
  for (StatArray* array :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    std::for_each(array->begin(), array->end(), f);
  }
  f(stats.oversize_allocations);
  f(stats.oversize_segments);
}

}  // namespace

DevicePool::DevicePool(c10::DeviceIndex device, Driver& driver)
    : device_(device),
      driver_(driver),
      tail_padding_(driver.tail_padding()),
      fraction_(settings().memory_fraction),
      total_memory_(driver.memory_info(device).second) {}

DevicePool::~DevicePool() { empty_cache(); }

// ---- sizes and pools ----

size_t DevicePool::round_size(size_t nbytes) const {
  const size_t size = nbytes + tail_padding_;
  const size_t divisions = settings().divisions_for(size);
  if (divisions > 1 && size > kMinBlock * divisions) return round_up_to_division(size, divisions);
  return round_up(std::max<size_t>(size, 1), kMinBlock);
}

StreamPool& DevicePool::stream_pool(StreamHandle stream) {
  if (last_pool_ && last_pool_->stream == stream) return *last_pool_;
  std::unique_ptr<StreamPool>& pool = pools_[stream];
  if (!pool) {
    pool = std::make_unique<StreamPool>();
    pool->stream = stream;
  }
  return *(last_pool_ = pool.get());
}

size_t DevicePool::limit() { return static_cast<size_t>(fraction_ * static_cast<double>(total_memory_)); }

// ---- allocation ----

Block* DevicePool::allocate(size_t nbytes, StreamHandle stream) {
  History::Context context = history_.gather(Level::STATE);
  std::unique_lock lock(mutex_);
  context_ = std::move(context);
  if (nbytes >= kExabyte) raise_out_of_memory(lock, nbytes);
  if (!pending_.empty()) reclaim_completed();
  ++allocation_count_;

  const size_t size = round_size(nbytes);
  const bool is_small = size <= kSmallMax;
  StreamPool& pool = stream_pool(stream);
  Block* block = take_free_block(pool, size, is_small);
  if (!block) [[unlikely]] {
    block = allocate_segment_or_reclaim(pool, size, is_small);
    if (!block) raise_out_of_memory(lock, nbytes);
  }
  split(block, size);

  block->allocated = true;
  block->requested_size = nbytes;
  const size_t index = index_of(block);
  increase(stats_.allocation, index, 1);
  increase(stats_.allocated_bytes, index, block->size);
  increase(stats_.active, index, 1);
  increase(stats_.active_bytes, index, block->size);
  increase(stats_.requested_bytes, index, nbytes);
  if (block->size >= settings().max_split_size) stats_.oversize_allocations.increase(1);
  if (history_.enabled()) [[unlikely]] {
    block->context = context_;
    record(Action::ALLOC, block, nbytes);
  }
  report_to_profiler(block, static_cast<int64_t>(block->size));
  return block;
}

/// Removes the best fit from the free blocks; null if there is none that may serve the request.
Block* DevicePool::take_free_block(StreamPool& pool, size_t size, bool is_small) {
  if (is_small) {
    Block* block = pool.small.best_fit(size);
    if (block) pool.small.remove(block);
    return block;
  }
  const auto found = pool.large.lower_bound(size);
  if (found == pool.large.end()) return nullptr;
  Block* block = *found;
  const size_t max_split = settings().max_split_size;
  if (size < max_split && block->size >= max_split)
    return nullptr;  // keep oversize blocks for oversize requests
  if (size >= max_split && block->size >= size + settings().max_non_split_rounding) return nullptr;
  block->free_node = pool.large.extract(found);
  return block;
}

/// Cuts `block` to `size` if the rest is worth keeping; the rest becomes a free block behind it.
void DevicePool::split(Block* block, size_t size) {
  const size_t index = index_of(block);
  const bool was_split = block->is_split();
  const size_t rest_size = block->size - size;
  const bool worth_it =
      block->is_small ? rest_size >= kMinBlock : size < settings().max_split_size && rest_size > kSmallMax;
  if (!worth_it) {
    if (was_split) {
      decrease(stats_.inactive_split, index, 1);
      decrease(stats_.inactive_split_bytes, index, block->size);
    }
    return;
  }
  insert_free(cut(block, size));

  if (was_split) {
    decrease(stats_.inactive_split_bytes, index, size);
  } else {
    increase(stats_.inactive_split, index, 1);
    increase(stats_.inactive_split_bytes, index, rest_size);
  }
}

/// Ends `block` after `size` bytes and returns a new block for the rest.
Block* DevicePool::cut(Block* block, size_t size) {
  Block* rest = new_block();
  rest->ptr = static_cast<char*>(block->ptr) + size;
  rest->size = block->size - size;
  rest->is_small = block->is_small;
  rest->mapped = block->mapped;
  rest->expandable = block->expandable;
  rest->device = block->device;
  rest->stream = block->stream;
  rest->pool = block->pool;
  rest->idle_since = block->idle_since;
  rest->prev = block;
  rest->next = block->next;
  if (rest->next) rest->next->prev = rest;
  block->next = rest;
  block->size = size;
  return rest;
}

/// A segment for `size` bytes as one free block that is in no free list; null if the memory limit or the
/// driver refuses.
Block* DevicePool::allocate_segment(StreamPool& pool, size_t size, bool is_small) {
  if (settings().expandable_segments) return expand(pool, size, is_small);
  const size_t segment_size = is_small                ? kSmallSegment
                              : size < kMinOwnSegment ? settings().large_segment_size
                                                      : round_up(size, kSegmentGranule);
  if (reserved_ + segment_size > limit()) return nullptr;
  void* ptr = driver_.allocate(device_, segment_size);
  if (!ptr) return nullptr;

  Block* block = new_block();
  block->ptr = ptr;
  block->size = segment_size;
  block->is_small = is_small;
  block->device = device_;
  block->stream = pool.stream;
  block->pool = &pool;
  segments_.emplace(ptr, Segment{block, segment_size, nullptr, context_});
  record(Action::SEGMENT_ALLOC, block, segment_size);
  increase(stats_.segment, index_of(block), 1);
  count_reserved(block, true);
  if (segment_size >= settings().max_split_size) stats_.oversize_segments.increase(1);
  return block;
}

/// Gives up cached memory in steps, from the least to the most costly, until a segment can be had.
Block* DevicePool::allocate_segment_or_reclaim(StreamPool& pool, size_t size, bool is_small) {
  if (settings().garbage_collection_threshold > 0) collect_garbage(size);
  if (Block* block = allocate_segment(pool, size, is_small)) return block;
  if (release_oversize(pool, size)) {
    if (Block* block = allocate_segment(pool, size, is_small)) return block;
  }
  ++stats_.num_alloc_retries;
  release_cached();
  return allocate_segment(pool, size, is_small);
}

void DevicePool::raise_out_of_memory(std::unique_lock<std::mutex>& lock, size_t requested) {
  ++stats_.num_ooms;
  const int64_t allocated = stats_.allocated_bytes[0].current;
  const auto reserved = static_cast<int64_t>(reserved_);
  const double fraction = fraction_;
  const auto [free, total] = driver_.memory_info(device_);
  history_.record(Action::OOM, device_, reinterpret_cast<void*>(free), requested, nullptr, context_);
  lock.unlock();

  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(requested), allocated, reserved,
                                   c10::Device(c10::DeviceType::PrivateUse1, device_));
  TORCH_CHECK_WITH(OutOfMemoryError, requested < kExabyte,
                   "NPU out of memory. Tried to allocate more than 1EB memory.");
  std::string allowed;
  if (fraction < 1) {
    allowed = c10::str(" This process may use ", format_size(static_cast<uint64_t>(fraction * total)),
                       " (memory fraction ", fraction, ").");
  }
  const Settings& current = settings();
  const char* advice =
      current.expandable_segments ? "" : "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True, or ";
  TORCH_CHECK_WITH(OutOfMemoryError, false, "NPU out of memory. Tried to allocate ", format_size(requested),
                   ". Device ", static_cast<int>(device_), " has a total capacity of ", format_size(total),
                   " of which ", format_size(free), " is free.", allowed, " Of the memory in use, ",
                   format_size(allocated), " is allocated by PyTorch and ", format_size(reserved - allocated),
                   " is reserved by PyTorch but unallocated (settings: PYTORCH_NPU_ALLOC_CONF=",
                   current.text.empty() ? "unset" : current.text,
                   "). If much is reserved but unallocated, memory is fragmented; try ", advice,
                   "smaller batches, or free tensors that are not needed.");
}

// ---- release ----

void DevicePool::free(Block* block) {
  History::Context context = history_.gather(Level::ALL);
  std::lock_guard lock(mutex_);
  context_ = std::move(context);
  record(Action::FREE_REQUESTED, block, block->requested_size);
  report_to_profiler(block, -static_cast<int64_t>(block->size));
  block->allocated = false;
  const size_t index = index_of(block);
  decrease(stats_.allocation, index, 1);
  decrease(stats_.allocated_bytes, index, block->size);
  if (block->size >= settings().max_split_size) stats_.oversize_allocations.decrease(1);

  if (block->stream_uses.empty()) [[likely]] {
    put_back(block);
    return;
  }
  for (StreamHandle stream : std::exchange(block->stream_uses, {})) {
    ++block->pending_events;  // first: if no event can be had, the block must never be reused
    pending_[stream].emplace_back(driver_.record_event(device_, stream), block);
  }
}

void DevicePool::record_stream(Block* block, StreamHandle stream) {
  std::lock_guard lock(mutex_);
  if (stream == block->stream) return;  // its own stream runs in order
  auto& uses = block->stream_uses;
  if (std::find(uses.begin(), uses.end(), stream) == uses.end()) uses.push_back(stream);
}

/// Makes a block free that no stream uses any more, joined with its free neighbours.
void DevicePool::put_back(Block* block) {
  const size_t index = index_of(block);
  const size_t size = block->size;
  record(Action::FREE_COMPLETED, block, block->requested_size);
  block->context.reset();
  decrease(stats_.active, index, 1);
  decrease(stats_.active_bytes, index, size);
  decrease(stats_.requested_bytes, index, block->requested_size);
  block->requested_size = 0;

  int64_t inactive_blocks = 0;
  int64_t inactive_bytes = 0;
  for (Block* neighbour : {block->prev, block->next}) {
    if (!neighbour || !neighbour->is_free()) continue;
    --inactive_blocks;
    inactive_bytes -= static_cast<int64_t>(neighbour->size);
    remove_free(neighbour);
    block = neighbour->ptr < block->ptr ? join(neighbour, block) : join(block, neighbour);
  }
  if (block->is_split()) {
    ++inactive_blocks;
    inactive_bytes += static_cast<int64_t>(block->size);
  }
  auto change = [index](StatArray& stat, int64_t amount) {
    if (amount > 0) increase(stat, index, amount);
    if (amount < 0) decrease(stat, index, -amount);
  };
  change(stats_.inactive_split, inactive_blocks);
  change(stats_.inactive_split_bytes, inactive_bytes);
  block->idle_since = allocation_count_;
  insert_free(block);
}

/// Makes one block of two neighbours; the lower one survives.
Block* DevicePool::join(Block* low, Block* high) {
  low->size += high->size;
  low->next = high->next;
  if (low->next) low->next->prev = low;
  delete_block(high);
  return low;
}

void DevicePool::insert_free(Block* block) {
  if (block->is_small) {
    block->pool->small.insert(block);
  } else if (block->free_node.empty()) {
    block->pool->large.insert(block);
  } else {
    block->free_node.value() = block;
    block->pool->large.insert(std::move(block->free_node));
  }
}

void DevicePool::remove_free(Block* block) {
  if (block->is_small) {
    block->pool->small.remove(block);
  } else {
    block->free_node = block->pool->large.extract(block);
  }
}

/// Puts back the blocks whose last event has completed. Events of one stream complete in order.
void DevicePool::reclaim_completed() {
  for (auto stream = pending_.begin(); stream != pending_.end();) {
    PendingEvents& events = stream->second;
    while (!events.empty() && driver_.event_completed(events.front().first)) {
      const auto [event, block] = events.front();
      events.pop_front();
      driver_.release_event(event);
      if (--block->pending_events == 0) put_back(block);
    }
    stream = events.empty() ? pending_.erase(stream) : std::next(stream);
  }
}

/// Waits for all pending events.
void DevicePool::reclaim_all() {
  ++stats_.num_sync_all_streams;
  for (auto& [stream, events] : pending_) {
    for (const auto& [event, block] : events) driver_.wait_for_event(event);
  }
  reclaim_completed();
}

/// Brings the reserved memory below the garbage collection threshold by releasing segments that have been
/// idle for longer than the average.
void DevicePool::collect_garbage(size_t size) {
  const auto threshold = static_cast<size_t>(settings().garbage_collection_threshold * limit());
  if (reserved_ + size <= threshold) return;
  std::vector<Block*> idle;
  for (const auto& [stream, pool] : pools_) {
    std::copy_if(pool->large.begin(), pool->large.end(), std::back_inserter(idle),
                 [](const Block* block) { return !block->is_split() && !block->expandable; });
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
  if (max_split == std::numeric_limits<size_t>::max()) return false;
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

void DevicePool::empty_cache() {
  History::Context context = history_.gather(Level::ALL);
  std::lock_guard lock(mutex_);
  context_ = std::move(context);
  release_cached();
}

void DevicePool::release_cached() {
  reclaim_all();
  std::vector<Block*> unused;
  auto collect = [&](Block* block) {
    if (block->expandable || !block->is_split()) unused.push_back(block);
  };
  for (const auto& [stream, pool] : pools_) {
    pool->small.for_each(collect);
    std::for_each(pool->large.begin(), pool->large.end(), collect);
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
  driver_.release(device_, block->ptr);
  record(Action::SEGMENT_FREE, block, block->size);
  segments_.erase(block->ptr);
  decrease(stats_.segment, index_of(block), 1);
  count_reserved(block, false);
  if (block->size >= settings().max_split_size) stats_.oversize_segments.decrease(1);
  delete_block(block);
}

// ---- expandable segments ----

/// Puts memory behind addresses next to free memory, if possible. Returns a free block of `size` bytes at
/// least that is in no free list, or null for lack of memory.
Block* DevicePool::expand(StreamPool& pool, size_t size, bool is_small) {
  Block* block = find_unmapped(pool, size, is_small);
  if (!block) block = reserve_addresses(pool, is_small);
  const size_t free_before = block->prev && block->prev->is_free() ? block->prev->size : 0;
  const size_t mapped_size = round_up(size - free_before, block->expandable->chunk_size());
  if (mapped_size > block->size || reserved_ + mapped_size > limit()) return nullptr;
  if (!block->expandable->map(block->ptr, mapped_size)) return nullptr;

  pool.unmapped.erase(block);
  if (mapped_size < block->size) pool.unmapped.insert(cut(block, mapped_size));
  const int neighbours = (block->prev && block->prev->mapped) + (block->next && block->next->mapped);
  std::vector<Block*> free_neighbours;
  for (Block* neighbour : {block->prev, block->next}) {
    if (!neighbour || !neighbour->is_free()) continue;
    count_inactive(neighbour, false);
    remove_free(neighbour);
    free_neighbours.push_back(neighbour);
  }
  block->mapped = true;
  count_reserved(block, true);
  record(Action::SEGMENT_MAP, block, block->size);
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

/// The lowest addresses without memory that, with the free block before them, suffice for `size` bytes.
Block* DevicePool::find_unmapped(StreamPool& pool, size_t size, bool is_small) {
  Block* best = nullptr;
  for (Block* block : pool.unmapped) {
    const size_t free_before = block->prev && block->prev->is_free() ? block->prev->size : 0;
    if (block->is_small != is_small || free_before + block->size < size) continue;
    if (!best || block->ptr < best->ptr) best = block;
  }
  return best;
}

/// A new expandable segment as one block without memory.
Block* DevicePool::reserve_addresses(StreamPool& pool, bool is_small) {
  const size_t chunk = is_small ? kSmallSegment : round_up(settings().large_segment_size, kSegmentGranule);
  // More addresses than memory, so that a segment with holes can still take all memory at its end.
  const size_t size = round_up(total_memory_ + total_memory_ / 8, chunk);
  auto segment = std::make_unique<ExpandableSegment>(driver_, device_, size, chunk);
  Block* block = new_block();
  block->ptr = segment->base();
  block->size = size;
  block->mapped = false;
  block->is_small = is_small;
  block->expandable = segment.get();
  block->device = device_;
  block->stream = pool.stream;
  block->pool = &pool;
  pool.unmapped.insert(block);
  segments_.emplace(block->ptr, Segment{block, size, std::move(segment), context_});
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
  const int neighbours = (gap->prev && gap->prev->mapped) + (gap->next && gap->next->mapped);
  segment.unmap(gap->ptr, gap->size);
  gap->mapped = false;
  count_reserved(gap, false);
  record(Action::SEGMENT_UNMAP, gap, gap->size);
  if (neighbours == 0) decrease(stats_.segment, index_of(gap), 1);
  if (neighbours == 2) increase(stats_.segment, index_of(gap), 1);
  for (Block* remaining : {gap != block ? block : nullptr, rest}) {
    if (!remaining) continue;
    insert_free(remaining);
    count_inactive(remaining, true);
  }

  FreeSet& unmapped = gap->pool->unmapped;
  if (gap->next && !gap->next->mapped) {
    unmapped.erase(gap->next);
    join(gap, gap->next);
  }
  if (gap->prev && !gap->prev->mapped) {
    unmapped.erase(gap->prev);
    gap = join(gap->prev, gap);
  }
  if (gap->prev || gap->next) {
    unmapped.insert(gap);
  } else {
    segments_.erase(gap->ptr);
    delete_block(gap);
  }
}

// ---- counting ----

/// A free block that shares its segment counts as inactive.
void DevicePool::count_inactive(Block* block, bool add) {
  if (!block->is_split()) return;
  const auto change = add ? increase : decrease;
  change(stats_.inactive_split, index_of(block), 1);
  change(stats_.inactive_split_bytes, index_of(block), block->size);
}

void DevicePool::count_reserved(const Block* block, bool add) {
  reserved_ += add ? block->size : -block->size;
  (add ? increase : decrease)(stats_.reserved_bytes, index_of(block), block->size);
  ++(add ? stats_.num_device_alloc : stats_.num_device_free);
}

// ---- block objects ----

Block* DevicePool::new_block() {
  if (unused_blocks_.empty()) return &block_storage_.emplace_back();
  Block* block = unused_blocks_.back();
  unused_blocks_.pop_back();
  return block;
}

void DevicePool::delete_block(Block* block) {
  block->prev = block->next = nullptr;
  block->expandable = nullptr;
  block->mapped = true;
  unused_blocks_.push_back(block);
}

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
  history_.record(action, device_, block->ptr, size, block->stream, context_ ? context_ : block->context);
}

void DevicePool::report_to_profiler(const Block* block, int64_t change) const {
  c10::reportMemoryUsageToProfiler(block->ptr, change, stats_.allocated_bytes[0].current, reserved_,
                                   c10::Device(c10::DeviceType::PrivateUse1, device_));
}

// ---- questions ----

DeviceStats DevicePool::stats() {
  std::lock_guard lock(mutex_);
  DeviceStats stats = stats_;
  const size_t max_split = settings().max_split_size;
  stats.max_split_size =
      max_split == std::numeric_limits<size_t>::max() ? -1 : static_cast<int64_t>(max_split);
  return stats;
}

void DevicePool::reset_accumulated_stats() {
  std::lock_guard lock(mutex_);
  for_each_stat(stats_, [](Stat& stat) { stat.reset_accumulated(); });
  stats_.num_alloc_retries = stats_.num_ooms = stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = stats_.num_device_free = 0;
}

void DevicePool::reset_peak_stats() {
  std::lock_guard lock(mutex_);
  for_each_stat(stats_, [](Stat& stat) { stat.reset_peak(); });
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

std::vector<SegmentInfo> DevicePool::snapshot() {
  std::lock_guard lock(mutex_);
  history_.record(Action::SNAPSHOT, device_, nullptr, 0, nullptr, nullptr);
  std::vector<SegmentInfo> result;
  for (const auto& [address, segment] : segments_) {
    for (const Block* block = segment.head; block; block = block->next) {
      if (!block->mapped) continue;
      // A stretch of an expandable segment that has memory is reported as a segment.
      if (!block->prev || !block->prev->mapped) {
        result.push_back(describe_segment(block));
        result.back().context_when_allocated = segment.context;
      }
      add_block(result.back(), block);
    }
  }
  return result;
}

}  // namespace torch_npu::memory
