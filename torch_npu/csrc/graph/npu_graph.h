#pragma once

#include <ATen/core/GraphImplInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <string>

#include "cann/acl.h"
#include "torch_npu/csrc/graph/recording.h"

namespace torch_npu::graph {

/// Work that was captured on a stream, and on those that wait for it, as one CANN model that runs as often as
/// wanted. Behind torch.npu.NPUGraph and torch.accelerator.Graph; the functions mean what they do in
/// torch.cuda.CUDAGraph.
///
/// The graph owns what its work touches: its pool (temporary and output tensors, workspaces), and each block
/// of outside memory that an operator was given. It holds that memory until reset().
class NPUGraph final : public at::GraphImplInterface {
 public:
  /// CANN has no graph apart from the model that runs, so that keep_graph makes no difference.
  explicit NPUGraph(const at::GraphImplArgs& = {}) {}
  ~NPUGraph() override;

  /// On the current stream, which may not be the default one. `pool` as pool() or graph_pool_handle() gave
  /// it; {0, 0} is a new one.
  void capture_begin(c10::MempoolId_t pool = {0, 0},
                     at::GraphCaptureMode mode = at::GraphCaptureMode::Default) override;
  void capture_end() override;

  /// CANN's models are ready when their capture ends: checks that one is there.
  void instantiate() override;
  /// During the capture: this graph is replayed once after each replay of `earlier`, as a backward after its
  /// forward, and goes on drawing random numbers where that one stopped.
  void continue_random_numbers_of(NPUGraph& earlier);
  /// On the current stream of the device that was captured.
  void replay() override;
  /// Gives up the model and all memory. While the capture is under way, ends it and forgets what it has.
  void reset() override;

  c10::MempoolId_t pool() const override;
  void enable_debug_mode() override {}
  /// The model's tasks as JSON.
  void debug_dump(const std::string& path) override;

  /// Operators, copies and other tasks.
  size_t node_count() const;
  /// What the captured work takes of the pool.
  struct Memory {
    int64_t peak = 0;   // bytes at one time, at most
    int64_t kept = 0;   // bytes of tensors that were alive when the capture ended
    int64_t total = 0;  // bytes of all tensors: what they would take if they did not share
  };
  const Memory& memory() const { return memory_; }
  /// Generators are found by themselves when an operator draws from them; kept for the API's sake.
  void register_generator_state(const at::Generator& generator);

 private:
  const Recording& captured(const char* caller) const;
  aclmdlRI end_model(c10::Stream stream);
  void abandon();
  void release() noexcept;

  std::unique_ptr<Recording> recording_;
  std::optional<c10::Stream> capturing_;  // the stream whose capture is under way
  aclmdlRI model_ = nullptr;
  bool replayed_ = false;
  c10::CachingAllocator::Stat pool_before_;
  Memory memory_;
};

/// A pool that several graphs can share.
c10::MempoolId_t pool_handle();

}  // namespace torch_npu::graph
