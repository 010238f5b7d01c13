#include "torch_npu/csrc/distributed/work.h"

#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <thread>

#include "torch_npu/csrc/device/stream.h"
#include "torch_npu/csrc/memory/caching_allocator.h"

namespace torch_npu::distributed {

WorkHCCL::WorkHCCL(c10::Stream stream, int rank, c10d::OpType type, std::vector<at::Tensor> used,
                   std::vector<at::Tensor> results, bool blocks_host)
    : Work(rank, type),
      stream_(stream),
      done_(c10::DeviceType::PrivateUse1),
      used_(std::move(used)),
      results_(std::move(results)),
      blocks_host_(blocks_host) {
  done_.record(stream_);
}

WorkHCCL::~WorkHCCL() {
  if (waited_) return;
  // Nobody's stream has waited: the memory must not be used again before the collective has ended.
  for (const at::Tensor& tensor : used_) {
    memory::caching_allocator().recordStream(tensor.storage().data_ptr(), stream_);
  }
}

bool WorkHCCL::isCompleted() { return done_.query(); }

bool WorkHCCL::isSuccess() const { return true; }  // what fails raises where the host waits for the device

void WorkHCCL::synchronize() {
  const c10::impl::VirtualGuardImpl device(c10::DeviceType::PrivateUse1);
  done_.block(device.getStream(stream_.device()));
  waited_ = true;
  used_.clear();
}

bool WorkHCCL::wait(std::chrono::milliseconds timeout) {
  synchronize();
  if (blocks_host_ && timeout == kNoTimeout) device::synchronize_stream(stream_);
  if (timeout == kNoTimeout) return true;
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!done_.query()) {
    TORCH_CHECK_WITH(DistBackendError, std::chrono::steady_clock::now() < end, "a collective (",
                     c10d::opTypeToString(retrieveOpType()), ") has not ended after ", timeout.count(),
                     " ms");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

std::vector<at::Tensor> WorkHCCL::result() { return results_; }

c10::intrusive_ptr<c10::ivalue::Future> WorkHCCL::getFuture() {
  if (!future_) {
    // It records events of its own on the current stream, for whoever waits for it.
    const c10::StreamGuard guard(stream_);
    const std::vector<c10::Device> devices{stream_.device()};
    future_ =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    future_->markCompleted(at::IValue(results_));
  }
  return future_;
}

}  // namespace torch_npu::distributed
