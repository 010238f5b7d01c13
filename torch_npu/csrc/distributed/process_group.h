// torch.distributed's back end "hccl": collectives of tensors on npu.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "torch_npu/csrc/distributed/communicator.h"

namespace torch_npu::distributed {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

/// Collectives run on a stream of the communicator's own: after the caller's work so far, and the caller's
/// stream waits where wait() is called. All tensors of a rank's group are on one device. A tensor must be
/// contiguous, or without gaps where elements keep their places (allreduce, broadcast, reduce): nothing is
/// copied unseen.
class ProcessGroupHCCL final : public c10d::Backend {
 public:
  struct Options final : c10d::Backend::Options {
    Options() : c10d::Backend::Options("hccl") {}
    bool is_high_priority_stream = false;
    Config hccl_config;
  };

  ProcessGroupHCCL(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                   c10::intrusive_ptr<Options> options);

  const std::string getBackendName() const override { return "hccl"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  c10::intrusive_ptr<Options> options() const { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}  // counted from 0 on each rank alike
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  /// The name by which operators that communicate find the group. If nobody has met the other ranks yet,
  /// `connect` says whether this does; it is "" otherwise.
  std::string communicator_name(c10::DeviceIndex device, bool connect);
  void eagerConnectSingleDevice(at::Device device) override;
  void shutdown() override;
  void abort() override { shutdown(); }

  /// A group of some of the ranks, given in ascending order; null on the others. Its ranks meet anew.
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options) override;

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  /// What is between startCoalescing and endCoalescing: one work for all.
  struct Coalescing {
    std::optional<c10::DeviceIndex> device;
    Tensors used, results;
    std::vector<HcclSendRecvItem> messages;  // they start together, at the end
  };
  using Launch = std::function<void(aclrtStream)>;

  Communicator& communicator(c10::DeviceIndex device);
  /// Of this rank and another: messages between them need not wait for the group's collectives.
  Communicator& pair(c10::DeviceIndex device, int peer);
  std::unique_ptr<Communicator> connect(const std::string& key, c10::DeviceIndex device, uint32_t rank,
                                        uint32_t ranks);
  WorkPtr run(Communicator& on, c10d::OpType type, Tensors used, Tensors results, const Launch& launch);
  WorkPtr message(const at::Tensor& tensor, int peer, HcclSendRecvType direction);
  void check_root(int64_t root) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<Options> options_;
  std::mutex mutex_;  // of the communicators
  std::map<std::string, std::unique_ptr<Communicator>> communicators_;
  int meetings_ = 0;                        // communicators that were made for the whole group
  std::map<std::vector<int>, int> splits_;  // how often these ranks were split off
  uint64_t sequence_ = 0;
  std::optional<Coalescing> coalescing_;
};

}  // namespace torch_npu::distributed
