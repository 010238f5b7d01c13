#pragma once

#include <c10/core/Stream.h>

#include <array>

#include "cann/acl.h"
#include "torch_npu/csrc/device/device.h"

namespace torch_npu::device {

struct CurrentStream {
  c10::StreamId id;
  aclrtStream handle;  // null until the stream is used
};

/// What the calling thread has selected. Only device.cpp and stream.cpp use it.
struct ThreadState {
  // No device: differs from every index and from -1, which stands for "the current one" in PyTorch.
  static constexpr c10::DeviceIndex kNone = -2;

  c10::DeviceIndex selected = 0;
  c10::DeviceIndex active = kNone;  // the one that CANN was told of in this thread
  std::array<CurrentStream, kMaxDevices> streams{};
};

extern constinit thread_local ThreadState thread_state;

}  // namespace torch_npu::device
