#include <ATen/native/ConvUtils.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>

#include "torch_npu/csrc/ops/kernel.h"

namespace torch_npu::ops {
namespace {

Aclnn<decltype(::aclnnConvolutionGetWorkspaceSize)> aclnn_convolution("aclnnConvolution");
Aclnn<decltype(::aclnnConvolutionBackwardGetWorkspaceSize)> aclnn_convolution_backward(
    "aclnnConvolutionBackward");

/// Channels last if one of the arguments is, as PyTorch's CPU convolutions do.
at::MemoryFormat output_format(const at::Tensor& input, const at::Tensor& weight) {
  if (!at::native::mkldnn_conv_use_channels_last(input, weight)) return at::MemoryFormat::Contiguous;
  if (input.dim() == 4) return at::MemoryFormat::ChannelsLast;
  return input.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::Contiguous;
}

/// One number stands for all spatial dimensions.
at::DimVector expanded(at::IntArrayRef values, int64_t spatial) {
  return values.size() == 1 ? at::DimVector(spatial, values[0]) : at::DimVector(values);
}

bool plain(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const auto defined_bias = bias.has_value() && bias->defined();
  return input.dim() >= 3 && input.dim() <= 5 && input.dim() == weight.dim() && same_dtype(input, weight) &&
         (!defined_bias || same_dtype(input, *bias)) && input.numel() > 0 && weight.numel() > 0;
}

}  // namespace

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                       at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                       int64_t groups) {
  same_device("convolution", input, "input", weight, "weight", bias, "bias");
  const DeviceSwitch on(DeviceSwitch::of(input, weight));
  if (!native(aclnn_convolution, kHalfAndFloat, input, weight, bias) || !plain(input, weight, bias)) {
    return fallback<at::_ops::convolution>(input, weight, bias, stride, padding, dilation, transposed,
                                           output_padding, groups);
  }
  const int64_t spatial = input.dim() - 2;
  const auto s = expanded(stride, spatial), p = expanded(padding, spatial), d = expanded(dilation, spatial),
             op = expanded(output_padding, spatial);
  const auto sizes = transposed
                         ? at::native::conv_input_size(input.sizes(), weight.sizes(), p, op, s, d, groups)
                         : at::native::conv_output_size(input.sizes(), weight.sizes(), p, s, d);
  for (int64_t size : sizes) {
    TORCH_CHECK(size >= 0, "convolution: a kernel of ", weight.sizes().slice(2), " with padding ", padding,
                " and dilation ", dilation, " does not fit into an input of shape ", input.sizes());
  }
  at::Tensor out = new_output(sizes, input.scalar_type(), input, output_format(input, weight));
  aclnn_convolution(input, weight, bias, at::IntArrayRef(s), at::IntArrayRef(p), at::IntArrayRef(d),
                    transposed, at::IntArrayRef(op), groups, out, convolution_math());
  return out;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
    at::OptionalIntArrayRef bias_sizes, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> output_mask) {
  same_device("convolution_backward", grad_output, "grad_output", input, "input", weight, "weight");
  const DeviceSwitch on(DeviceSwitch::of(grad_output, input, weight));
  if (!native(aclnn_convolution_backward, kHalfAndFloat, grad_output, input, weight) ||
      !plain(input, weight, std::nullopt) || !same_dtype(grad_output, input)) {
    return fallback<at::_ops::convolution_backward>(grad_output, input, weight, bias_sizes, stride, padding,
                                                    dilation, transposed, output_padding, groups,
                                                    output_mask);
  }
  const int64_t spatial = input.dim() - 2;
  const auto s = expanded(stride, spatial), p = expanded(padding, spatial), d = expanded(dilation, spatial),
             op = expanded(output_padding, spatial);
  const auto dtype = input.scalar_type();
  const auto format = output_format(input, weight);
  at::Tensor grad_input = new_output_if(output_mask[0], input.sizes(), dtype, input, format);
  at::Tensor grad_weight = new_output_if(output_mask[1], weight.sizes(), dtype, weight, format);
  at::Tensor grad_bias = new_output_if(output_mask[2], {grad_output.size(1)}, dtype, input);
  aclnn_convolution_backward(grad_output, input, weight, bias_sizes, at::IntArrayRef(s), at::IntArrayRef(p),
                             at::IntArrayRef(d), transposed, at::IntArrayRef(op), groups, output_mask,
                             convolution_math(), grad_input, grad_weight, grad_bias);
  return {std::move(grad_input), std::move(grad_weight), std::move(grad_bias)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward_overrideable(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> output_mask) {
  const int64_t bias_size = grad_output.size(1);
  return convolution_backward(grad_output, input, weight, at::IntArrayRef(bias_size), stride, padding,
                              dilation, transposed, output_padding, groups, output_mask);
}

at::Tensor nnpack_spatial_convolution(const at::Tensor& input, const at::Tensor& weight,
                                      const std::optional<at::Tensor>& bias, at::IntArrayRef padding,
                                      at::IntArrayRef stride) {
  return convolution(input, weight, bias, stride, padding, /*dilation=*/{1}, /*transposed=*/false,
                     /*output_padding=*/{0}, /*groups=*/1);
}

}  // namespace torch_npu::ops
