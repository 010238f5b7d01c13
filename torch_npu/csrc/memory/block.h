#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace torch_npu::memory {

/// The driver's stream handle (aclrtStream); null is the default stream.
using StreamHandle = void*;

struct StreamPool;

/// A contiguous piece of a device segment: one allocation, or one free piece that waits for its next use.
///
/// An npu tensor's DataPtr has the block as its context. `ptr`, `size`, `requested_size`, `device` and
/// `stream` are constant while the block is allocated; everything below them belongs to the allocator and is
/// guarded by its lock.
struct Block {
  void* ptr = nullptr;
  size_t size = 0;            // bytes, a multiple of 512
  size_t requested_size = 0;  // bytes that the client asked for
  c10::DeviceIndex device = -1;
  StreamHandle stream = nullptr;  // the stream it was allocated on

  /// Owned CPU storage over the same bytes, or null. Use host_alias() of host_alias.h, never this field.
  std::atomic<c10::StorageImpl*> alias{nullptr};

  bool allocated = false;
  bool is_small = false;       // lives in a segment of the small pool
  int32_t pending_events = 0;  // events of other streams that must complete before the block can be reused
  uint32_t idle_since = 0;     // allocator's allocation count when the block became free (garbage collection)
  size_t accounted_size = 0;   // bytes that the statistics count for this allocation
  StreamPool* pool = nullptr;  // where the block goes when it is free
  Block* prev = nullptr;       // neighbours by address within the segment
  Block* next = nullptr;
  Block* free_prev = nullptr;  // neighbours in the free list of the block's size
  Block* free_next = nullptr;
  std::vector<StreamHandle> stream_uses;  // other streams that the block was used on (recordStream)

  bool is_split() const { return prev != nullptr || next != nullptr; }
};

}  // namespace torch_npu::memory
