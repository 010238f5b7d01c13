#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <functional>
#include <memory>
#include <unordered_map>

#include "torch_npu/csrc/memory/block.h"
#include "torch_npu/csrc/memory/expandable_segment.h"
#include "torch_npu/csrc/memory/pluggable.h"
#include "torch_npu/csrc/memory/small_bins.h"

namespace torch_npu::memory {

/// The arena of everything that asked for no other.
constexpr c10::MempoolId_t kDefaultPool{0, 0};

/// The free blocks of one stream in one arena. A block returns to the pool it came from.
struct StreamPool {
  struct Arena& arena;
  StreamHandle stream = nullptr;
  SmallBins small;
  FreeSet large;
  FreeSet unmapped;  // stretches of expandable segments that have no memory
};

/// Segments and their free blocks that are kept apart from all others. A device has one for general use and
/// one for each private pool: a graph's, a torch.npu.MemPool, or a torch_npu.VMMemoryPool.
struct Arena {
  explicit Arena(c10::MempoolId_t id) : id(id) {}
  Arena(const Arena&) = delete;

  StreamPool& pool_of(StreamHandle stream) {
    if (last && last->stream == stream) return *last;
    std::unique_ptr<StreamPool>& pool = pools[stream];
    if (!pool) pool = std::unique_ptr<StreamPool>(new StreamPool{*this, stream});
    return *(last = pool.get());
  }

  bool is_private() const { return id != kDefaultPool; }
  /// True if nobody relies on finding its cached memory again, so that it may go back to the driver.
  bool is_releasable() const { return use_count == (reservation ? 1 : 0); }

  /// Stretches of addresses without memory that an allocation of `pool` may grow into.
  FreeSet& unmapped_for(StreamPool& pool) { return reservation ? unmapped : pool.unmapped; }

  const c10::MempoolId_t id;
  int use_count = 0;         // MemPools, graphs and open calls of begin_allocate_to_pool
  bool use_on_oom = false;   // its free memory serves the default arena when the device is full
  bool no_split = false;     // each segment is one block
  size_t segment_count = 0;  // segments, and reserved address ranges

  std::shared_ptr<const PluggableAllocator> source;  // of the segments; null: the driver
  bool is_cached = true;  // false: each allocation is a segment, given back when it is freed

  // A VMMemoryPool's only segment: addresses that all streams, small and large blocks share, page by page.
  ExpandableSegment* reservation = nullptr;
  bool is_fully_mapped = false;  // memory stays behind all its addresses
  FreeSet unmapped;              // pages that belong to no stream; without memory unless it is fully mapped

  c10::CachingAllocator::Stat allocated_bytes;
  uint64_t allocations = 0;
  uint64_t hits = 0;  // allocations that cached memory served

  StreamPool* last = nullptr;  // of the stream that allocated last
  std::unordered_map<StreamHandle, std::unique_ptr<StreamPool>> pools;
};

}  // namespace torch_npu::memory
