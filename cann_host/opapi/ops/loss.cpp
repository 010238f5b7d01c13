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
  const auto probability = widened(self).sigmoid();
  at::Tensor grad;
  if (posWeight.has_value()) {
    const auto positive = widened(*posWeight) * widened(target);
    grad = (positive + 1 - target) * probability - positive;
  } else {
    grad = probability - target;
  }
  if (weight.has_value()) grad = grad * *weight;
  out.copy_(grad * spread(widened(gradOutput), reduction, self.numel()));
}

namespace {

/// Of a batch of one where there is no batch: [T, C] as [T, 1, C].
at::Tensor batched(const at::Tensor& log_probs) {
  return log_probs.dim() == 2 ? log_probs.unsqueeze(1) : log_probs;
}

/// The part of logAlpha that is used.
at::Tensor used(const at::Tensor& log_alpha, at::IntArrayRef target_lengths) {
  int64_t longest = 0;
  for (const int64_t length : target_lengths) longest = std::max(longest, length);
  TORCH_CHECK(log_alpha.dim() == 3 && log_alpha.size(2) >= 2 * longest + 1, "logAlpha has shape ",
              log_alpha.sizes(), ", at least ", 2 * longest + 1,
              " elements in the last dimension were expected");
  return log_alpha.narrow(2, 0, 2 * longest + 1);
}

}  // namespace

void CtcLoss(const at::Tensor& logProbs, const at::Tensor& targets, at::IntArrayRef inputLengths,
             at::IntArrayRef targetLengths, int64_t blank, bool zeroInfinity, at::Tensor& negLogLikelihoodOut,
             at::Tensor& logAlphaOut) {
  const auto [loss, alpha] =
      at::_ctc_loss(batched(logProbs), targets, inputLengths, targetLengths, blank, zeroInfinity);
  negLogLikelihoodOut.copy_(loss.view_as(negLogLikelihoodOut));
  used(logAlphaOut, targetLengths).copy_(alpha);
}

void CtcLossBackward(const at::Tensor& gradOut, const at::Tensor& logProbs, const at::Tensor& targets,
                     at::IntArrayRef inputLengths, at::IntArrayRef targetLengths,
                     const at::Tensor& negLogLikelihood, const at::Tensor& logAlpha, int64_t blank,
                     bool zeroInfinity, at::Tensor& out) {
  const auto grad = at::_ctc_loss_backward(gradOut.reshape({-1}), batched(logProbs), targets, inputLengths,
                                           targetLengths, negLogLikelihood.reshape({-1}),
                                           used(logAlpha, targetLengths), blank, zeroInfinity);
  out.copy_(grad.view_as(out));
}

namespace {

/// The sum or mean of losses in 16 bits, in float32: their sum in 16 bits would lose most of it.
void reduce_wide(const at::Tensor& each, const at::Tensor& labels, const std::optional<at::Tensor>& weight,
                 int64_t reduction, int64_t ignored, at::Tensor& out, at::Tensor& total) {
  const auto counted = labels.reshape({-1}) != ignored;
  auto share = counted.to(at::kFloat);
  if (weight.has_value()) {
    share =
        share * widened(*weight).index_select(0, labels.reshape({-1}).masked_fill(~counted, 0).to(at::kLong));
  }
  const auto sum = share.sum(), loss = (widened(each).reshape({-1}) * share).sum();
  total.copy_(sum);
  out.copy_(reduction == at::Reduction::Mean ? loss / sum : loss);
}

bool sums_16_bits(const at::Tensor& self, int64_t reduction) {
  return reduction != at::Reduction::None && at::isReducedFloatingType(self.scalar_type());
}

}  // namespace

void NLLLoss(const at::Tensor& self, const at::Tensor& target, const std::optional<at::Tensor>& weight,
             int64_t reduction, int64_t ignoreIndex, at::Tensor& out, at::Tensor& totalWeight) {
  const auto labels = classes(target);
  if (!sums_16_bits(self, reduction)) {
    at::nll_loss_forward_out(out, totalWeight, self, labels, given(weight), reduction, ignoreIndex);
    return;
  }
  const auto each = std::get<0>(at::nll_loss_forward(self, labels, {}, at::Reduction::None, ignoreIndex));
  reduce_wide(each, labels, given(weight), reduction, ignoreIndex, out, totalWeight);
}

void NLLLossBackward(const at::Tensor& gradOutput, const at::Tensor& self, const at::Tensor& target,
                     const std::optional<at::Tensor>& weight, int64_t reduction, int64_t ignoreIndex,
                     const at::Tensor& totalWeight, at::Tensor& out) {
  at::nll_loss_backward_out(out, gradOutput, self, classes(target), given(weight), reduction, ignoreIndex,
                            totalWeight);
}

void NLLLoss2d(const at::Tensor& self, const at::Tensor& target, const std::optional<at::Tensor>& weight,
               int64_t reduction, int64_t ignoreIndex, at::Tensor& out, at::Tensor& totalWeight) {
  const auto labels = classes(target);
  if (!sums_16_bits(self, reduction)) {
    at::nll_loss2d_forward_out(out, totalWeight, self, labels, given(weight), reduction, ignoreIndex);
    return;
  }
  const auto each = std::get<0>(at::nll_loss2d_forward(self, labels, {}, at::Reduction::None, ignoreIndex));
  reduce_wide(each, labels, given(weight), reduction, ignoreIndex, out, totalWeight);
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
