#include <c10/util/Exception.h>

#include <algorithm>

#include "torch_npu/csrc/memory/device_pool.h"

// Private pools: which allocations go there, and who keeps them.
namespace torch_npu::memory {

Arena& DevicePool::arena_for(StreamHandle stream) {
  for (auto route = routes_.rbegin(); route != routes_.rend(); ++route) {
    if (route->filter(stream)) return *route->arena;
  }
  return *defaults_.back();
}

Arena& DevicePool::private_arena(c10::MempoolId_t id, const char* caller) {
  const auto found = private_arenas_.find(id);
  TORCH_CHECK(found != private_arenas_.end(), caller, ": device npu:", static_cast<int>(device_),
              " has no memory pool with id (", id.first, ", ", id.second, "), or it was released already");
  return found->second;
}

std::vector<Arena*> DevicePool::arenas() {
  std::vector<Arena*> result{&default_arena_};
  for (auto& [id, arena] : private_arenas_) result.push_back(&arena);
  return result;
}

/// An arena lives while someone uses it or its memory.
void DevicePool::forget_unused_arenas() {
  std::erase_if(private_arenas_, [this](const auto& entry) {
    const Arena& arena = entry.second;
    return arena.use_count == 0 && arena.segment_count == 0 &&
           std::none_of(routes_.begin(), routes_.end(), [&](const Route& r) { return r.arena == &arena; });
  });
}

void DevicePool::retain_pool(c10::MempoolId_t id) {
  TORCH_CHECK(id != kDefaultPool, "npu memory: id (0, 0) is the default pool's, not a private one's");
  std::lock_guard lock(mutex_);
  ++private_arenas_.try_emplace(id, id).first->second.use_count;
}

void DevicePool::begin_allocate_to_pool(c10::MempoolId_t id, PoolFilter filter) {
  retain_pool(id);
  std::lock_guard lock(mutex_);
  routes_.push_back(
      {&private_arena(id, "begin_allocate_to_pool"), std::move(filter), std::this_thread::get_id()});
}

void DevicePool::end_allocate_to_pool(c10::MempoolId_t id) {
  const auto lock = lock_settled();
  const auto thread = std::this_thread::get_id();
  auto last = [&](auto matches) { return std::find_if(routes_.rbegin(), routes_.rend(), matches); };
  auto found = last([&](const Route& r) { return r.arena->id == id && r.thread == thread; });
  if (found == routes_.rend()) found = last([&](const Route& r) { return r.arena->id == id; });
  TORCH_CHECK(found != routes_.rend(), "end_allocate_to_pool: no allocation to pool (", id.first, ", ",
              id.second, ") of device npu:", static_cast<int>(device_), " was begun");
  routes_.erase(std::next(found).base());
  forget_unused_arenas();
}

void DevicePool::release_pool(c10::MempoolId_t id) {
  const auto lock = lock_settled();
  Arena& arena = private_arena(id, "release_pool");
  TORCH_CHECK(arena.use_count > 0, "release_pool: memory pool (", id.first, ", ", id.second,
              ") has no user left; it is released more often than it was taken");
  --arena.use_count;
  forget_unused_arenas();
}

int DevicePool::pool_use_count(c10::MempoolId_t id) {
  std::lock_guard lock(mutex_);
  const auto found = private_arenas_.find(id);
  return found == private_arenas_.end() ? 0 : found->second.use_count;
}

void DevicePool::configure_pool(c10::MempoolId_t id, bool use_on_oom, bool no_split,
                                std::shared_ptr<const PluggableAllocator> source) {
  std::lock_guard lock(mutex_);
  Arena& arena = private_arena(id, "configure_pool");
  arena.use_on_oom = use_on_oom;
  arena.no_split = no_split;
  arena.source = std::move(source);
}

void DevicePool::replace_source(std::shared_ptr<const PluggableAllocator> source) {
  std::lock_guard lock(mutex_);
  TORCH_CHECK(
      allocation_count_ == 0,
      "Can't swap an already initialized allocator: change_current_allocator must come before the first "
      "tensor on device npu:",
      static_cast<int>(device_));
  default_arena_.source = std::move(source);
  default_arena_.is_cached = false;
}

/// A free block of a pool that helps out when the device is full, in no free list any more; null if none has
/// one.
Block* DevicePool::borrow_from_private_pool(StreamHandle stream, size_t size, bool is_small) {
  for (auto& [id, arena] : private_arenas_) {
    if (!arena.use_on_oom) continue;
    if (Block* block = take_free_block(arena.pool_of(stream), size, is_small)) return block;
  }
  return nullptr;
}

c10::CachingAllocator::Stat DevicePool::pool_bytes(c10::MempoolId_t id, bool restart_peak) {
  std::lock_guard lock(mutex_);
  Arena& arena = private_arena(id, "pool_bytes");
  if (restart_peak) arena.allocated_bytes.reset_peak();
  return arena.allocated_bytes;
}

bool DevicePool::pin_unless_in(c10::MempoolId_t id, Block* block) {
  std::lock_guard lock(mutex_);
  if (block->pool->arena.id == id) return false;
  ++block->pending_events;  // one that only unpin() completes
  return true;
}

void DevicePool::unpin(Block* block) {
  const auto lock = lock_settled();
  if (--block->pending_events == 0 && !block->allocated && block->stream_uses.empty()) put_back(block);
}

void DevicePool::begin_capture() {
  std::lock_guard lock(mutex_);
  ++captures_;
}

void DevicePool::end_capture() {
  std::lock_guard lock(mutex_);
  TORCH_CHECK(captures_ > 0, "npu memory: end_capture without begin_capture");
  if (--captures_ > 0) return;
  for (Block* block : std::exchange(freed_in_capture_, {})) wait_for_streams(block);
}

}  // namespace torch_npu::memory
