#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

std::array<bool, 3> mask3(const std::vector<bool>& mask) { return {mask[0], mask[1], mask[2]}; }

/// Statistics may arrive in another shape of the same size (CANN drops or keeps the ones).
at::Tensor shaped_as(const at::Tensor& result, const std::optional<at::Tensor>& out) {
  return out.has_value() && result.defined() ? result.view(out->sizes()) : result;
}

/// One number a channel, to be combined with [N, C, …].
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> sizes(input.dim(), 1);
  sizes[1] = input.size(1);
  return values.view(sizes);
}

/// All dimensions but that of the channels.
std::vector<int64_t> all_but_channels(const at::Tensor& input) {
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < input.dim(); ++d) dims.push_back(d);
  return dims;
}

}  // namespace

void LayerNorm(const at::Tensor& input, at::IntArrayRef normalizedShape,
               const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias, double eps,
               at::Tensor& out, const std::optional<at::Tensor>& mean,
               const std::optional<at::Tensor>& rstd) {
  const Placement placement({out, detail::wanted(mean), detail::wanted(rstd)});
  const auto [y, m, r] = at::native_layer_norm(input, normalizedShape, weight, bias, eps);
  assign(std::tie(out, mean, rstd), std::tuple(y, shaped_as(m, mean), shaped_as(r, rstd)));
}

void LayerNormBackward(const at::Tensor& gradOut, const at::Tensor& input, at::IntArrayRef normalizedShape,
                       const at::Tensor& mean, const at::Tensor& rstd,
                       const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
                       const std::vector<bool>& outputMask, const std::optional<at::Tensor>& gradInput,
                       const std::optional<at::Tensor>& gradWeight,
                       const std::optional<at::Tensor>& gradBias) {
  const Placement placement(
      {detail::wanted(gradInput), detail::wanted(gradWeight), detail::wanted(gradBias)});
  assign(std::tie(gradInput, gradWeight, gradBias),
         at::native_layer_norm_backward(gradOut, input, normalizedShape, mean, rstd, weight, bias,
                                        mask3(outputMask)));
}

void GroupNorm(const at::Tensor& self, const std::optional<at::Tensor>& gamma,
               const std::optional<at::Tensor>& beta, int64_t N, int64_t C, int64_t HxW, int64_t group,
               double eps, at::Tensor& out, at::Tensor& meanOut, at::Tensor& rstdOut) {
  const Placement placement({out, meanOut, rstdOut});
  assign(std::tie(out, meanOut, rstdOut), at::native_group_norm(self, gamma, beta, N, C, HxW, group, eps));
}

void GroupNormBackward(const at::Tensor& gradOut, const at::Tensor& input, const at::Tensor& mean,
                       const at::Tensor& rstd, const std::optional<at::Tensor>& gamma, int64_t N, int64_t C,
                       int64_t HxW, int64_t group, const std::vector<bool>& outputMask,
                       const std::optional<at::Tensor>& gradInput,
                       const std::optional<at::Tensor>& gradGammaOut,
                       const std::optional<at::Tensor>& gradBetaOut) {
  const Placement placement(
      {detail::wanted(gradInput), detail::wanted(gradGammaOut), detail::wanted(gradBetaOut)});
  assign(
      std::tie(gradInput, gradGammaOut, gradBetaOut),
      at::native_group_norm_backward(gradOut, input, mean, rstd, gamma, N, C, HxW, group, mask3(outputMask)));
}

void BatchNorm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
               const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& runningMean,
               const std::optional<at::Tensor>& runningVar, bool training, double momentum, double eps,
               at::Tensor& output, at::Tensor& saveMean, at::Tensor& saveInvstd) {
  const Placement placement({output, saveMean, saveInvstd});
  const auto [y, mean, invstd] =
      at::native_batch_norm(input, weight, bias, runningMean, runningVar, training, momentum, eps);
  assign(output, y);
  if (training)
    assign(std::tie(saveMean, saveInvstd), std::tuple(mean, invstd));  // else nothing was computed
}

void BatchNormBackward(const at::Tensor& gradOut, const at::Tensor& input,
                       const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& runningMean,
                       const std::optional<at::Tensor>& runningVar, const std::optional<at::Tensor>& saveMean,
                       const std::optional<at::Tensor>& saveInvstd, bool training, double eps,
                       const std::vector<bool>& outputMask, const std::optional<at::Tensor>& gradInput,
                       const std::optional<at::Tensor>& gradWeight,
                       const std::optional<at::Tensor>& gradBias) {
  const Placement placement(
      {detail::wanted(gradInput), detail::wanted(gradWeight), detail::wanted(gradBias)});
  assign(std::tie(gradInput, gradWeight, gradBias),
         at::native_batch_norm_backward(gradOut, input, weight, runningMean, runningVar, saveMean, saveInvstd,
                                        training, eps, mask3(outputMask)));
}

void BatchNormStats(const at::Tensor& input, double eps, at::Tensor& mean, at::Tensor& invstd) {
  const auto [variance, average] =
      at::var_mean(input.to(at::kFloat), all_but_channels(input), /*correction=*/0);
  mean.copy_(average);
  invstd.copy_(variance.add(eps).rsqrt_());
}

void BatchNormGatherStatsWithCounts(const at::Tensor& input, const at::Tensor& mean, const at::Tensor& invstd,
                                    const std::optional<at::Tensor>& runningMean,
                                    const std::optional<at::Tensor>& runningVar, double momentum, double eps,
                                    const at::Tensor& counts, at::Tensor& meanAll, at::Tensor& invstdAll) {
  const auto weights = counts.to(at::kFloat).view({-1, 1});
  const auto total = weights.sum();
  const auto means = mean.to(at::kFloat);
  const auto overall = (means * weights).sum(0) / total;
  // Sum of squares about the overall mean: within each device and between devices.
  const auto within = invstd.to(at::kFloat).pow(-2).sub_(eps);
  const auto squares = ((within + (means - overall).square()) * weights).sum(0);
  meanAll.copy_(overall);
  invstdAll.copy_((squares / total).add_(eps).rsqrt_());
  if (runningMean.has_value()) runningMean->mul_(1 - momentum).add_(overall, momentum);
  if (runningVar.has_value()) runningVar->mul_(1 - momentum).add_(squares / (total - 1), momentum);
}

void BatchNormElemt(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                    const std::optional<at::Tensor>& bias, const at::Tensor& mean, const at::Tensor& invstd,
                    double, at::Tensor& out) {
  auto result = (input - per_channel(mean, input)) * per_channel(invstd, input);
  if (weight.has_value()) result = result * per_channel(*weight, input);
  if (bias.has_value()) result = result + per_channel(*bias, input);
  out.copy_(result);
}

void BatchNormReduce(const at::Tensor& x, at::Tensor& sum, at::Tensor& squareSum) {
  const auto dims = all_but_channels(x);
  const auto wide = x.to(at::kFloat);
  sum.copy_(wide.sum(dims));
  squareSum.copy_(wide.square().sum(dims));
}

void BatchNormReduceBackward(const at::Tensor& gradOut, const at::Tensor& input, const at::Tensor& mean,
                             const at::Tensor& invstd, const std::optional<at::Tensor>&, bool inputG,
                             bool weightG, bool biasG, const std::optional<at::Tensor>& sumDy,
                             const std::optional<at::Tensor>& sumDyXmu,
                             const std::optional<at::Tensor>& gradWeight,
                             const std::optional<at::Tensor>& gradBias) {
  const auto dims = all_but_channels(input);
  const auto grad = gradOut.to(at::kFloat);
  const auto dy = grad.sum(dims);
  const auto dy_xmu = (grad * (input - per_channel(mean, input))).sum(dims);
  if (inputG && sumDy.has_value()) sumDy->copy_(dy);
  if (inputG && sumDyXmu.has_value()) sumDyXmu->copy_(dy_xmu);
  if (weightG && gradWeight.has_value()) gradWeight->copy_(dy_xmu * invstd);
  if (biasG && gradBias.has_value()) gradBias->copy_(dy);
}

void BatchNormElemtBackward(const at::Tensor& gradOut, const at::Tensor& input, const at::Tensor& mean,
                            const at::Tensor& invstd, const std::optional<at::Tensor>& weight,
                            const at::Tensor& sumDy, const at::Tensor& sumDyXmu, const at::Tensor& counter,
                            at::Tensor& gradInput) {
  const auto total = counter.to(at::kFloat).sum();
  const auto of_mean = per_channel(sumDy / total, input);
  const auto of_variance = per_channel(sumDyXmu / total * invstd.square(), input);
  const auto scale = weight.has_value() ? invstd * *weight : invstd;
  gradInput.copy_((gradOut - of_mean - (input - per_channel(mean, input)) * of_variance) *
                  per_channel(scale, input));
}

}  // namespace cann_host::host
