#pragma once

#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

namespace torch_npu::memory {

/// The driver's stream handle (aclrtStream); null is the default stream.
using StreamHandle = void*;

struct Block;
struct StreamPool;
class ExpandableSegment;

struct BySizeThenAddress {
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const;
  bool operator()(const Block* a, size_t size) const;
};
using FreeSet = std::set<Block*, BySizeThenAddress>;

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

  static constexpr int8_t kNoFormat = -1;
  int8_t format = kNoFormat;  // the aclFormat that torch_npu.npu_format_cast gave its tensor, if any

  /// Owned CPU storage over the same bytes, or null. Use host_alias() of host_alias.h, never this field.
  std::atomic<c10::StorageImpl*> alias{nullptr};

  bool is_small = false;  // lives in a segment of the small pool
  bool mapped = true;     // false: addresses of an expandable segment without memory
  bool allocated = false;
  int32_t pending_events =
      0;  // events of other streams, and graphs, that must end before the block can be reused
  uint64_t idle_since = 0;     // the device's allocation count when the block became free
  StreamPool* pool = nullptr;  // where the block goes when it is free
  Block* prev = nullptr;       // neighbours by address within the segment
  Block* next = nullptr;
  ExpandableSegment* expandable = nullptr;  // the segment, if it is of that kind
  Block* bin_prev = nullptr;                // neighbours in the bin of free small blocks of this size
  Block* bin_next = nullptr;
  FreeSet::node_type free_node;                   // a large block's node of FreeSet while it is not free
  std::shared_ptr<c10::GatheredContext> context;  // call stack of the allocation, if history is recorded
  std::vector<StreamHandle> stream_uses;          // other streams that use the block (recordStream)

  /// True if `neighbour` lies in the same stretch of memory, so that the two can become one block.
  bool adjoins(const Block* neighbour) const {
    return neighbour && neighbour->mapped && neighbour->pool == pool && neighbour->is_small == is_small;
  }
  /// Shares its stretch of memory with other blocks.
  bool is_split() const { return adjoins(prev) || adjoins(next); }
  bool is_free() const { return mapped && !allocated && pending_events == 0 && stream_uses.empty(); }
};

inline bool BySizeThenAddress::operator()(const Block* a, const Block* b) const {
  return a->size != b->size ? a->size < b->size : a->ptr < b->ptr;
}
inline bool BySizeThenAddress::operator()(const Block* a, size_t size) const { return a->size < size; }

}  // namespace torch_npu::memory
