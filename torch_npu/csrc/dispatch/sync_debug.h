// torch.npu.set_sync_debug_mode: tells where a program makes the host wait for the device.
#pragma once

#include <atomic>

namespace torch_npu {

enum class SyncDebug : int { kOff = 0, kWarn = 1, kError = 2 };

namespace detail {
inline std::atomic<SyncDebug> sync_debug{SyncDebug::kOff};
void report_synchronization(const char* what);
}  // namespace detail

/// To be called before the host waits for work that the program did not wait for by name: `what` is the
/// operation ("tensor.item()"). Warns or raises as the mode says.
inline void note_synchronization(const char* what) {
  if (detail::sync_debug.load(std::memory_order_relaxed) != SyncDebug::kOff) [[unlikely]]
    detail::report_synchronization(what);
}

}  // namespace torch_npu
