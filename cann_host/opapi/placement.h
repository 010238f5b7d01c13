// Results of ATen functions that have no out= form land in the caller's output without a copy: while such a
// function runs, the CPU allocator serves an allocation of exactly the output's size from the output's own
// memory.
//
// A temporary of the same size may take that place instead. That is harmless: nothing reads an output before
// the operator wrote it, and a result that landed elsewhere is copied by assign().
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

namespace cann_host {

/// Offers the memory of outputs to allocations of this thread for the lifetime of the object.
class Placement {
 public:
  explicit Placement(std::initializer_list<at::Tensor> outputs);
  ~Placement();
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;
};

/// Puts result into out: nothing to do where it was placed there, else a copy.
void assign(const at::Tensor& out, const at::Tensor& result);

/// Outputs that were not asked for (nullopt) are dropped.
void assign(const std::optional<at::Tensor>& out, const at::Tensor& result);

}  // namespace cann_host
