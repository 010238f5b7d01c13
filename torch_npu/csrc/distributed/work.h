// A collective that is on its stream: what torch.distributed waits for.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Stream.h>

#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace torch_npu::distributed {

class WorkHCCL final : public c10d::Work {
 public:
  /// The work that `stream` has now. Tensors that it reads or writes are `used` until the caller has waited;
  /// `results` are what it is for.
  WorkHCCL(c10::Stream stream, int rank, c10d::OpType type, std::vector<at::Tensor> used,
           std::vector<at::Tensor> results, bool blocks_host = false);
  ~WorkHCCL() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  /// Makes the current stream wait. The host waits where a time limit is given, and for a barrier.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const c10::Stream stream_;
  c10::Event done_;
  std::vector<at::Tensor> used_, results_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  const bool blocks_host_;
  bool waited_ = false;
};

}  // namespace torch_npu::distributed
