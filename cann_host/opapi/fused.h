// What host operators need to hand their tensors to cann_host/kernels/fused.h.
#pragma once

#include <ATen/ATen.h>

#include <optional>

#include "cann_host/kernels/fused.h"

namespace cann_host {

/// float32, float16 or bfloat16; phase 1 lets nothing else through.
inline kernels::DataType kernel_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kHalf:
      return kernels::DataType::float16;
    case at::kBFloat16:
      return kernels::DataType::bfloat16;
    default:
      TORCH_INTERNAL_ASSERT(tensor.scalar_type() == at::kFloat);
      return kernels::DataType::float32;
  }
}

/// An input as the kernels want it.
inline at::Tensor dense(const at::Tensor& tensor) { return tensor.contiguous(); }
/// The same, of a type; undefined stays undefined.
inline at::Tensor dense(const std::optional<at::Tensor>& tensor, at::ScalarType dtype) {
  return tensor.has_value() && tensor->defined() ? tensor->to(dtype).contiguous() : at::Tensor();
}

inline const void* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

/// Memory for a result: the output's own where it is contiguous and of the wanted dtype, else a temporary
/// that is copied into the output at the end of the object's life.
class Result {
 public:
  explicit Result(const at::Tensor& out) : Result(out, out.scalar_type()) {}
  Result(const at::Tensor& out, at::ScalarType dtype)
      : out_(out),
        dense_(out.is_contiguous() && out.scalar_type() == dtype
                   ? out
                   : at::empty(out.sizes(), out.options().dtype(dtype))) {}
  Result(const Result&) = delete;
  ~Result() {
    if (!dense_.is_same(out_)) out_.copy_(dense_);
  }
  void* data() const { return dense_.mutable_data_ptr(); }
  float* floats() const { return dense_.mutable_data_ptr<float>(); }
  const at::Tensor& tensor() const { return dense_; }

 private:
  at::Tensor out_, dense_;
};

/// Parameters have the type of the data or float32; any other is widened to float32.
inline at::Tensor parameter_like(const at::Tensor& parameter, const at::Tensor& data) {
  const bool same = parameter.scalar_type() == data.scalar_type();
  return parameter.to(same ? data.scalar_type() : at::kFloat).contiguous();
}

}  // namespace cann_host
