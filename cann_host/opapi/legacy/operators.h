// The operators of the legacy interface, each one ATen expression over the call's tensors and attributes.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "cann_host/runtime/legacy.h"

namespace cann_host::legacy {

/// A call as an operator sees it. Everything that is missing or of another type throws c10::Error.
class Arguments {
 public:
  explicit Arguments(const LegacyCall& call) : call_(call) {}

  size_t inputs() const { return call_.inputs.size(); }
  bool has(size_t i) const;
  /// Input i, whatever format it lies in.
  at::Tensor operator[](size_t i) const;
  /// The same in float32 where it is float16 or bfloat16: for operators of several steps, which the NPU
  /// rounds once.
  at::Tensor wide(size_t i) const;
  at::Scalar number(size_t i) const { return (*this)[i].item(); }
  /// A list of numbers in an input.
  std::vector<int64_t> list(size_t i) const;
  std::optional<at::Tensor> optional(size_t i) const;

  at::IntArrayRef sizes(size_t i) const { return output(i).dims; }
  at::ScalarType dtype(size_t i) const;
  /// Puts value into output i: converted to its dtype, broadcast to its shape.
  void set(size_t i, const at::Tensor& value) const;
  /// The same where the operator finds the shape, and the client made room.
  void set_found(size_t i, const at::Tensor& value) const;

  template <class T>
  T attribute(const char* name) const {
    const auto found = call_.attributes.find(name);
    TORCH_CHECK(found != call_.attributes.end(), "attribute ", name, " is missing");
    const T* value = std::get_if<T>(&found->second);
    TORCH_CHECK(value, "attribute ", name, " has another type than expected");
    return *value;
  }
  template <class T>
  T attribute(const char* name, T otherwise) const {
    return call_.attributes.contains(name) ? attribute<T>(name) : otherwise;
  }
  bool flag(const char* name) const { return attribute<bool>(name, false); }

 private:
  const LegacyTensor& output(size_t i) const;

  const LegacyCall& call_;
};

using Operator = void (*)(const Arguments&);
using Table = std::unordered_map<std::string, Operator>;

Table pointwise_operators();
Table activation_operators();
Table matrix_operators();
Table convolution_operators();
Table shape_operators();
Table reduction_operators();
Table random_operators();
Table box_operators();
Table suppression_operators();
Table optimizer_operators();
Table statistics_operators();
Table overflow_operators();
Table recurrent_operators();
Table quantization_operators();
Table box_target_operators();
Table region_operators();
Table deformable_operators();

}  // namespace cann_host::legacy
