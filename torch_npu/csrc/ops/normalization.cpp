#include <ATen/native/layer_norm.h>
#include <ATen/ops/_native_batch_norm_legit_ops.h>
#include <ATen/ops/batch_norm_backward_reduce_ops.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/native_group_norm_backward_ops.h>
#include <ATen/ops/native_group_norm_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>

#include "torch_npu/csrc/ops/kernel.h"

namespace torch_npu::ops {
namespace {

Aclnn<decltype(::aclnnLayerNormGetWorkspaceSize)> aclnn_layer_norm("aclnnLayerNorm");
Aclnn<decltype(::aclnnLayerNormBackwardGetWorkspaceSize)> aclnn_layer_norm_backward("aclnnLayerNormBackward");
Aclnn<decltype(::aclnnGroupNormGetWorkspaceSize)> aclnn_group_norm("aclnnGroupNorm");
Aclnn<decltype(::aclnnGroupNormBackwardGetWorkspaceSize)> aclnn_group_norm_backward("aclnnGroupNormBackward");
Aclnn<decltype(::aclnnBatchNormGetWorkspaceSize)> aclnn_batch_norm("aclnnBatchNorm");
Aclnn<decltype(::aclnnBatchNormBackwardGetWorkspaceSize)> aclnn_batch_norm_backward("aclnnBatchNormBackward");
Aclnn<decltype(::aclnnBatchNormReduceBackwardGetWorkspaceSize)> aclnn_batch_norm_reduce_backward(
    "aclnnBatchNormReduceBackward");

using Optional = std::optional<at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

bool is_defined(const Optional& tensor) { return tensor.has_value() && tensor->defined(); }

/// Parameters may stay in float32 beside half-precision data; statistics then are float32, too.
at::ScalarType statistics_dtype(const at::Tensor& input, std::initializer_list<const Optional*> parameters) {
  for (const Optional* parameter : parameters) {
    if (is_defined(*parameter) && !same_dtype(**parameter, input)) return at::kFloat;
  }
  return input.scalar_type();
}

/// The mixtures of dtypes that PyTorch allows.
bool dtypes_fit(const at::Tensor& input, std::initializer_list<const Optional*> parameters) {
  const Optional* first = nullptr;
  for (const Optional* parameter : parameters) {
    if (!is_defined(*parameter)) continue;
    if (first != nullptr && !same_dtype(**first, **parameter)) return false;
    first = parameter;
  }
  return first == nullptr || same_dtype(**first, input) || (*first)->scalar_type() == at::kFloat;
}

}  // namespace

Three native_layer_norm(const at::Tensor& input, at::IntArrayRef normalized_shape, const Optional& weight,
                        const Optional& bias, double eps) {
  same_device("native_layer_norm", input, "input", weight, "weight", bias, "bias");
  const DeviceSwitch on(DeviceSwitch::of(input));
  if (!native(aclnn_layer_norm, kHalfAndFloat, input, weight, bias) || !dtypes_fit(input, {&weight, &bias}) ||
      input.numel() == 0) {
    return fallback<at::_ops::native_layer_norm>(input, normalized_shape, weight, bias, eps);
  }
  at::native::_check_layer_norm_inputs(input, normalized_shape, weight.value_or(at::Tensor()),
                                       bias.value_or(at::Tensor()));
  at::DimVector stat_sizes(input.sizes());
  std::fill(stat_sizes.end() - normalized_shape.size(), stat_sizes.end(), 1);
  const auto stat_dtype = statistics_dtype(input, {&weight, &bias});
  at::Tensor out = new_output(input.sizes(), input.scalar_type(), input);
  at::Tensor mean = new_output(stat_sizes, stat_dtype, input);
  at::Tensor rstd = new_output(stat_sizes, stat_dtype, input);
  aclnn_layer_norm(input, normalized_shape, weight, bias, eps, out, mean, rstd);
  return {std::move(out), std::move(mean), std::move(rstd)};
}

Three native_layer_norm_backward(const at::Tensor& grad_out, const at::Tensor& input,
                                 at::IntArrayRef normalized_shape, const at::Tensor& mean,
                                 const at::Tensor& rstd, const Optional& weight, const Optional& bias,
                                 std::array<bool, 3> output_mask) {
  same_device("native_layer_norm_backward", grad_out, "grad_out", input, "input", weight, "weight");
  const DeviceSwitch on(DeviceSwitch::of(input));
  if (!native(aclnn_layer_norm_backward, kHalfAndFloat, grad_out, input, mean, rstd, weight, bias) ||
      input.numel() == 0 || (output_mask[1] && !is_defined(weight)) ||
      (output_mask[2] && !is_defined(bias))) {
    return fallback<at::_ops::native_layer_norm_backward>(grad_out, input, normalized_shape, mean, rstd,
                                                          weight, bias, output_mask);
  }
  at::Tensor grad_input = new_output_if(output_mask[0], input.sizes(), input.scalar_type(), input);
  at::Tensor grad_weight, grad_bias;
  if (output_mask[1]) grad_weight = new_output(weight->sizes(), weight->scalar_type(), *weight);
  if (output_mask[2]) grad_bias = new_output(bias->sizes(), bias->scalar_type(), *bias);
  aclnn_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask,
                            grad_input, grad_weight, grad_bias);
  return {std::move(grad_input), std::move(grad_weight), std::move(grad_bias)};
}

Three native_group_norm(const at::Tensor& input, const Optional& weight, const Optional& bias, int64_t N,
                        int64_t C, int64_t HxW, int64_t group, double eps) {
  same_device("native_group_norm", input, "input", weight, "weight", bias, "bias");
  const DeviceSwitch on(DeviceSwitch::of(input));
  if (!native(aclnn_group_norm, kHalfAndFloat, input, weight, bias) || !dtypes_fit(input, {&weight, &bias}) ||
      input.numel() == 0) {
    return fallback<at::_ops::native_group_norm>(input, weight, bias, N, C, HxW, group, eps);
  }
  const auto stat_dtype = statistics_dtype(input, {&weight, &bias});
  at::Tensor out = new_output(input.sizes(), input.scalar_type(), input, input.suggest_memory_format());
  at::Tensor mean = new_output({N, group}, stat_dtype, input);
  at::Tensor rstd = new_output({N, group}, stat_dtype, input);
  aclnn_group_norm(input, weight, bias, N, C, HxW, group, eps, out, mean, rstd);
  return {std::move(out), std::move(mean), std::move(rstd)};
}

Three native_group_norm_backward(const at::Tensor& grad_out, const at::Tensor& input, const at::Tensor& mean,
                                 const at::Tensor& rstd, const Optional& weight, int64_t N, int64_t C,
                                 int64_t HxW, int64_t group, std::array<bool, 3> output_mask) {
  same_device("native_group_norm_backward", grad_out, "grad_out", input, "input", weight, "weight");
  const DeviceSwitch on(DeviceSwitch::of(input));
  if (!native(aclnn_group_norm_backward, kHalfAndFloat, grad_out, input, mean, rstd, weight) ||
      input.numel() == 0) {
    return fallback<at::_ops::native_group_norm_backward>(grad_out, input, mean, rstd, weight, N, C, HxW,
                                                          group, output_mask);
  }
  const auto parameter_dtype = statistics_dtype(input, {&weight});
  at::Tensor grad_input =
      new_output_if(output_mask[0], input.sizes(), input.scalar_type(), input, input.suggest_memory_format());
  at::Tensor grad_weight = new_output_if(output_mask[1], {C}, parameter_dtype, input);
  at::Tensor grad_bias = new_output_if(output_mask[2], {C}, parameter_dtype, input);
  aclnn_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask, grad_input,
                            grad_weight, grad_bias);
  return {std::move(grad_input), std::move(grad_weight), std::move(grad_bias)};
}

Three native_batch_norm(const at::Tensor& input, const Optional& weight, const Optional& bias,
                        const Optional& running_mean, const Optional& running_var, bool training,
                        double momentum, double eps) {
  same_device("native_batch_norm", input, "input", weight, "weight", bias, "bias", running_mean,
              "running_mean", running_var, "running_var");
  const DeviceSwitch on(DeviceSwitch::of(input));
  if (!native(aclnn_batch_norm, kHalfAndFloat, input, weight, bias, running_mean, running_var) ||
      !dtypes_fit(input, {&weight, &bias, &running_mean, &running_var}) || input.dim() < 2 ||
      input.numel() == 0) {
    return fallback<at::_ops::native_batch_norm>(input, weight, bias, running_mean, running_var, training,
                                                 momentum, eps);
  }
  const auto stat_dtype = statistics_dtype(input, {&weight, &bias, &running_mean, &running_var});
  const int64_t channels = training ? input.size(1) : 0;
  at::Tensor out = new_output(input.sizes(), input.scalar_type(), input, input.suggest_memory_format());
  at::Tensor save_mean = new_output({channels}, stat_dtype, input);
  at::Tensor save_invstd = new_output({channels}, stat_dtype, input);
  aclnn_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, out, save_mean,
                   save_invstd);
  return {std::move(out), std::move(save_mean), std::move(save_invstd)};
}

Three native_batch_norm_legit(const at::Tensor& input, const Optional& weight, const Optional& bias,
                              at::Tensor& running_mean, at::Tensor& running_var, bool training,
                              double momentum, double eps) {
  return native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps);
}

Three native_batch_norm_no_stats(const at::Tensor& input, const Optional& weight, const Optional& bias,
                                 bool training, double momentum, double eps) {
  return native_batch_norm(input, weight, bias, std::nullopt, std::nullopt, training, momentum, eps);
}

Three native_batch_norm_backward(const at::Tensor& grad_out, const at::Tensor& input, const Optional& weight,
                                 const Optional& running_mean, const Optional& running_var,
                                 const Optional& save_mean, const Optional& save_invstd, bool train,
                                 double eps, std::array<bool, 3> output_mask) {
  same_device("native_batch_norm_backward", grad_out, "grad_out", input, "input", weight, "weight");
  const DeviceSwitch on(DeviceSwitch::of(input));
  if (!native(aclnn_batch_norm_backward, kHalfAndFloat, grad_out, input, weight, running_mean, running_var,
              save_mean, save_invstd) ||
      !dtypes_fit(input, {&weight, &running_mean, &running_var}) || input.numel() == 0) {
    return fallback<at::_ops::native_batch_norm_backward>(grad_out, input, weight, running_mean, running_var,
                                                          save_mean, save_invstd, train, eps, output_mask);
  }
  const auto parameter_dtype = statistics_dtype(input, {&weight, &running_mean, &running_var});
  at::Tensor grad_input =
      new_output_if(output_mask[0], input.sizes(), input.scalar_type(), input, input.suggest_memory_format());
  at::Tensor grad_weight = new_output_if(output_mask[1], {input.size(1)}, parameter_dtype, input);
  at::Tensor grad_bias = new_output_if(output_mask[2], {input.size(1)}, parameter_dtype, input);
  aclnn_batch_norm_backward(grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train,
                            eps, output_mask, grad_input, grad_weight, grad_bias);
  return {std::move(grad_input), std::move(grad_weight), std::move(grad_bias)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_backward_reduce(
    const at::Tensor& grad_out, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& invstd,
    const Optional& weight, bool input_g, bool weight_g, bool bias_g) {
  same_device("batch_norm_backward_reduce", grad_out, "grad_out", input, "input", weight, "weight");
  const DeviceSwitch on(DeviceSwitch::of(input));
  const at::DimVector channels{input.size(1)};
  const auto parameter_dtype = is_defined(weight) ? weight->scalar_type() : mean.scalar_type();
  at::Tensor sum_dy = new_output_if(input_g, channels, mean.scalar_type(), mean);
  at::Tensor sum_dy_xmu = new_output_if(input_g, channels, mean.scalar_type(), mean);
  at::Tensor grad_weight = new_output_if(weight_g, channels, parameter_dtype, mean);
  at::Tensor grad_bias = new_output_if(bias_g, channels, parameter_dtype, mean);
  aclnn_batch_norm_reduce_backward(grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g, sum_dy,
                                   sum_dy_xmu, grad_weight, grad_bias);
  return {std::move(sum_dy), std::move(sum_dy_xmu), std::move(grad_weight), std::move(grad_bias)};
}

}  // namespace torch_npu::ops
