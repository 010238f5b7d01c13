#include "torch_npu/csrc/memory/device_pool.h"

#include <c10/util/Exception.h>
#include <c10/util/llvmMathExtras.h>

#include <algorithm>

#include "torch_npu/csrc/memory/sizes.h"
#include "torch_npu/csrc/memory/statistics.h"

// Allocation and release.
namespace torch_npu::memory {

using c10::CachingAllocator::StatArray;
using Action = History::Event::Action;
using Level = History::Level;

namespace {

/// The next of `divisions` equal steps between two powers of 2: 1200 with 4 divisions gives 1280.
size_t round_up_to_division(size_t size, size_t divisions) {
  const size_t step = c10::llvm::PowerOf2Floor(size) / divisions;
  return round_up(size, std::max<size_t>(step, 1));
}

}  // namespace

DevicePool::DevicePool(c10::DeviceIndex device, Driver& driver)
    : device_(device),
      driver_(driver),
      tail_padding_(driver.tail_padding()),
      fraction_(settings().memory_fraction),
      total_memory_(driver.memory_info(device).second) {}

DevicePool::~DevicePool() { empty_cache(); }

size_t DevicePool::round_size(size_t nbytes) const {
  const size_t size = nbytes + tail_padding_;
  const size_t divisions = settings().divisions_for(size);
  if (divisions > 1 && size > kMinBlock * divisions) return round_up_to_division(size, divisions);
  return round_up(std::max<size_t>(size, 1), kMinBlock);
}

size_t DevicePool::limit() { return static_cast<size_t>(fraction_ * static_cast<double>(total_memory_)); }

Block* DevicePool::allocate(size_t nbytes, StreamHandle stream) {
  History::Context context = history_.gather(Level::STATE);
  std::unique_lock lock(mutex_);
  context_ = std::move(context);
  Arena& arena = arena_for(stream);
  if (nbytes >= kExabyte) raise_out_of_memory(lock, nbytes, arena);
  if (!pending_.empty() && captures_ == 0) reclaim_completed();
  ++allocation_count_;

  const size_t size = round_size(nbytes);
  const bool is_small = size <= kSmallMax;
  ++arena.allocations;
  StreamPool& pool = arena.pool_of(stream);
  Block* block = take_latest(pool, size);
  if (!block) {
    settle();
    block = take_free_block(pool, size, is_small);
    if (block) [[likely]] {
      ++arena.hits;
    } else {
      block = allocate_segment_or_reclaim(pool, size, is_small);
      if (!block) block = borrow_from_private_pool(stream, size, is_small);
      if (!block) raise_out_of_memory(lock, nbytes, arena);
    }
    split(block, size);
  } else {
    ++arena.hits;
  }

  block->allocated = true;
  block->requested_size = nbytes;
  block->format = Block::kNoFormat;
  block->pool->arena.allocated_bytes.increase(block->size);
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

/// The block freed last, if it has the size and, joined with its free neighbours, would be the best fit; else
/// null.
Block* DevicePool::take_latest(const StreamPool& pool, size_t size) {
  if (!latest_ || latest_->size != size || latest_->pool != &pool) return nullptr;
  size_t joined_size = size;
  const Block* best = pool.small.best_fit(size);
  for (const Block* neighbour : {latest_->prev, latest_->next}) {
    if (!latest_->adjoins(neighbour) || !neighbour->is_free()) continue;
    joined_size += neighbour->size;
    if (neighbour == best) best = nullptr;
  }
  if (best && best->size < joined_size) return nullptr;
  return std::exchange(latest_, nullptr);
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
  if (!worth_it || block->pool->arena.no_split) {
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

// ---- release ----

void DevicePool::free(Block* block) {
  History::Context context = history_.gather(Level::ALL);
  std::lock_guard lock(mutex_);
  context_ = std::move(context);
  settle();  // while the block still counts as allocated: it may be a neighbour
  record(Action::FREE_REQUESTED, block, block->requested_size);
  report_to_profiler(block, -static_cast<int64_t>(block->size));
  block->allocated = false;
  const size_t index = index_of(block);
  decrease(stats_.allocation, index, 1);
  decrease(stats_.allocated_bytes, index, block->size);
  block->pool->arena.allocated_bytes.decrease(block->size);
  if (block->size >= settings().max_split_size) stats_.oversize_allocations.decrease(1);

  if (block->stream_uses.empty()) [[likely]] {
    if (block->pending_events > 0) return;
    end_use(block);
    if (block->is_small && block->pool->arena.is_cached) {
      latest_ = block;
    } else {
      rejoin(block);
    }
  } else if (captures_ > 0) {
    freed_in_capture_.push_back(block);
  } else {
    wait_for_streams(block);
  }
}

/// Lets `block` become free when the work that is now on the streams that use it has completed.
void DevicePool::wait_for_streams(Block* block) {
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

void DevicePool::erase_stream(Block* block, StreamHandle stream) {
  std::lock_guard lock(mutex_);
  std::erase(block->stream_uses, stream);
}

/// Counts a block as free that no stream uses any more.
void DevicePool::end_use(Block* block) {
  const size_t index = index_of(block);
  record(Action::FREE_COMPLETED, block, block->requested_size);
  block->context.reset();
  decrease(stats_.active, index, 1);
  decrease(stats_.active_bytes, index, block->size);
  decrease(stats_.requested_bytes, index, block->requested_size);
  block->requested_size = 0;
  block->idle_since = allocation_count_;
}

/// Makes a block free that no stream uses any more. The pool is settled.
void DevicePool::put_back(Block* block) {
  end_use(block);
  rejoin(block);
}

/// Does what free() left undone.
void DevicePool::settle() {
  if (latest_) rejoin(std::exchange(latest_, nullptr));
}

std::unique_lock<std::mutex> DevicePool::lock_settled() {
  std::unique_lock lock(mutex_);
  settle();
  return lock;
}

/// Joins a free block with its free neighbours and puts it into the list of such blocks.
void DevicePool::rejoin(Block* block) {
  const size_t index = index_of(block);
  const uint64_t idle_since = block->idle_since;
  int64_t inactive_blocks = 0;
  int64_t inactive_bytes = 0;
  for (Block* neighbour : {block->prev, block->next}) {
    if (!block->adjoins(neighbour) || !neighbour->is_free()) continue;
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
  block->idle_since = idle_since;
  if (block->pool->arena.is_cached) [[likely]] {
    insert_free(block);
  } else {
    release_segment(block);
  }
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
  settle();
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
  const auto change = add ? increase : decrease;
  change(stats_.reserved_bytes, index_of(block), block->size);
  const Arena& arena = block->pool->arena;
  if (arena.is_private()) {
    change(stats_.reserved_bytes_by_private_pools[arena.id], index_of(block), block->size);
  }
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

}  // namespace torch_npu::memory
