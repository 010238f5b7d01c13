#include "torch_npu/csrc/ops/dynamic_output.h"

#include <memory>

#include "torch_npu/csrc/device/stream.h"
#include "torch_npu/csrc/dispatch/sync_debug.h"
#include "torch_npu/csrc/graph/recording.h"

namespace torch_npu {

namespace {

const at::Tensor& unrecorded(const char* op, const at::Tensor& tensor) {
  graph::require_no_recording(op, "the shape of its result depends on the data", tensor.device().index());
  note_synchronization(op);
  return tensor;
}

}  // namespace

DynamicOutput::DynamicOutput(const char* op, at::Tensor largest)
    : tensor_(std::move(largest)), descriptor_(create_tensor(unrecorded(op, tensor_))) {}

at::Tensor DynamicOutput::finish() {
  const auto index = tensor_.device().index();
  device::synchronize_handle(device::current_stream_handle(index));
  int64_t* sizes = nullptr;
  uint64_t rank = 0;
  cann::api().aclGetViewShape.checked(descriptor_, &sizes, &rank);
  const std::unique_ptr<int64_t[]> owner(sizes);  // the caller frees it
  const size_t room = tensor_.nbytes();
  tensor_.resize_(at::IntArrayRef(sizes, rank));
  // Do not let a small result hold on to the memory of the largest possible one.
  constexpr size_t kWorthwhile = 1 << 20;
  return room - tensor_.nbytes() > kWorthwhile && tensor_.nbytes() < room / 2 ? tensor_.clone() : tensor_;
}

}  // namespace torch_npu
