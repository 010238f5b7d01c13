#include "torch_npu/csrc/graph/lane.h"

#include <c10/core/Event.h>

#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/device/stream.h"
#include "torch_npu/csrc/graph/npu_graph.h"

namespace torch_npu::graph {

Lane::Lane() : pool_(pool_handle()) {}

bool Lane::is_free() const {
  const auto awaited = awaits_.lock();
  return awaited == nullptr || awaited->done.load(std::memory_order_acquire);
}

void Lane::order() {
  const c10::Stream current = device::current_stream(device::current_device());
  if (last_ == current) return;
  if (last_.has_value()) {
    c10::Event used(c10::DeviceType::PrivateUse1);
    used.record(*last_);
    used.block(current);
  }
  last_ = current;
}

std::shared_ptr<Lane::AwaitedBackward> Lane::await_backward() {
  auto awaited = std::make_shared<AwaitedBackward>();
  awaits_ = awaited;
  return awaited;
}

}  // namespace torch_npu::graph
