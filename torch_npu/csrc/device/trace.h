#pragma once

#include <atomic>
#include <cstdint>

/// Tells an observer what happens to memory, events and streams, for the check of races
/// (torch_npu/npu/_sanitizer.py). Costs one load while there is none. The observer takes Python's lock, so no
/// lock of ours may be held.
namespace torch_npu::device {

enum class Trace : int8_t {
  kEventDeletion,
  kEventRecord,  // the event, the stream
  kEventWait,    // the event, the stream
  kEventSynchronization,
  kMemoryAllocation,
  kMemoryDeallocation,
  kStreamSynchronization,
  kDeviceSynchronization,
};

/// Called with CANN's handles, or with an address.
using TraceObserver = void (*)(Trace what, const void* first, const void* second);

inline constinit std::atomic<TraceObserver> trace_observer{nullptr};

inline void trace(Trace what, const void* first = nullptr, const void* second = nullptr) {
  if (const TraceObserver observer = trace_observer.load(std::memory_order_acquire)) [[unlikely]]
    observer(what, first, second);
}

}  // namespace torch_npu::device
