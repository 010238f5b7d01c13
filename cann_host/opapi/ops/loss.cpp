#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

/// Gradient of a mean is spread over the elements.
at::Tensor spread(const at::Tensor& grad, int64_t reduction, int64_t numel) {
  return reduction == at::Reduction::Mean ? grad / numel : grad;
}

/// op-plugin hands an empty tensor for weights that are not given; ATen's class indices are int64 or uint8.
std::optional<at::Tensor> given(const std::optional<at::Tensor>& weight) {
  return weight.has_value() && weight->numel() == 0 ? std::nullopt : weight;
}
at::Tensor classes(const at::Tensor& target) {
  return target.scalar_type() == at::kInt ? target.to(at::kLong) : target;
}

}  // namespace

void L1LossBackward(const at::Tensor& gradOutput, const at::Tensor& self, const at::Tensor& target,
                    int64_t reduction, at::Tensor& gradInput) {
  gradInput.copy_(spread(gradOutput, reduction, gradInput.numel()) * (self - target).sign());
}

void BinaryCrossEntropyWithLogitsBackward(const at::Tensor& gradOutput, const at::Tensor& self,
                                          const at::Tensor& target, const std::optional<at::Tensor>& weight,
                                          const std::optional<at::Tensor>& posWeight, int64_t reduction,
                                          at::Tensor& out) {
  const auto probability = self.sigmoid();
  at::Tensor grad;
  if (posWeight.has_value()) {
    const auto positive = *posWeight * target;
    grad = (positive + 1 - target) * probability - positive;
  } else {
    grad = probability - target;
  }
  if (weight.has_value()) grad = grad * *weight;
  out.copy_(grad * spread(gradOutput, reduction, self.numel()));
}

void NLLLoss(const at::Tensor& self, const at::Tensor& target, const std::optional<at::Tensor>& weight,
             int64_t reduction, int64_t ignoreIndex, at::Tensor& out, at::Tensor& totalWeight) {
  at::nll_loss_forward_out(out, totalWeight, self, classes(target), given(weight), reduction, ignoreIndex);
}

void NLLLossBackward(const at::Tensor& gradOutput, const at::Tensor& self, const at::Tensor& target,
                     const std::optional<at::Tensor>& weight, int64_t reduction, int64_t ignoreIndex,
                     const at::Tensor& totalWeight, at::Tensor& out) {
  at::nll_loss_backward_out(out, gradOutput, self, classes(target), given(weight), reduction, ignoreIndex,
                            totalWeight);
}

void NLLLoss2d(const at::Tensor& self, const at::Tensor& target, const std::optional<at::Tensor>& weight,
               int64_t reduction, int64_t ignoreIndex, at::Tensor& out, at::Tensor& totalWeight) {
  at::nll_loss2d_forward_out(out, totalWeight, self, classes(target), given(weight), reduction, ignoreIndex);
}

void NLLLoss2dBackward(const at::Tensor& gradOutput, const at::Tensor& self, const at::Tensor& target,
                       const std::optional<at::Tensor>& weight, int64_t reduction, int64_t ignoreIndex,
                       const at::Tensor& totalWeight, at::Tensor& out) {
  at::nll_loss2d_backward_out(out, gradOutput, self, classes(target), given(weight), reduction, ignoreIndex,
                              totalWeight);
}

void KlDivBackward(const at::Tensor& gradOutput, const at::Tensor& self, const at::Tensor& target,
                   int64_t reduction, bool logTarget, at::Tensor& out) {
  const auto grad = spread(gradOutput, reduction, self.numel());
  out.copy_(logTarget ? target.exp().neg_() * grad : at::where(target > 0, -target * grad, 0));
}

void KlDivTargetBackward(const at::Tensor& gradOutput, const at::Tensor& self, const at::Tensor& target,
                         int64_t reduction, bool logTarget, at::Tensor& gradTarget) {
  const auto grad = spread(gradOutput, reduction, self.numel());
  gradTarget.copy_(logTarget ? grad * (target + 1 - self) * target.exp()
                             : at::where(target > 0, grad * (target.log() + 1 - self), 0));
}

}  // namespace cann_host::host
