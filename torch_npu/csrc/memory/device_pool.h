#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "torch_npu/csrc/memory/arena.h"
#include "torch_npu/csrc/memory/block.h"
#include "torch_npu/csrc/memory/driver.h"
#include "torch_npu/csrc/memory/expandable_segment.h"
#include "torch_npu/csrc/memory/history.h"
#include "torch_npu/csrc/memory/holders.h"
#include "torch_npu/csrc/memory/settings.h"

namespace torch_npu::memory {

/// Which allocations go to a private pool: asked with the stream, in the allocating thread, under a lock (it
/// must not allocate).
using PoolFilter = std::function<bool(StreamHandle)>;

/// How a pool of reserved addresses is used; sizes in bytes.
struct PoolUsage {
  size_t size = 0;                     // addresses
  size_t in_use = 0, peak_in_use = 0;  // by tensors
  size_t mapped = 0, peak_mapped = 0;  // physical memory
  size_t free_mapped = 0;              // memory that nobody uses now
  size_t largest_free = 0;             // its longest stretch
  size_t live = 0;                     // allocations that are not freed, or still used by other streams
  uint64_t allocations = 0;
  uint64_t hits = 0;  // of these, served without asking the driver
};

/// The cache of one device's memory: segments from the driver, cut into blocks on demand, joined again when
/// they are free, kept for the stream that used them. A free block can be reused at once by work on its own
/// stream, because that runs after the work that used it last; other streams are made known by
/// record_stream().
///
/// Defined in device_pool.cpp (allocation and release), device_pool_segments.cpp (memory from and to the
/// driver), device_pool_arenas.cpp (private pools), device_pool_reserved.cpp (pools of reserved addresses),
/// device_pool_report.cpp (statistics) and out_of_memory.cpp.
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
  /// Takes record_stream() back: the caller knows that the stream's work on the block has ended.
  void erase_stream(Block* block, StreamHandle stream);

  /// Returns segments without live blocks to the driver: those of one private pool, or of all arenas that
  /// nobody uses, the default one among them. Private pools in use, and calls during a capture, release
  /// nothing.
  void empty_cache(c10::MempoolId_t id = kDefaultPool);

  // Private pools; NPUCachingAllocator has the same functions and says what they do.
  void retain_pool(c10::MempoolId_t id);
  void begin_allocate_to_pool(c10::MempoolId_t id, PoolFilter filter);
  void end_allocate_to_pool(c10::MempoolId_t id);
  void release_pool(c10::MempoolId_t id);
  int pool_use_count(c10::MempoolId_t id);
  void configure_pool(c10::MempoolId_t id, bool use_on_oom, bool no_split,
                      std::shared_ptr<const PluggableAllocator> source);
  void replace_source(std::shared_ptr<const PluggableAllocator> source);
  void open_reserved_pool(c10::MempoolId_t id, size_t size, bool map_all);
  void close_reserved_pool(c10::MempoolId_t id);
  void set_default_pool(c10::MempoolId_t id, bool is_default);
  PoolUsage reserved_pool_usage(c10::MempoolId_t id);
  const void* reserved_pool_base(c10::MempoolId_t id);
  c10::CachingAllocator::Stat pool_bytes(c10::MempoolId_t id, bool restart_peak);
  bool pin_unless_in(c10::MempoolId_t id, Block* block);
  void unpin(Block* block);
  void begin_capture();
  void end_capture();

  c10::CachingDeviceAllocator::DeviceStats stats();
  void reset_accumulated_stats();
  void reset_peak_stats();

  void set_memory_fraction(double fraction);
  double memory_fraction();

  /// Of one private pool, or of all arenas.
  std::vector<c10::CachingDeviceAllocator::SegmentInfo> snapshot(c10::MempoolId_t id = kDefaultPool);

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

  /// An open begin_allocate_to_pool().
  struct Route {
    Arena* arena;
    PoolFilter filter;
    std::thread::id thread;  // that opened it
  };

  size_t round_size(size_t nbytes) const;
  size_t limit();

  /// The lock, with every free block in its list. Everything but allocate(), free() and what does not look at
  /// free blocks begins with it.
  std::unique_lock<std::mutex> lock_settled();

  Block* take_free_block(StreamPool& pool, size_t size, bool is_small);
  Block* take_latest(const StreamPool& pool, size_t size);
  Block* allocate_segment(StreamPool& pool, size_t size, bool is_small);
  Block* new_segment(StreamPool& pool, void* ptr, size_t size, bool is_small);
  Block* allocate_segment_or_reclaim(StreamPool& pool, size_t size, bool is_small);
  Block* borrow_from_private_pool(StreamHandle stream, size_t size, bool is_small);
  void report_to_profiler(const Block* block, int64_t change) const;
  void record(History::Event::Action action, const Block* block, size_t size);
  [[noreturn]] void raise_out_of_memory(std::unique_lock<std::mutex>& lock, size_t requested, Arena& arena);
  std::vector<Holding> holdings(const Arena* arena);

  Arena& arena_for(StreamHandle stream);
  Arena& private_arena(c10::MempoolId_t id, const char* caller);
  Arena& reserved_arena(c10::MempoolId_t id);
  PoolUsage usage_of(const Arena& arena);
  std::vector<Arena*> arenas();
  void forget_unused_arenas();
  Segment& add_segment(Block* head, std::unique_ptr<ExpandableSegment> expandable);
  void remove_segment(Block* head);

  Block* expand(StreamPool& pool, size_t size, bool is_small);
  static size_t free_before(const Block* gap, const StreamPool& pool, bool is_small);
  static bool grows_from_top(const StreamPool& pool, bool is_small);
  Block* find_unmapped(StreamPool& pool, size_t size, bool is_small);
  Block* reserve_addresses(StreamPool& pool, bool is_small);
  void unmap(Block* block);

  void split(Block* block, size_t size);
  Block* cut(Block* block, size_t size);
  void count_inactive(Block* block, bool add);
  void count_reserved(const Block* block, bool add);
  void end_use(Block* block);
  void put_back(Block* block);
  void rejoin(Block* block);
  void settle();
  Block* join(Block* low, Block* high);
  void insert_free(Block* block);
  void remove_free(Block* block);

  void wait_for_streams(Block* block);
  void reclaim_completed();
  void reclaim_all();
  void collect_garbage(size_t size);
  bool release_oversize(StreamPool& pool, size_t size);
  void release_cached(Arena& arena);
  void release_cached();
  void release_segment(Block* block);

  Block* new_block();
  void delete_block(Block* block);

  const c10::DeviceIndex device_;
  Driver& driver_;
  const size_t tail_padding_;
  std::mutex mutex_;

  Arena default_arena_{kDefaultPool};
  std::map<c10::MempoolId_t, Arena> private_arenas_;
  std::vector<Arena*> defaults_{&default_arena_};  // the last one takes what no route does
  std::vector<Route> routes_;                      // the last one whose filter agrees counts
  int captures_ = 0;                               // under way: the streams' events cannot be asked meanwhile
  std::vector<Block*> freed_in_capture_;           // those that other streams use
  std::map<const void*, Segment> segments_;        // by address
  std::unordered_map<StreamHandle, PendingEvents> pending_;
  // The small block freed last, in no free list yet and not joined with its neighbours: mostly the next
  // allocation has its size (the result of the operator that ran before) and takes it as it is.
  Block* latest_ = nullptr;
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
