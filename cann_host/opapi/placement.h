// Results of ATen functions that have no out= form land in the caller's output without a copy: while such a
// function runs, the CPU allocator serves an allocation of exactly the output's size from the output's own
// memory.
//
// A temporary of the same size may take that place instead. That is harmless: nothing reads an output before
// the operator wrote it, and a result that landed elsewhere is copied by assign(). An output that shares
// memory with an input (an operator in place) is read, and therefore not offered. Only memory that becomes a
// tensor is placed; raw allocations (oneDNN's buffers) are freed by address and come from the heap.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <initializer_list>
#include <optional>
#include <tuple>
#include <utility>
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

namespace detail {
/// Puts each result into its output, where one result may lie in the memory of another output.
void assign_all(at::ArrayRef<at::Tensor> outs, at::ArrayRef<at::Tensor> results);

inline at::Tensor wanted(const at::Tensor& out) { return out; }
inline at::Tensor wanted(const std::optional<at::Tensor>& out) { return out.value_or(at::Tensor()); }
}  // namespace detail

/// Several outputs of one function: `assign(std::tie(out, indices), at::f(…))`. Outputs that were not asked
/// for and results that the function left undefined are dropped.
template <class... Outs, class... Results>
void assign(const std::tuple<Outs&...>& outs, const std::tuple<Results...>& results) {
  static_assert(sizeof...(Outs) == sizeof...(Results));
  const auto as_array = [](const auto&... tensors) {
    return std::array<at::Tensor, sizeof...(tensors)>{detail::wanted(tensors)...};
  };
  detail::assign_all(std::apply(as_array, outs), std::apply(as_array, results));
}

}  // namespace cann_host
