// Cross entropy of logits in one pass, with class weights, ignored rows, label smoothing and the z-loss.
#include "cann_host/opapi/fused.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;

/// One number a row: how much it counts, 0 where it is ignored.
at::Tensor row_weights(const at::Tensor& target, const Optional& weight, int64_t ignored) {
  const auto counts = target.ne(ignored).to(at::kFloat);
  if (!weight.has_value()) return counts;
  return counts * weight->index_select(0, target.where(target.ne(ignored), at::zeros_like(target)));
}

at::Tensor reduced(const at::Tensor& losses, const at::Tensor& weights, std::string_view reduction) {
  if (reduction == "none") return losses;
  const auto sum = losses.sum();
  return reduction == "sum" ? sum : sum / weights.sum();
}

}  // namespace

void CrossEntropyLoss(const at::Tensor& input, const at::Tensor& target, const Optional& weightOptional,
                      std::string_view reductionOptional, int64_t ignoreIndex, double labelSmoothing,
                      double lseSquareScaleForZloss, bool returnZloss, at::Tensor& lossOut,
                      at::Tensor& logProbOut, at::Tensor& zlossOut, at::Tensor& lseForZlossOut) {
  const at::Tensor logits = dense(input);
  const at::Tensor classes = target.masked_fill(target.eq(ignoreIndex), -1).contiguous();
  TORCH_CHECK(classes.numel() == 0 ||
                  (classes.ge(-1).all().item<bool>() && classes.lt(input.size(1)).all().item<bool>()),
              "target must lie in [0, ", input.size(1), ") or be ignoreIndex");
  const auto rows = at::empty({3, logits.size(0)}, logits.options().dtype(at::kFloat));
  {
    const Result log_probabilities(logProbOut);
    kernels::CrossEntropy call{};
    call.type = kernel_type(logits);
    call.logits = logits.const_data_ptr();
    call.target = classes.const_data_ptr<int64_t>();
    call.log_probabilities = log_probabilities.data();
    call.loss = rows[0].mutable_data_ptr<float>();
    call.mean_negative = rows[1].mutable_data_ptr<float>();
    call.rows = logits.size(0);
    call.columns = logits.size(1);
    kernels::cross_entropy(call);
  }
  const auto weights = row_weights(target, weightOptional, ignoreIndex);
  auto losses = rows[0] * weights;
  if (labelSmoothing > 0) {
    const auto counted = target.ne(ignoreIndex).to(at::kFloat);
    auto smooth = rows[1] * counted;
    if (weightOptional.has_value()) {
      smooth =
          at::matmul(logProbOut.to(at::kFloat), *weightOptional).neg_().div_(logits.size(1)).mul_(counted);
    }
    losses = losses * (1 - labelSmoothing) + smooth * labelSmoothing;
  }
  lossOut.copy_(reduced(losses, weights, reductionOptional).view(lossOut.sizes()));
  if (lseSquareScaleForZloss == 0) {
    zlossOut.zero_();
    return;
  }
  const auto log_sum_exp = logits.to(at::kFloat).logsumexp(1);
  lseForZlossOut.copy_(log_sum_exp);
  if (!returnZloss) return;
  const auto counted = target.ne(ignoreIndex).to(at::kFloat);
  const auto squares = log_sum_exp.square().mul_(lseSquareScaleForZloss).mul_(counted);
  zlossOut.copy_(reduced(squares, counted, reductionOptional).view(zlossOut.sizes()));
}

void CrossEntropyLossGrad(const at::Tensor& gradLoss, const at::Tensor& logProb, const at::Tensor& target,
                          const Optional& weightOptional, const Optional& gradZlossOptional,
                          const Optional& lseForZlossOptional, std::string_view reductionOptional,
                          int64_t ignoreIndex, double labelSmoothing, double lseSquareScaleForZloss,
                          at::Tensor& xGradOut) {
  const auto weights = row_weights(target, weightOptional, ignoreIndex);
  auto gradient = gradLoss.to(at::kFloat);
  if (reductionOptional == "mean") gradient = gradient / weights.sum();
  if (reductionOptional != "none") gradient = gradient.reshape({1});
  const auto classes = target.where(target.ne(ignoreIndex), at::zeros_like(target)).unsqueeze(1);
  const auto probabilities = logProb.to(at::kFloat).exp();  // not in place: float32 is logProb itself
  // d loss / d log_prob, whose sum times the probabilities is taken off.
  auto of_log = at::zeros_like(probabilities);
  of_log.scatter_(1, classes, (weights * (labelSmoothing - 1)).unsqueeze(1));
  if (labelSmoothing > 0) {
    const auto counted = target.ne(ignoreIndex).to(at::kFloat).unsqueeze(1);
    auto share = counted * (labelSmoothing / static_cast<double>(logProb.size(1)));
    if (weightOptional.has_value()) share = share * weightOptional->unsqueeze(0);
    of_log = of_log - share;
  }
  auto result = (of_log - probabilities * of_log.sum(1, true)) * gradient.unsqueeze(1);
  if (gradZlossOptional.has_value() && lseSquareScaleForZloss != 0) {
    TORCH_CHECK(lseForZlossOptional.has_value(), "gradZloss needs lseForZloss");
    const auto counted = target.ne(ignoreIndex).to(at::kFloat);
    auto of_square = gradZlossOptional->to(at::kFloat) * counted;
    if (reductionOptional == "mean") of_square = of_square / counted.sum();
    of_square = of_square * lseForZlossOptional->to(at::kFloat) * (2 * lseSquareScaleForZloss);
    result = result + probabilities * of_square.unsqueeze(1);
  }
  xGradOut.copy_(result);
}

}  // namespace cann_host::host
