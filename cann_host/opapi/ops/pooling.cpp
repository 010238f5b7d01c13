#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

/// Runs a pooling whose ATen kernel writes int64 indices, for a client that may want int32.
template <class Pool>
void with_long_indices(at::Tensor& indices, const Pool& pool) {
  if (indices.scalar_type() == at::kLong) {
    pool(indices);
  } else {
    auto wide = at::empty(indices.sizes(), indices.options().dtype(at::kLong));
    pool(wide);
    indices.copy_(wide);
  }
}

/// The int32 indices inside the mask of the MaxPool2dWithMask pair.
at::Tensor indices_of_mask(const at::Tensor& mask, at::IntArrayRef sizes) {
  const auto indices = at::from_blob(mask.data_ptr(), sizes, at::kInt);
  TORCH_CHECK(mask.is_contiguous() && static_cast<size_t>(mask.numel()) >= indices.nbytes(), "the mask has ",
              mask.numel(), " bytes; it must be contiguous and have 4 for each output element");
  return indices;
}

}  // namespace

void MaxPool2dWithIndices(const at::Tensor& self, at::IntArrayRef kernelSize, at::IntArrayRef stride,
                          at::IntArrayRef padding, at::IntArrayRef dilation, bool ceilMode, at::Tensor& out,
                          at::Tensor& indices) {
  with_long_indices(indices, [&](at::Tensor& wide) {
    at::max_pool2d_with_indices_out(out, wide, self, kernelSize, stride, padding, dilation, ceilMode);
  });
}

void MaxPool2dWithMask(const at::Tensor& self, at::IntArrayRef kernelSize, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool ceilMode, at::Tensor& out,
                       at::Tensor& indices) {
  auto wide = at::empty(out.sizes(), out.options().dtype(at::kLong));
  at::max_pool2d_with_indices_out(out, wide, self, kernelSize, stride, padding, dilation, ceilMode);
  indices_of_mask(indices, out.sizes()).copy_(wide);
}

void MaxPool2dWithMaskBackward(const at::Tensor& gradOutput, const at::Tensor& self,
                               const at::Tensor& indices, at::IntArrayRef kernelSize, at::IntArrayRef stride,
                               at::IntArrayRef padding, at::IntArrayRef dilation, bool ceilMode,
                               at::Tensor& gradInput) {
  const auto wide = indices_of_mask(indices, gradOutput.sizes()).to(at::kLong);
  at::max_pool2d_with_indices_backward_out(gradInput, gradOutput, self, kernelSize, stride, padding, dilation,
                                           ceilMode, wide);
}

void MaxPool3dWithArgmax(const at::Tensor& self, at::IntArrayRef kernelSize, at::IntArrayRef stride,
                         at::IntArrayRef padding, at::IntArrayRef dilation, bool ceilMode, at::Tensor& out,
                         at::Tensor& indices) {
  with_long_indices(indices, [&](at::Tensor& wide) {
    at::max_pool3d_with_indices_out(out, wide, self, kernelSize, stride, padding, dilation, ceilMode);
  });
}

void AdaptiveMaxPool2d(const at::Tensor& self, at::IntArrayRef outputSize, at::Tensor& out,
                       at::Tensor& indices) {
  with_long_indices(indices,
                    [&](at::Tensor& wide) { at::adaptive_max_pool2d_out(out, wide, self, outputSize); });
}

void AdaptiveMaxPool3d(const at::Tensor& self, at::IntArrayRef outputSize, at::Tensor& out,
                       at::Tensor& indices) {
  with_long_indices(indices,
                    [&](at::Tensor& wide) { at::adaptive_max_pool3d_out(out, wide, self, outputSize); });
}

}  // namespace cann_host::host
