// Devices, contexts, and which of them the calling thread has chosen.
#pragma once

#include <cann/acl.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>

#include "handle_table.h"

namespace cann_host {

class Stream;
struct Context;

/// Core counts that were set for a device or a stream; 0 where none was.
struct CoreLimits {
  std::atomic<uint32_t> cube{0};
  std::atomic<uint32_t> vector{0};

  std::atomic<uint32_t>& of(aclrtDevResLimitType type);
};

struct Device {
  int32_t id;
  int32_t physical_id;
  std::atomic<bool> in_use{false};  // between aclrtSetDevice and aclrtResetDevice
  std::atomic<size_t> memory_used{0};
  std::atomic<size_t> memory_peak{0};
  Stream* default_stream = nullptr;
  Context* primary = nullptr;
  CoreLimits limits;

  /// Throws ACL_ERROR_RT_MEMORY_ALLOCATION if fewer than `size` bytes are free.
  void take_memory(size_t size);
  void give_memory(size_t size) { memory_used.fetch_sub(size, std::memory_order_relaxed); }
};

/// A context does no more than name a device; explicit ones share the device's default stream with the
/// primary one.
struct Context {
  Device* device;
  bool primary;
  std::atomic<int64_t> deterministic{0};
  std::atomic<int64_t> debug_kernel{0};
  std::atomic<int64_t> strong_consistency{0};
};

extern HandleTable<Context, 1 << 16> contexts;

/// The calling thread's context; null before aclrtSetDevice. In the static TLS block, as every launch reads
/// it.
extern thread_local Context* thread_context __attribute__((tls_model("initial-exec")));

uint32_t device_count();
/// Throws ACL_ERROR_RT_INVALID_DEVICEID.
Device& device_of(int64_t id);
/// Throws ACL_ERROR_RT_CONTEXT_NULL if the thread has chosen none.
inline Device& current_device() {
  if (!thread_context) [[unlikely]]
    refuse(ACL_ERROR_RT_CONTEXT_NULL, "this thread has no current device; call aclrtSetDevice first");
  return *thread_context->device;
}
/// The same, but a thread that has chosen none gets the first device with it, as in CANN since 8.3.
Device& current_or_first_device();
inline Context& current_context() {
  current_device();
  return *thread_context;
}

using Deadline = std::optional<std::chrono::steady_clock::time_point>;
/// From milliseconds; -1 waits for ever. Throws ACL_ERROR_INVALID_PARAM for other negative numbers.
Deadline deadline_after(int32_t milliseconds);

}  // namespace cann_host
