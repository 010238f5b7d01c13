#include <charconv>

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

}  // namespace

void ApplyAdamWV2(at::Tensor& varRef, at::Tensor& mRef, at::Tensor& vRef,
                  const std::optional<at::Tensor>& maxGradNormOptionalRef, const at::Tensor& grad,
                  const at::Tensor& step, float lr, float beta1, float beta2, float weightDecay, float eps,
                  bool amsgrad, bool maximize) {
  const auto steps = at::add(step, 1).to(at::kFloat).reshape(at::IntArrayRef());
  std::vector<at::Tensor> max_squares;
  if (amsgrad) max_squares.push_back(*maxGradNormOptionalRef);
  at::_fused_adamw_({varRef}, {grad}, {mRef}, {vRef}, max_squares, {steps}, meant(lr), meant(beta1),
                    meant(beta2), meant(weightDecay), meant(eps), amsgrad, maximize);
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

}  // namespace cann_host::host
