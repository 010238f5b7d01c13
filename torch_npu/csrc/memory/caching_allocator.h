#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "torch_npu/csrc/memory/block.h"

namespace torch_npu::memory {

class DevicePool;

/// The allocator of device `npu`: one DevicePool a device, registered with c10 as the allocator of
/// PrivateUse1.
class NPUCachingAllocator final : public c10::DeviceAllocator {
 public:
  NPUCachingAllocator();
  ~NPUCachingAllocator() override;

  /// Memory on the current device, for use on its current stream. Zero bytes give a null pointer on that
  /// device.
  c10::DataPtr allocate(size_t nbytes) override;
  void copy_data(void* dest, const void* src, std::size_t count) const override;

  bool initialized() override;
  void emptyCache(c10::MempoolId_t mempool_id = {0, 0}) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;

  /// A block without DataPtr, on a given device and stream; give it back with free_block.
  Block* allocate_block(size_t nbytes, c10::DeviceIndex device, StreamHandle stream);
  void free_block(Block* block);

  /// Memory without a DataPtr, found again by its address (torch.npu.caching_allocator_alloc).
  void* raw_alloc(size_t nbytes, c10::DeviceIndex device, StreamHandle stream);
  void raw_free(void* ptr);

  /// The device whose memory holds `ptr`, or -1.
  c10::DeviceIndex device_of(const void* ptr);

  /// Upper limit of what this process may reserve, as a fraction of the device's memory.
  void set_memory_fraction(double fraction, c10::DeviceIndex device);
  double memory_fraction(c10::DeviceIndex device);

  std::vector<c10::CachingDeviceAllocator::SegmentInfo> snapshot();

 private:
  DevicePool& pool(c10::DeviceIndex device);

  std::mutex mutex_;  // guards the creation of pools and raw_blocks_
  std::vector<std::unique_ptr<DevicePool>> pools_;
  std::unordered_map<void*, Block*> raw_blocks_;
};

NPUCachingAllocator& caching_allocator();

/// The deleter of every npu DataPtr of this allocator; its argument is the Block.
void delete_block(void* block);

/// The block behind an npu DataPtr; null if the memory is not ours (from_blob, a foreign allocator, no
/// memory).
inline Block* block_of(const c10::DataPtr& data) {
  return data.get_deleter() == &delete_block ? static_cast<Block*>(data.get_context()) : nullptr;
}

}  // namespace torch_npu::memory
