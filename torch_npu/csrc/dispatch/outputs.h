// Outputs of native kernels. For structured overloads PyTorch's own meta function says shape, dtype and
// strides; these classes catch what it says and allocate, resize or check accordingly.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <functional>

namespace torch_npu {

/// A new npu tensor; strides empty means contiguous. The device is that of `options`.
at::Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, const at::TensorOptions& options);

/// A new dense npu tensor on the device of `like`.
at::Tensor new_output(at::IntArrayRef sizes, at::ScalarType dtype, const at::Tensor& like,
                      at::MemoryFormat format = at::MemoryFormat::Contiguous);

/// As `like` in sizes and in the order of its strides (PyTorch's preserve_format).
at::Tensor new_output_like(const at::Tensor& like, at::ScalarType dtype);

/// Contiguous, as `like` but for the dtype.
at::Tensor new_plain_output(const at::Tensor& like, at::ScalarType dtype);

/// Gives an out= tensor its shape, as PyTorch's out= semantics ask; raises for a wrong dtype or device.
void resize_given(const at::Tensor& out, at::IntArrayRef sizes, at::IntArrayRef strides,
                  const at::TensorOptions& options);

/// The out= forms of new_output and new_output_like.
void resize_output(const at::Tensor& out, at::IntArrayRef sizes, at::ScalarType dtype, const at::Tensor& like,
                   at::MemoryFormat format = at::MemoryFormat::Contiguous);
void resize_output_like(const at::Tensor& out, const at::Tensor& like, at::ScalarType dtype);

/// Raises if an in-place result would not fit into self.
void check_inplace_result(const at::Tensor& self, at::IntArrayRef sizes, const at::TensorOptions& options);

template <class Meta>
inline constexpr bool is_tensor_iterator = std::is_base_of_v<at::TensorIteratorBase, Meta>;

/// Shared part: hands the output on to TensorIterator, which keeps its own list.
template <class Meta, class Self>
class OutputRule : public Meta {
 public:
  void set_output_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    set_output_raw_strided(i, sizes, strides, options);
  }
  void set_output_raw_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    static_cast<Self*>(this)->provide(i, sizes, strides, options);
    if constexpr (is_tensor_iterator<Meta>) Meta::set_output_raw_strided(i, sizes, strides, options);
  }
  const at::Tensor& maybe_get_output(int64_t i) override { return static_cast<Self*>(this)->output(i); }
};

/// For functional overloads: allocates.
template <class Meta, size_t N>
class NewOutputs final : public OutputRule<Meta, NewOutputs<Meta, N>> {
 public:
  void provide(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, const at::TensorOptions& options) {
    outputs_[i] = new_tensor(sizes, strides, options);
  }
  at::Tensor& output(int64_t i) { return outputs_[i]; }

 private:
  std::array<at::Tensor, N> outputs_;
};

/// For out= overloads: resizes.
template <class Meta, size_t N>
class GivenOutputs final : public OutputRule<Meta, GivenOutputs<Meta, N>> {
 public:
  template <class... T>
  explicit GivenOutputs(T&... outputs) : outputs_{std::ref(outputs)...} {}
  void provide(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, const at::TensorOptions& options) {
    resize_given(outputs_[i], sizes, strides, options);
  }
  at::Tensor& output(int64_t i) { return outputs_[i]; }

 private:
  std::array<std::reference_wrapper<at::Tensor>, N> outputs_;
};

/// For in-place overloads: checks.
template <class Meta, size_t N>
class InplaceOutput final : public OutputRule<Meta, InplaceOutput<Meta, N>> {
 public:
  explicit InplaceOutput(at::Tensor& self) : self_(self) {}
  void provide(int64_t, at::IntArrayRef sizes, at::IntArrayRef, const at::TensorOptions& options) {
    check_inplace_result(self_, sizes, options);
  }
  at::Tensor& output(int64_t) { return self_; }

 private:
  at::Tensor& self_;
};

}  // namespace torch_npu
