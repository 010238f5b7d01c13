#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <memory>
#include <optional>

namespace torch_npu::graph {

/// Memory that graphs share which never run at the same time.
///
/// What a forward leaves for its backward lies there as well, so that between the two the lane is taken:
/// another call uses another lane. One thread at a time asks and orders; a backward may end in any thread.
class Lane {
 public:
  Lane();

  c10::MempoolId_t pool() const { return pool_; }
  /// Whether no forward waits for its backward.
  bool is_free() const;
  /// Makes the current stream wait for the last use of the lane.
  void order();

  /// A forward whose backward may come. The lane is free when it is done, or gone with the node of autograd.
  struct AwaitedBackward {
    std::atomic<bool> done = false;
  };
  std::shared_ptr<AwaitedBackward> await_backward();

 private:
  c10::MempoolId_t pool_;
  std::weak_ptr<AwaitedBackward> awaits_;
  std::optional<c10::Stream> last_;  // that the lane was used on
};

}  // namespace torch_npu::graph
