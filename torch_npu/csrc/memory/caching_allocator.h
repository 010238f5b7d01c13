#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "torch_npu/csrc/memory/block.h"
#include "torch_npu/csrc/memory/device_pool.h"
#include "torch_npu/csrc/memory/driver.h"

namespace torch_npu::memory {

/// The allocator of device `npu`: one DevicePool a device, made when the device is first used.
class NPUCachingAllocator final : public c10::DeviceAllocator {
 public:
  explicit NPUCachingAllocator(Driver& driver) : driver_(driver) {}

  /// Memory on the current device, for use on its current stream. Zero bytes give a null pointer on that
  /// device.
  c10::DataPtr allocate(size_t nbytes) override;
  void copy_data(void* dest, const void* src, std::size_t count) const override;

  bool initialized() override;
  void emptyCache(c10::MempoolId_t mempool_id = {0, 0}) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  /// Takes recordStream() back.
  void erase_stream(const c10::DataPtr& data, c10::Stream stream);
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;

  /// A block without a DataPtr, on a given device and stream; give it back with free_block.
  Block* allocate_block(size_t nbytes, c10::DeviceIndex device, StreamHandle stream);
  void free_block(Block* block);

  /// Memory without a DataPtr, found again by its address (torch.npu.caching_allocator_alloc).
  void* raw_alloc(size_t nbytes, c10::DeviceIndex device, StreamHandle stream);
  void raw_free(void* ptr);

  // ---- private pools ----
  // Memory that serves only the allocations that were sent there, and stays reserved while anyone uses the
  // pool. A pool belongs to one device; ids come from new_pool_id() (mempool.h). Each function raises if
  // `device` has no such pool, unless it says that it makes one.

  /// Counts one more user of the pool; makes the pool if need be.
  void retain_pool(c10::DeviceIndex device, c10::MempoolId_t id);
  /// Sends the allocations for which `filter(stream)` is true to the pool until end_allocate_to_pool(), those
  /// of all threads. Several may be open: the last one that agrees counts. Counts a user, as retain_pool().
  void begin_allocate_to_pool(c10::DeviceIndex device, c10::MempoolId_t id, PoolFilter filter);
  /// Ends what this thread (else any thread) began last for the pool. The user that was counted remains.
  void end_allocate_to_pool(c10::DeviceIndex device, c10::MempoolId_t id);
  /// Counts one user less. Without users the pool's free memory is cache as any other: empty_cache() and
  /// allocations that find the device full give it back.
  void release_pool(c10::DeviceIndex device, c10::MempoolId_t id);
  /// 0 for a pool that does not exist.
  int pool_use_count(c10::DeviceIndex device, c10::MempoolId_t id);

  /// What tensors have of a private pool, and had at most since the last call with `restart_peak`.
  c10::CachingAllocator::Stat pool_bytes(c10::DeviceIndex device, c10::MempoolId_t id, bool restart_peak);

  /// Keeps the memory of an allocated block from reuse until unpin(), whatever becomes of its tensor: a graph
  /// uses it. Does nothing and returns false if it is memory of the private pool `id`, the graph's own.
  bool pin_unless_in(c10::MempoolId_t id, Block* block);
  void unpin(Block* block);

  /// To be called before a stream of `device` starts to be captured and after it ended, also if it failed.
  /// In between the allocator asks no events and gives no memory back: neither may happen during a capture.
  void begin_capture(c10::DeviceIndex device);
  void end_capture(c10::DeviceIndex device);

  /// The cache of one device, made at first use.
  DevicePool& device_pool(c10::DeviceIndex device);

  /// Takes all memory outside of private pools from `source` from now on, on all devices and without a cache;
  /// raises if a tensor was allocated before.
  void replace_source(std::shared_ptr<const PluggableAllocator> source);
  /// What replace_source() was given; null: the driver.
  std::shared_ptr<const PluggableAllocator> source();

  /// True if `ptr` points into memory of this allocator.
  bool owns(const void* ptr);

  /// Upper limit of what this process may reserve, as a fraction of the device's memory.
  void set_memory_fraction(double fraction, c10::DeviceIndex device);
  double memory_fraction(c10::DeviceIndex device);

  /// The segments of one private pool, or of all pools.
  std::vector<c10::CachingDeviceAllocator::SegmentInfo> snapshot(c10::MempoolId_t id = kDefaultPool);

  /// Starts or stops recording events on all devices.
  void record_history(const History::Options& options);
  /// The recorded events of each device, oldest first.
  std::vector<std::vector<History::Event>> history();

 private:
  static constexpr c10::DeviceIndex kMaxDevices = 64;

  DevicePool& make_pool(c10::DeviceIndex device);
  std::vector<DevicePool*> existing_pools();

  Driver& driver_;
  std::mutex mutex_;  // guards the creation of pools, source_ and raw_blocks_
  std::array<std::atomic<DevicePool*>, kMaxDevices> pools_{};
  std::shared_ptr<const PluggableAllocator> source_;
  std::unordered_map<void*, Block*> raw_blocks_;
};

/// The allocator over CANN that is registered with c10 for PrivateUse1.
NPUCachingAllocator& caching_allocator();

/// The deleter of every npu DataPtr of this allocator; its argument is the Block.
void delete_block(void* block);

/// The block behind an npu DataPtr; null if the memory is not ours (from_blob, a foreign allocator, no
/// memory).
inline Block* block_of(const c10::DataPtr& data) {
  return data.get_deleter() == &delete_block ? static_cast<Block*>(data.get_context()) : nullptr;
}

}  // namespace torch_npu::memory
