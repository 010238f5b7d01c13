// Cross entropy whose classes are spread over ranks: what one rank does before and behind their reduction.
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;

at::Tensor logits_of(const at::Tensor& input, const at::Tensor& weight) {
  return at::matmul(input.to(at::kFloat), weight.to(at::kFloat).t());
}

/// Where each bit of a byte stands, the first one highest.
at::Tensor places() { return at::arange(7, -1, -1, at::kInt); }

/// Bits as bytes; what fills the last one up is set.
at::Tensor packed(const at::Tensor& bits) {
  const int64_t missing = (8 - bits.size(0) % 8) % 8;
  return at::constant_pad_nd(bits.to(at::kInt), {0, missing}, 1)
      .view({-1, 8})
      .bitwise_left_shift(places())
      .sum(1);
}

/// The first `count` bits of bytes, as float32.
at::Tensor unpacked(const at::Tensor& bytes, int64_t count) {
  const auto bits = bytes.to(at::kInt).unsqueeze(1).bitwise_right_shift(places()).bitwise_and(1);
  return bits.reshape({-1}).narrow(0, 0, count).to(at::kFloat);
}

}  // namespace

void FusedLinearOnlineMaxSum(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& target,
                             int64_t vocabStartIndex, int64_t vocabEndIndex, at::Tensor& logitsMaxLocalOut,
                             at::Tensor& sumExpLogitsLocalOut, at::Tensor& predictedLogitsLocalOut,
                             at::Tensor& targetMaskOut, at::Tensor& maskedTargetOut,
                             const Optional& vocabParallelLogitsOutOptional) {
  const auto logits = logits_of(input, weight);
  const auto maximum = logits.amax(1);
  const auto below = logits - maximum.unsqueeze(1);
  const auto elsewhere = target.lt(vocabStartIndex).logical_or(target.gt(vocabEndIndex));
  const auto own = (target - vocabStartIndex).masked_fill(elsewhere, 0).to(at::kLong);
  logitsMaxLocalOut.copy_(maximum);
  sumExpLogitsLocalOut.copy_(below.exp().sum(1));
  predictedLogitsLocalOut.copy_(below.gather(1, own.unsqueeze(1)).squeeze(1).masked_fill(elsewhere, 0));
  targetMaskOut.copy_(packed(elsewhere));
  maskedTargetOut.copy_(own);
  if (vocabParallelLogitsOutOptional.has_value()) vocabParallelLogitsOutOptional->copy_(logits);
}

void FusedCrossEntropyLossWithMaxSum(const at::Tensor& logitsMax, const at::Tensor& sumExpLogits,
                                     const at::Tensor& predictedLogits, float, const Optional&,
                                     const Optional&, const Optional& vocabParallelLogitsOptional,
                                     at::Tensor& lossOut, const Optional& softMaxOutOptional) {
  lossOut.copy_(sumExpLogits.log() - predictedLogits);
  if (!softMaxOutOptional.has_value()) return;
  TORCH_CHECK(vocabParallelLogitsOptional.has_value(), "softMaxOut needs vocabParallelLogits");
  const auto below = vocabParallelLogitsOptional->to(at::kFloat) - logitsMax.unsqueeze(1);
  softMaxOutOptional->copy_(below.exp() / sumExpLogits.unsqueeze(1));
}

void FusedLinearCrossEntropyLossGrad(const at::Tensor& grad, const at::Tensor& input,
                                     const at::Tensor& weight, const at::Tensor& targetMask,
                                     const at::Tensor& maskedTarget, float, const Optional& logitsMaxOptional,
                                     const Optional& sumExpLogitsOptional, const Optional& softmaxOptional,
                                     at::Tensor& inputGradOut, at::Tensor& weightGradOut) {
  at::Tensor softmax;
  if (softmaxOptional.has_value()) {
    softmax = *softmaxOptional;
  } else {
    TORCH_CHECK(logitsMaxOptional.has_value() && sumExpLogitsOptional.has_value(),
                "without softmax logitsMax and sumExpLogits must be given");
    const auto below = logits_of(input, weight) - logitsMaxOptional->unsqueeze(1);
    softmax = below.exp() / sumExpLogitsOptional->unsqueeze(1);
  }
  const auto here = unpacked(targetMask, grad.size(0)) - 1;  // -1 where the target is this rank's, else 0
  const auto slope =
      softmax.scatter_add(1, maskedTarget.to(at::kLong).unsqueeze(1), here.unsqueeze(1)) * grad.unsqueeze(1);
  inputGradOut.copy_(at::matmul(slope, weight.to(at::kFloat)));
  weightGradOut.copy_(at::matmul(slope.t(), input.to(at::kFloat)));
}

}  // namespace cann_host::host
