// Scratch memory of CANN's operators that the caller of a kernel provides or asks for, instead of the pool.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

namespace torch_npu {

namespace detail {

/// What launches of this thread do about workspaces while one of the guards below is alive.
struct WorkspaceMode {
  const std::optional<at::Tensor>* given = nullptr;
  int64_t* largest = nullptr;
};
inline thread_local constinit const WorkspaceMode* workspace_mode = nullptr;

class WorkspaceGuard {
 public:
  explicit WorkspaceGuard(WorkspaceMode mode) : mode_(mode), outer_(workspace_mode) {
    workspace_mode = &mode_;
  }
  ~WorkspaceGuard() { workspace_mode = outer_; }
  WorkspaceGuard(const WorkspaceGuard&) = delete;

 private:
  WorkspaceMode mode_;
  const WorkspaceMode* outer_;
};

}  // namespace detail

/// Operators take this tensor as their workspace; one that needs more raises.
class GivenWorkspace {
 public:
  explicit GivenWorkspace(const std::optional<at::Tensor>& workspace)
      : guard_({workspace.has_value() ? &workspace : nullptr, nullptr}) {}

 private:
  detail::WorkspaceGuard guard_;
};

/// Operators are not launched; only the bytes that they would want are found out.
class MeasuredWorkspace {
 public:
  MeasuredWorkspace() : guard_({nullptr, &largest_}) {}
  int64_t bytes() const { return largest_; }

 private:
  int64_t largest_ = 0;
  detail::WorkspaceGuard guard_;
};

/// The tensors that a kernel writes: those that were given, which must look like those that it would have
/// made; a given one that the call does not use becomes 0, and the one that was made takes its place.
template <size_t N>
std::array<at::Tensor, N> results_into(const char* op, std::array<at::Tensor, N> made, at::TensorList given,
                                       const std::array<bool, N>& used) {
  TORCH_CHECK_VALUE(given.size() == N, op, ": out must be a list of ", N, " tensors, got ", given.size());
  for (size_t i = 0; i < N; ++i) {
    if (!used[i]) {
      at::Tensor unused = given[i];
      unused.zero_();
      continue;
    }
    TORCH_CHECK_VALUE(given[i].sizes() == made[i].sizes() && given[i].scalar_type() == made[i].scalar_type(),
                      op, ": out[", i, "] must be ", made[i].scalar_type(), made[i].sizes(), ", got ",
                      given[i].scalar_type(), given[i].sizes());
    made[i] = given[i];
  }
  return made;
}

}  // namespace torch_npu
