#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <set>
#include <vector>

namespace torch_npu::memory {

/// What a device's allocator did, for torch.npu.memory._snapshot(): the last events, each with the call stack
/// that the recorder took. All members but gather() and enabled() are guarded by the lock of the pool that
/// owns it.
class History {
 public:
  using Context = std::shared_ptr<c10::GatheredContext>;
  using Event = c10::CachingDeviceAllocator::TraceEntry;
  using Level = c10::CachingDeviceAllocator::RecordContext;

  struct Options {
    bool enabled = false;
    Level contexts = Level::NEVER;                                    // which events get a call stack
    c10::CachingDeviceAllocator::CreateContextFn recorder = nullptr;  // takes the call stack
    size_t max_events = 0;                                            // older ones are dropped
    std::set<Event::Action> skipped;
    bool clear = false;  // forget earlier events
  };

  void configure(const Options& options);

  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }

  /// The call stack if events of this level get one. Taken before the pool's lock, since Python's lock may be
  /// needed.
  Context gather(Level level) const;

  /// `address` is the free memory of the device for an OOM event.
  void record(Event::Action action, c10::DeviceIndex device, const void* address, size_t size, void* stream,
              c10::MempoolId_t pool, const Context& context);

  /// Oldest first.
  std::vector<Event> events() const;

 private:
  std::atomic<bool> enabled_{false};
  std::atomic<Level> contexts_{Level::NEVER};
  std::atomic<c10::CachingDeviceAllocator::CreateContextFn> recorder_{nullptr};
  size_t max_events_ = 0;
  std::set<Event::Action> skipped_;
  std::vector<Event> ring_;  // full: the oldest event is at next_
  size_t next_ = 0;
};

}  // namespace torch_npu::memory
