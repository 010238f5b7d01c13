// Convolutions with what follows them in one operator, and weights packed for it: what the rows of
// opspec/npu/convolution.yaml call.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "torch_npu/csrc/dispatch/npu_operator.h"

namespace torch_npu {

/// Bytes before the values of a packed weight, in which their layout is described.
inline constexpr int64_t kPackedConvolutionHeader = 1024;

/// What a weight's layout may depend on, beside its sizes.
struct ConvolutionOptions {
  at::IntArrayRef stride, dilation;
  int64_t groups;
};

/// Memory for a weight in any layout that pads channels to 16, with some room for padded rows, and for one of
/// 3x3 in float32 for Winograd's algorithm (16 numbers in place of 9). A weight that needs more stays as it
/// is.
template <class Int>
Int packed_convolution_bytes(at::ArrayRef<Int> weight, int64_t item_size, const ConvolutionOptions& options) {
  const auto padded = [](const Int& channels, int64_t to = 16) {
    return (channels + Int(to - 1)) / Int(to) * Int(to);
  };
  const auto all_one = [](at::IntArrayRef list) { return list[0] == 1 && list[1] == 1; };
  const Int kernel = weight[2] * weight[3], groups = Int(options.groups);
  const bool depthwise = weight[0] == groups && weight[1] == Int(1);
  Int values = depthwise ? padded(weight[0]) * kernel
                         : groups * padded(weight[0] / groups) * padded(weight[1]) * kernel;
  values = values + values / Int(32);
  if (item_size == 4 && options.groups == 1 && weight[2] == Int(3) && weight[3] == Int(3) &&
      all_one(options.stride) && all_one(options.dilation)) {
    values = std::max(values, Int(16) * weight[1] * padded(weight[0], 32));
  }
  return Int(kPackedConvolutionHeader) + values * Int(item_size);
}

template <class Int>
Int packed_convolution_bytes(const at::Tensor& weight, at::IntArrayRef stride, at::IntArrayRef dilation,
                             int64_t groups) {
  return packed_convolution_bytes<Int>(shape_of<Int>(weight), static_cast<int64_t>(weight.element_size()),
                                       {stride, dilation, groups});
}

/// Whether an input of the size has the channels of a weight.
inline bool has_channels(at::IntArrayRef input_size, const at::Tensor& weight, int64_t groups) {
  return weight.sym_size(1) * groups == input_size[1];
}

/// Whether this CANN packs weights; else they keep their layout.
bool packs_convolutions();

/// The values in the memory of a packed weight, as a weight that kept its layout.
at::Tensor plain_convolution_weight(const at::Tensor& packed, at::IntArrayRef size, at::ScalarType dtype);

/// See npu_conv2d_batch_norm.
at::Tensor conv2d_batch_norm(const at::Tensor& input, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias, const at::Tensor& running_mean,
                             const at::Tensor& running_var, const std::optional<at::Tensor>& norm_weight,
                             const std::optional<at::Tensor>& norm_bias, double eps, at::IntArrayRef stride,
                             at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
                             const std::optional<at::Tensor>& residual, std::string_view activation);

}  // namespace torch_npu
