// Results of ATen functions that have no out= form land in the caller's output without a copy: while such a
// function runs, the CPU allocator serves an allocation of exactly the output's size from the output's own
// memory.
//
// A temporary of the same size may take that place instead. That is harmless: nothing reads an output before
// the operator wrote it, and a result that landed elsewhere is copied by assign(). An output that shares
// memory with an input (an operator in place) is read, and therefore not offered.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <optional>
#include <vector>

namespace cann_host {

/// Offers the memory of outputs to allocations of this thread for the lifetime of the object.
class Placement {
 public:
  /// Inputs are tensors, optional tensors and vectors of tensors.
  template <class... Inputs>
  explicit Placement(std::initializer_list<at::Tensor> outputs, const Inputs&... inputs) {
    offer(outputs);
    (withdraw(inputs), ...);
  }
  ~Placement();
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

 private:
  static void offer(std::initializer_list<at::Tensor> outputs);
  /// Takes back what shares memory with the input.
  static void withdraw(const at::Tensor& input);
  static void withdraw(const std::optional<at::Tensor>& input) {
    if (input.has_value()) withdraw(*input);
  }
  static void withdraw(const std::vector<at::Tensor>& inputs) {
    for (const auto& input : inputs) withdraw(input);
  }
};

/// Puts result into out: nothing to do where it was placed there, else a copy.
void assign(const at::Tensor& out, const at::Tensor& result);

/// Outputs that were not asked for (nullopt) are dropped.
void assign(const std::optional<at::Tensor>& out, const at::Tensor& result);

}  // namespace cann_host
