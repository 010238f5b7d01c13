// Work of the device with its times, for torch.profiler (profiler.cpp). Costs one load while nobody profiles.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>

#include "cann/acl.h"

namespace torch_npu::device {

struct Activity {
  const char* name;  // of the operator, as CANN calls it; lives as long as the process
  c10::DeviceIndex device;
  aclrtStream stream;
  int64_t begin, end;    // nanoseconds since the epoch
  uint64_t correlation;  // which of PyTorch's operators launched it, as the profiler counts them
};

namespace detail {
inline constinit std::atomic<bool> records_activities{false};
int64_t begin_activity(aclrtStream stream);
void end_activity(const char* name, c10::DeviceIndex device, aclrtStream stream, int64_t begin);
}  // namespace detail

/// Records what the device does between the constructor and the destructor: the launch and the work are one
/// on streams that run work inline, as those of the software CANN do by default. Other streams are left out.
class ActivityScope {
 public:
  /// `name`: null for what is recorded into a graph rather than run.
  ActivityScope(const char* name, c10::DeviceIndex device, aclrtStream stream)
      : name_(name), device_(device), stream_(stream) {
    if (name && detail::records_activities.load(std::memory_order_relaxed)) [[unlikely]]
      begin_ = detail::begin_activity(stream);
  }
  ~ActivityScope() {
    if (begin_ != 0) [[unlikely]]
      detail::end_activity(name_, device_, stream_, begin_);
  }
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  const char* name_;
  c10::DeviceIndex device_;
  aclrtStream stream_;
  int64_t begin_ = 0;  // 0: not recorded
};

}  // namespace torch_npu::device
