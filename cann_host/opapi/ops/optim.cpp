#include <charconv>
#include <cmath>

#include "cann_host/opapi/fused.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

/// The double that a client most likely meant by a float32 hyperparameter: the shortest decimal that rounds
/// to it. 0.999f alone would be 0.99900001287…, whose bias correction at the first step is wrong by 1e-5.
double meant(float value) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double result = value;
  std::from_chars(text.data(), end, result);
  return result;
}

/// Whether the state can be updated in one pass of cann_host's own kernel.
bool is_plain(const at::Tensor& parameter, const at::Tensor& state) {
  return state.is_contiguous() && state.scalar_type() == parameter.scalar_type();
}

}  // namespace

void ApplyAdamWV2(at::Tensor& varRef, at::Tensor& mRef, at::Tensor& vRef,
                  const std::optional<at::Tensor>& maxGradNormOptionalRef, const at::Tensor& grad,
                  const at::Tensor& step, float lr, float beta1, float beta2, float weightDecay, float eps,
                  bool amsgrad, bool maximize) {
  const bool takes_gradient = grad.is_contiguous() && (grad.scalar_type() == varRef.scalar_type() ||
                                                       grad.scalar_type() == at::kFloat);
  if (is_plain(varRef, varRef) && is_plain(varRef, mRef) && is_plain(varRef, vRef) && takes_gradient &&
      (!amsgrad || is_plain(varRef, *maxGradNormOptionalRef))) {
    kernels::AdamW call{};
    call.type = kernel_type(varRef);
    call.gradient_type = kernel_type(grad);
    call.parameter = varRef.mutable_data_ptr();
    call.exp_avg = mRef.mutable_data_ptr();
    call.exp_avg_sq = vRef.mutable_data_ptr();
    call.max_exp_avg_sq = amsgrad ? maxGradNormOptionalRef->mutable_data_ptr() : nullptr;
    call.gradient = grad.const_data_ptr();
    call.count = varRef.numel();
    call.learning_rate = meant(lr);
    call.beta1 = meant(beta1);
    call.beta2 = meant(beta2);
    call.epsilon = meant(eps);
    call.weight_decay = meant(weightDecay);
    call.step = step.item<double>() + 1;
    call.maximize = maximize;
    kernels::adamw(call);
    return;
  }
  const auto steps = at::add(step, 1).to(at::kFloat).reshape(at::IntArrayRef());
  std::vector<at::Tensor> max_squares;
  if (amsgrad) max_squares.push_back(*maxGradNormOptionalRef);
  at::_fused_adamw_({varRef}, {grad}, {mRef}, {vRef}, max_squares, {steps}, meant(lr), meant(beta1),
                    meant(beta2), meant(weightDecay), meant(eps), amsgrad, maximize);
}

void ApplyAdamW(at::Tensor& varRef, at::Tensor& mRef, at::Tensor& vRef, const at::Tensor& beta1Power,
                const at::Tensor& beta2Power, const at::Tensor& lr, const at::Tensor& weightDecay,
                const at::Tensor& beta1, const at::Tensor& beta2, const at::Tensor& eps,
                const at::Tensor& grad, const std::optional<at::Tensor>& maxGradNormOptional, bool amsgrad,
                bool maximize) {
  const auto number = [](const at::Tensor& t) { return t.item<double>(); };
  const auto gradient = maximize ? -grad.to(at::kFloat) : grad.to(at::kFloat);
  const auto mean = mRef.to(at::kFloat) * number(beta1) + gradient * (1 - number(beta1));
  const auto square = vRef.to(at::kFloat) * number(beta2) + gradient.square() * (1 - number(beta2));
  const auto largest = amsgrad ? at::maximum(maxGradNormOptional->to(at::kFloat), square) : square;
  const double correction1 = 1 - number(beta1Power) * number(beta1);
  const double correction2 = 1 - number(beta2Power) * number(beta2);
  const auto denominator = (largest / correction2).sqrt_() + number(eps);
  const auto decayed = varRef.to(at::kFloat) * (1 - number(lr) * number(weightDecay));
  varRef.copy_(decayed - mean / denominator * (number(lr) / correction1));
  mRef.copy_(mean);
  vRef.copy_(square);
}

void FusedSgd(std::vector<at::Tensor>& params, const std::vector<at::Tensor>& grads,
              std::vector<at::Tensor>& momentumBufferList, const std::optional<at::Tensor>& gradScale,
              float weightDecay, float momentum, float lr, float dampening, bool nesterov, bool maximize,
              bool isFirstStep) {
  at::_fused_sgd_(params, grads, momentumBufferList, meant(weightDecay), meant(momentum), meant(lr),
                  meant(dampening), nesterov, maximize, isFirstStep, gradScale);
}

void AmpUpdateScale(const at::Tensor& currentScale, const at::Tensor& growthTracker,
                    const at::Tensor& foundInf, double growthFactor, double backoffFactor,
                    int64_t growthInterval, at::Tensor& updatedScale, at::Tensor& updatedGrowthTracker) {
  if (updatedScale.data_ptr() != currentScale.data_ptr()) updatedScale.copy_(currentScale);
  if (updatedGrowthTracker.data_ptr() != growthTracker.data_ptr()) updatedGrowthTracker.copy_(growthTracker);
  at::_amp_update_scale_(updatedScale, updatedGrowthTracker, foundInf, growthFactor, backoffFactor,
                         growthInterval);
}

void ApplyAdam(at::Tensor& varRef, at::Tensor& mRef, at::Tensor& vRef, const at::Tensor& beta1Power,
               const at::Tensor& beta2Power, const at::Tensor& lr, const at::Tensor& beta1,
               const at::Tensor& beta2, const at::Tensor& epsilon, const at::Tensor& grad, bool,
               bool useNesterov) {
  const double b1 = beta1.item<double>(), b2 = beta2.item<double>();
  const auto g = widened(grad), m = widened(mRef) * b1 + g * (1 - b1),
             v = widened(vRef) * b2 + g * g * (1 - b2);
  const double rate =
      lr.item<double>() * std::sqrt(1 - beta2Power.item<double>()) / (1 - beta1Power.item<double>());
  const auto direction = useNesterov ? m * b1 + g * (1 - b1) : m;
  varRef.copy_(widened(varRef) - rate * direction / (v.sqrt() + epsilon.item<double>()));
  mRef.copy_(m);
  vRef.copy_(v);
}

}  // namespace cann_host::host
