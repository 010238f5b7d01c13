#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "torch_npu/csrc/memory/block.h"
#include "torch_npu/csrc/memory/driver.h"
#include "torch_npu/csrc/memory/expandable_segment.h"
#include "torch_npu/csrc/memory/history.h"
#include "torch_npu/csrc/memory/settings.h"
#include "torch_npu/csrc/memory/small_bins.h"

namespace torch_npu::memory {

/// The free blocks of one stream. A block returns to the pool it came from.
struct StreamPool {
  StreamHandle stream = nullptr;
  SmallBins small;
  FreeSet large;
  FreeSet unmapped;  // stretches of expandable segments that have no memory
};

/// The cache of one device's memory: segments from the driver, cut into blocks on demand, joined again when
/// they are free, kept for the stream that used them. A free block can be reused at once by work on its own
/// stream, because that runs after the work that used it last; other streams are made known by
/// record_stream().
class DevicePool {
 public:
  DevicePool(c10::DeviceIndex device, Driver& driver);
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;

  /// Throws c10::OutOfMemoryError after every cached segment was released in vain; the pool stays usable.
  Block* allocate(size_t nbytes, StreamHandle stream);
  void free(Block* block);

  /// Delays the reuse of `block` after free() until the work that is by then on `stream` has completed.
  void record_stream(Block* block, StreamHandle stream);

  /// Returns all segments without live blocks to the driver.
  void empty_cache();

  c10::CachingDeviceAllocator::DeviceStats stats();
  void reset_accumulated_stats();
  void reset_peak_stats();

  void set_memory_fraction(double fraction);
  double memory_fraction();

  std::vector<c10::CachingDeviceAllocator::SegmentInfo> snapshot();

  void record_history(const History::Options& options);
  std::vector<History::Event> history();

  /// True if `ptr` points into a segment.
  bool owns(const void* ptr);

 private:
  /// Blocks whose stream's events are waited for, oldest first.
  using PendingEvents = std::deque<std::pair<Driver::Event, Block*>>;

  struct Segment {
    Block* head;  // the block at the lowest address; it stays the same object while blocks split and join
    size_t size;
    std::unique_ptr<ExpandableSegment> expandable;  // null: memory of fixed size
    History::Context context;                       // call stack of the allocation that needed it
  };

  StreamPool& stream_pool(StreamHandle stream);
  size_t round_size(size_t nbytes) const;
  size_t limit();

  Block* take_free_block(StreamPool& pool, size_t size, bool is_small);
  Block* allocate_segment(StreamPool& pool, size_t size, bool is_small);
  Block* allocate_segment_or_reclaim(StreamPool& pool, size_t size, bool is_small);
  void report_to_profiler(const Block* block, int64_t change) const;
  void record(History::Event::Action action, const Block* block, size_t size);
  [[noreturn]] void raise_out_of_memory(std::unique_lock<std::mutex>& lock, size_t requested);

  Block* expand(StreamPool& pool, size_t size, bool is_small);
  Block* find_unmapped(StreamPool& pool, size_t size, bool is_small);
  Block* reserve_addresses(StreamPool& pool, bool is_small);
  void unmap(Block* block);

  void split(Block* block, size_t size);
  Block* cut(Block* block, size_t size);
  void count_inactive(Block* block, bool add);
  void count_reserved(const Block* block, bool add);
  void put_back(Block* block);
  Block* join(Block* low, Block* high);
  void insert_free(Block* block);
  void remove_free(Block* block);

  void reclaim_completed();
  void reclaim_all();
  void collect_garbage(size_t size);
  bool release_oversize(StreamPool& pool, size_t size);
  void release_cached();
  void release_segment(Block* block);

  Block* new_block();
  void delete_block(Block* block);

  const c10::DeviceIndex device_;
  Driver& driver_;
  const size_t tail_padding_;
  std::mutex mutex_;

  StreamPool* last_pool_ = nullptr;  // of the stream that allocated last
  std::unordered_map<StreamHandle, std::unique_ptr<StreamPool>> pools_;
  std::map<const void*, Segment> segments_;  // by address
  std::unordered_map<StreamHandle, PendingEvents> pending_;
  std::deque<Block> block_storage_;
  std::vector<Block*> unused_blocks_;

  History history_;
  History::Context context_;  // of the call under way, if it is recorded
  c10::CachingDeviceAllocator::DeviceStats stats_;
  uint64_t allocation_count_ = 0;
  size_t reserved_ = 0;
  double fraction_ = 1;
  size_t total_memory_ = 0;
};

}  // namespace torch_npu::memory
