// Activations and their gradients.
#include "cann_host/opapi/legacy/operators.h"

namespace cann_host::legacy {
namespace {

/// x * sigmoid(1.702 x)
void fast_gelu(const Arguments& a) {
  const auto x = a.wide(0);
  a.set(0, x * (1.702 * x).sigmoid());
}

void fast_gelu_grad(const Arguments& a) {
  const auto x = a.wide(1), s = (1.702 * x).sigmoid();
  a.set(0, a.wide(0) * (s + 1.702 * x * s * (1 - s)));
}

at::Tensor mish_gradient(const at::Tensor& x) {
  const auto t = at::softplus(x).tanh();
  return t + x * (1 - t * t) * x.sigmoid();
}

at::Tensor silu_gradient(const at::Tensor& x) {
  const auto s = x.sigmoid();
  return s * (1 + x * (1 - s));
}

void axpy_with_softmax_and_dropout(const Arguments& a) {
  const auto axes = a.attribute<std::vector<int64_t>>("axis", {-1});
  const auto softmax = (a.wide(0) + a.wide(1) * a.attribute<float>("alpha")).softmax(axes.at(0));
  a.set(0, softmax);
  a.set(1, softmax * a[2].to(at::kFloat).reshape(softmax.sizes()) / a.attribute<float>("input_keep_prob"));
}

/// Inputs: gradient, mask, softmax.
void dropout_with_scale_and_softmax_grad(const Arguments& a) {
  const auto axes = a.attribute<std::vector<int64_t>>("axes", {-1});
  const auto softmax = a.wide(2);
  const auto grad =
      a.wide(0) * a[1].to(at::kFloat).reshape(softmax.sizes()) / a.attribute<float>("input_keep_prob");
  a.set(0, at::_softmax_backward_data(grad, softmax, axes.at(0), at::kFloat) * a.attribute<float>("alpha"));
}

void softmax_cross_entropy(const Arguments& a) {
  const auto labels = a.wide(1), log_softmax = a.wide(0).log_softmax(-1);
  a.set(0, -(labels * log_softmax).sum(-1));
  a.set(1, log_softmax.exp() - labels);
}

}  // namespace

Table activation_operators() {
  return {
      {"Relu", [](const Arguments& a) { a.set(0, a[0].relu()); }},
      {"ReluGrad", [](const Arguments& a) { a.set(0, at::where(a[1] > 0, a[0], at::zeros_like(a[0]))); }},
      {"Sigmoid", [](const Arguments& a) { a.set(0, a.wide(0).sigmoid()); }},
      {"SigmoidGrad", [](const Arguments& a) { a.set(0, a.wide(1) * a.wide(0) * (1 - a.wide(0))); }},
      {"TanhGrad", [](const Arguments& a) { a.set(0, a.wide(1) * (1 - a.wide(0) * a.wide(0))); }},
      {"Swish",
       [](const Arguments& a) {
         a.set(0, a.wide(0) * (a.wide(0) * a.attribute<float>("scale", 1)).sigmoid());
       }},
      {"SwishGrad", [](const Arguments& a) { a.set(0, a.wide(0) * silu_gradient(a.wide(1))); }},
      {"SiluGrad", [](const Arguments& a) { a.set(0, a.wide(0) * silu_gradient(a.wide(1))); }},
      {"Mish", [](const Arguments& a) { a.set(0, a.wide(0) * at::softplus(a.wide(0)).tanh()); }},
      {"MishGrad", [](const Arguments& a) { a.set(0, a.wide(0) * mish_gradient(a.wide(1))); }},
      {"FastGelu", fast_gelu},
      {"FastGeluGrad", fast_gelu_grad},
      {"Gelu", [](const Arguments& a) { a.set(0, at::gelu(a.wide(0))); }},
      {"HardSwish", [](const Arguments& a) { a.set(0, at::hardswish(a.wide(0))); }},
      {"HardSwishGrad", [](const Arguments& a) { a.set(0, at::hardswish_backward(a.wide(0), a.wide(1))); }},
      {"HardSigmoid", [](const Arguments& a) { a.set(0, at::hardsigmoid(a.wide(0))); }},
      {"LogSigmoid", [](const Arguments& a) { a.set(0, at::log_sigmoid(a.wide(0))); }},
      {"Selu", [](const Arguments& a) { a.set(0, at::selu(a.wide(0))); }},
      {"LeakyRelu",
       [](const Arguments& a) {
         a.set(0, at::leaky_relu(a.wide(0), a.attribute<float>("negative_slope", 0)));
       }},
      {"LeakyReluGrad",
       [](const Arguments& a) {
         const auto slope = a.attribute<float>("negative_slope", 0);
         a.set(0, at::leaky_relu_backward(a.wide(0), a.wide(1), slope, false));
       }},
      {"SoftmaxV2",
       [](const Arguments& a) {
         const auto axes = a.attribute<std::vector<int64_t>>("axes", {-1});
         a.set(0, a.wide(0).softmax(axes.at(0)));
       }},
      {"LogSoftmaxV2",
       [](const Arguments& a) {
         const auto axes = a.attribute<std::vector<int64_t>>("axes", {-1});
         a.set(0, a.wide(0).log_softmax(axes.at(0)));
       }},
      {"SoftmaxGrad",
       [](const Arguments& a) {
         const auto axes = a.attribute<std::vector<int64_t>>("axes", {-1});
         const auto product = a.wide(1) * a.wide(0);
         a.set(0, product - a.wide(0) * product.sum(axes.at(0), true));
       }},
      {"SoftmaxCrossEntropyWithLogits", softmax_cross_entropy},
      {"DropOutDoMaskV3",
       [](const Arguments& a) { a.set(0, a.wide(0) * a[1].reshape_as(a[0]) / a.wide(2)); }},
      {"AxpyWithSoftmaxAndDropOutDoMask", axpy_with_softmax_and_dropout},
      {"DropoutWithMulsAndSoftmaxGrad", dropout_with_scale_and_softmax_grad},
  };
}

}  // namespace cann_host::legacy
