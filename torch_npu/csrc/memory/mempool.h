#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <memory>

#include "torch_npu/csrc/memory/pluggable.h"

namespace torch_npu::memory {

/// An id that no other private pool has: (0, n) for the pools that users make, (n, 0) for those that a graph
/// makes for itself.
c10::MempoolId_t new_pool_id(bool is_user_created = true);

/// A private pool of one device, kept while this object lives (torch.npu.MemPool). Afterwards its free memory
/// goes back to the device, and what tensors still hold follows when they are freed and the cache is emptied.
class MemPool {
 public:
  struct Options {
    bool is_user_created = true;
    bool use_on_oom = false;  // its free memory serves other allocations when the device is full
    bool no_split = false;    // each segment is one block
    std::shared_ptr<const PluggableAllocator> source;  // of the segments; null: the driver
  };

  /// Of the device `device`, which is initialised.
  MemPool(c10::DeviceIndex device, const Options& options);
  ~MemPool();
  MemPool(const MemPool&) = delete;

  c10::MempoolId_t id() const { return id_; }
  c10::DeviceIndex device() const { return device_; }
  /// This object, graphs that record into the pool, and open `use_mem_pool` blocks.
  int use_count() const;

 private:
  const c10::MempoolId_t id_;
  const c10::DeviceIndex device_;
};

}  // namespace torch_npu::memory
