#include "torch_npu/csrc/ops/fused_convolution.h"

#include <ATen/ATen.h>

#include "adapter/npu_calls.h"
#include "torch_npu/csrc/ops/kernel.h"

namespace torch_npu {
namespace {

using Optional = std::optional<at::Tensor>;

Aclnn<decltype(::aclnnFusedConvolutionGetWorkspaceSize)> aclnn_fused_convolution("aclnnFusedConvolution");
Aclnn<decltype(::aclnnPackConvolutionWeightGetWorkspaceSize)> aclnn_pack_convolution_weight(
    "aclnnPackConvolutionWeight");

/// The result's sizes; raises for arguments that do not fit together.
template <class Int>
SizeList<Int> output_size(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef weight_size,
                          const Optional& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                          at::IntArrayRef dilation, int64_t groups, const Optional& residual,
                          std::string_view activation) {
  constexpr const char* op = "npu_conv2d_packed";
  TORCH_CHECK_VALUE(activation.empty() || activation == "relu", op,
                    ": activation must be empty or relu; got '", activation, "'");
  const auto in = shape_of<Int>(input);
  TORCH_CHECK_VALUE(in.size() == 4 && groups > 0 && in[1] == Int(weight_size[1] * groups), op,
                    ": input must be [N, C, H, W] with C = weight_size[1] * groups; got ", in,
                    ", weight_size=", weight_size, ", groups=", groups);
  TORCH_CHECK_VALUE(weight_size[0] % groups == 0, op, ": groups must divide the output channels; got ",
                    weight_size[0], " channels, groups=", groups);
  const bool packed = weight.scalar_type() == at::kByte;
  const int64_t bytes = packed_convolution_bytes<int64_t>(
      weight_size, static_cast<int64_t>(input.element_size()), {stride, dilation, groups});
  TORCH_CHECK_VALUE(
      packed ? weight.sym_numel() == bytes : weight.sym_sizes().equals(c10::fromIntArrayRefSlow(weight_size)),
      op, ": weight must have weight_size, or be what npu_conv2d_pack_weight made of one with ",
      "input's dtype (", bytes, " bytes); got ", weight.scalar_type(), weight.sym_sizes(),
      ", weight_size=", weight_size);
  TORCH_CHECK_TYPE(packed || weight.scalar_type() == input.scalar_type(), op,
                   ": weight must have input's dtype; got ", weight.scalar_type(), " and ",
                   input.scalar_type());
  TORCH_CHECK_VALUE(!given(bias) || (bias->dim() == 1 && bias->sym_size(0) == weight_size[0] &&
                                     bias->scalar_type() == input.scalar_type()),
                    op, ": bias must have a number for each of ", weight_size[0],
                    " channels, and input's dtype; got ", describe({{"bias", tensor_or_none(bias)}}));
  auto size = SizeList<Int>().append(in[0]).append(Int(weight_size[0]));
  for (size_t d = 0; d < 2; ++d) {
    TORCH_CHECK_VALUE(stride[d] > 0 && dilation[d] > 0 && padding[d] >= 0, op,
                      ": stride and dilation must be positive, padding not negative; got stride=", stride,
                      ", dilation=", dilation, ", padding=", padding);
    const Int room = in[d + 2] + Int(2 * padding[d] - dilation[d] * (weight_size[d + 2] - 1) - 1);
    TORCH_CHECK_VALUE(room >= Int(0), op, ": a kernel of ", weight_size.slice(2), " with padding=", padding,
                      " and dilation=", dilation, " does not fit into an input of shape ", in);
    size = std::move(size).append(room / Int(stride[d]) + Int(1));
  }
  TORCH_CHECK_VALUE(
      !given(residual) ||
          (equal<Int>(shape_of<Int>(residual), size) && residual->scalar_type() == input.scalar_type()),
      op, ": residual must have the shape and the dtype of the result; got ",
      describe({{"residual", tensor_or_none(residual)}}), " for a result of shape ", at::ArrayRef<Int>(size));
  return size;
}

/// The same, of CANN's own operators.
at::Tensor composed(const at::Tensor& input, const at::Tensor& weight, const Optional& bias,
                    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
                    const Optional& residual, std::string_view activation) {
  at::Tensor y = at::conv2d(input, weight, bias, stride, padding, dilation, groups);
  if (given(residual)) y = y + *residual;
  return activation == "relu" ? y.relu() : y;
}

bool wants_gradient(std::initializer_list<Optional> tensors) {
  return at::GradMode::is_enabled() && std::any_of(tensors.begin(), tensors.end(), [](const Optional& t) {
           return given(t) && t->requires_grad();
         });
}

}  // namespace

bool packs_convolutions() { return aclnn_pack_convolution_weight.available(); }

at::Tensor plain_convolution_weight(const at::Tensor& packed, at::IntArrayRef size, at::ScalarType dtype) {
  const auto bytes = static_cast<int64_t>(c10::multiply_integers(size) * c10::elementSize(dtype));
  return packed.narrow(0, kPackedConvolutionHeader, bytes).view(dtype).view(size);
}

at::Tensor conv2d_batch_norm(const at::Tensor& input, const at::Tensor& weight, const Optional& bias,
                             const at::Tensor& running_mean, const at::Tensor& running_var,
                             const Optional& norm_weight, const Optional& norm_bias, double eps,
                             at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                             int64_t groups, const Optional& residual, std::string_view activation) {
  auto scale = (running_var.to(at::kFloat) + eps).rsqrt();
  if (given(norm_weight)) scale = scale * *norm_weight;
  auto shift = given(bias) ? (*bias - running_mean) * scale : -running_mean * scale;
  if (given(norm_bias)) shift = shift + *norm_bias;
  const auto dtype = weight.scalar_type();
  const auto folded = (weight * scale.view({-1, 1, 1, 1})).to(dtype);
  shift = shift.to(dtype);
  if (wants_gradient({input, weight, bias, running_mean, running_var, norm_weight, norm_bias, residual})) {
    return composed(input, folded, shift, stride, padding, dilation, groups, residual, activation);
  }
  return call::npu_conv2d_packed(input, folded, weight.sizes(), shift, stride, padding, dilation, groups,
                                 residual, activation);
}

namespace ops {

at::Tensor npu_conv2d_packed(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef weight_size,
                             const Optional& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                             at::IntArrayRef dilation, int64_t groups, const Optional& residual,
                             c10::string_view activation) {
  same_device("npu_conv2d_packed", input, "input", weight, "weight", bias, "bias", residual, "residual");
  check_dtype("npu_conv2d_packed", "input", input, kHalfAndFloat);
  const DeviceSwitch on(DeviceSwitch::of(input));
  const auto size = output_size<int64_t>(input, weight, weight_size, bias, stride, padding, dilation, groups,
                                         residual, activation);
  if (!aclnn_fused_convolution.available()) {
    const bool packed = weight.scalar_type() == at::kByte;
    return composed(input,
                    packed ? plain_convolution_weight(weight, weight_size, input.scalar_type()) : weight,
                    bias, stride, padding, dilation, groups, residual, activation);
  }
  at::Tensor out = new_output(size, input.scalar_type(), input, at::MemoryFormat::ChannelsLast);
  aclnn_fused_convolution(input, weight, weight_size, bias, residual, stride, padding, dilation, groups,
                          activation, out);
  return out;
}

at::Tensor npu_conv2d_packed_meta(const at::Tensor& input, const at::Tensor& weight,
                                  at::IntArrayRef weight_size, const Optional& bias, at::IntArrayRef stride,
                                  at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
                                  const Optional& residual, c10::string_view activation) {
  check_dtype("npu_conv2d_packed", "input", input, kHalfAndFloat);
  const auto size = output_size<c10::SymInt>(input, weight, weight_size, bias, stride, padding, dilation,
                                             groups, residual, activation);
  return at::empty_symint(at::SymIntArrayRef(size), input.options(), at::MemoryFormat::ChannelsLast);
}

}  // namespace ops
}  // namespace torch_npu
