// Statistics of batch norm over several devices, whose parts are the rows of the inputs.
#include "cann_host/opapi/legacy/operators.h"

namespace cann_host::legacy {
namespace {

at::Tensor running(const at::Tensor& before, const at::Tensor& now, double momentum) {
  return momentum * now + (1 - momentum) * before;
}

/// Inputs: sums and sums of squares [devices, C], counts [devices], running mean and variance [C].
void gather_sums(const Arguments& a) {
  const double momentum = a.attribute<float>("momentum", 0.1F), epsilon = a.attribute<float>("eps", 1e-5F);
  const auto count = a.wide(2).sum();
  const auto mean = a.wide(0).sum(0) / count;
  const auto variance = a.wide(1).sum(0) / count - mean * mean;
  const auto running_mean = running(a.wide(3), mean, momentum),
             running_variance = running(a.wide(4), variance, momentum);
  a.set(0, mean);
  a.set(1, (variance + epsilon).rsqrt());
  a.set(2, running_mean);
  a.set(3, running_variance);
}

}  // namespace

Table statistics_operators() { return {{"SyncBatchNormGatherStats", gather_sums}}; }

}  // namespace cann_host::legacy
