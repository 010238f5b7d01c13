// RMS norm with quantization behind it, group norm with swish.
#include "cann_host/opapi/quantized.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;

at::Tensor wide(const at::Tensor& t) { return t.to(at::kFloat); }

/// 1 / sqrt(mean(x²) + epsilon) over the last `dims` dimensions of float32.
at::Tensor reciprocal_rms(const at::Tensor& x, int64_t dims, double epsilon) {
  std::vector<int64_t> normed;
  for (int64_t d = x.dim() - dims; d < x.dim(); ++d) normed.push_back(d);
  return (x.square().mean(normed, /*keepdim=*/true) + epsilon).rsqrt();
}

/// RMS norm over gamma's dimensions, in float32.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& gamma, const Optional& beta, double epsilon) {
  const auto normal = x * reciprocal_rms(x, gamma.dim(), epsilon) * wide(gamma);
  return beta.has_value() ? normal + wide(*beta) : normal;
}

/// Where an output of int4 (in int32) or int8 comes from: values / scale (or * scale) + zero point.
void quantize(const at::Tensor& values, const Optional& scale, const Optional& zero_point, bool divides,
              const at::Tensor& out) {
  if (!scale.has_value()) {
    out.zero_();
    return;
  }
  auto scaled = divides ? values / wide(*scale) : values * wide(*scale);
  if (zero_point.has_value()) scaled = scaled + wide(*zero_point);
  store_rounded(scaled, at::kChar, out);
}

/// By a scale of each row: its largest magnitude over that of the dtype.
void quantize_dynamically(const at::Tensor& values, const Optional& smooth, bool wanted,
                          const at::Tensor& out, const at::Tensor& scales) {
  if (!wanted) {
    out.zero_();
    scales.zero_();
    return;
  }
  const auto rows = smooth.has_value() ? values * wide(*smooth) : values;
  const double most = out.scalar_type() == at::kInt ? 7 : 127;  // int4 in int32
  const auto scale = rows.abs().amax(-1) / most;
  scales.copy_(scale);
  store_rounded(rows / scale.clamp_min(std::numeric_limits<float>::min()).unsqueeze(-1), at::kChar, out);
}

}  // namespace

void RmsNormQuant(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& beta,
                  const at::Tensor& scale, const at::Tensor& offset, double epsilon, at::Tensor& y) {
  const auto normal = rms_norm(wide(x), gamma.reshape({-1}), beta.reshape({-1}), epsilon);
  quantize(normal, scale, offset, /*divides=*/false, y);
}

void AddRmsNormQuantV2(const at::Tensor& x1, const at::Tensor& x2, const at::Tensor& gamma,
                       const at::Tensor& scales1, const Optional& scales2Optional,
                       const Optional& zeroPoints1Optional, const Optional& zeroPoints2Optional,
                       const Optional& betaOptional, int64_t axis, double epsilon, bool divMode,
                       at::Tensor& y1Out, at::Tensor& y2Out, at::Tensor& xOut, const Optional& rmsNormOut) {
  TORCH_CHECK(axis == -1, "axis is ", axis, "; CANN has -1");
  const auto sum = wide(x1) + wide(x2);
  auto normal = rms_norm(sum, gamma, std::nullopt, epsilon);
  if (rmsNormOut.has_value()) rmsNormOut->copy_(normal);
  if (betaOptional.has_value()) normal = normal + wide(*betaOptional);
  quantize(normal, scales1, zeroPoints1Optional, divMode, y1Out);
  quantize(normal, scales2Optional, zeroPoints2Optional, divMode, y2Out);
  xOut.copy_(sum);
}

void AddRmsNormDynamicQuantV2(const at::Tensor& x1, const at::Tensor& x2, const at::Tensor& gamma,
                              const Optional& smoothScale1Optional, const Optional& smoothScale2Optional,
                              const Optional& betaOptional, double epsilon,
                              const std::vector<bool>& outputMaskOptional, at::Tensor& y1Out,
                              at::Tensor& y2Out, at::Tensor& xOut, at::Tensor& scale1Out,
                              at::Tensor& scale2Out) {
  const auto sum = wide(x1) + wide(x2);
  const auto normal = rms_norm(sum, gamma, betaOptional, epsilon);
  const bool masked = outputMaskOptional.size() == 2;
  const bool second = smoothScale1Optional.has_value() && smoothScale2Optional.has_value();
  quantize_dynamically(normal, smoothScale1Optional, masked ? outputMaskOptional[0] : true, y1Out, scale1Out);
  quantize_dynamically(normal, smoothScale2Optional, masked ? outputMaskOptional[1] : second, y2Out,
                       scale2Out);
  xOut.copy_(sum);
}

void InplaceAddRmsNorm(at::Tensor& x1Ref, at::Tensor& x2Ref, const at::Tensor& gamma, double epsilon,
                       at::Tensor& rstdOut) {
  const auto sum = wide(x1Ref) + wide(x2Ref);
  const auto factor = reciprocal_rms(sum, gamma.dim(), epsilon);
  x1Ref.copy_(sum * factor * wide(gamma));
  x2Ref.copy_(sum);
  rstdOut.copy_(factor);
}

void GroupNormSwish(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& beta, int64_t numGroups,
                    std::string_view dataFormat, double eps, bool activateSwish, double swishScale,
                    at::Tensor& yOut, at::Tensor& meanOut, at::Tensor& rstdOut) {
  TORCH_CHECK(dataFormat == "NCHW", "dataFormat is '", dataFormat, "'; CANN has NCHW");
  const int64_t batch = x.size(0), channels = x.size(1), spatial = c10::multiply_integers(x.sizes().slice(2));
  const auto [y, mean, rstd] = at::native_group_norm(wide(x).contiguous(), wide(gamma), wide(beta), batch,
                                                     channels, spatial, numGroups, eps);
  yOut.copy_(activateSwish ? y * (y * swishScale).sigmoid() : y);
  meanOut.copy_(mean);
  rstdOut.copy_(rstd);
}

void GroupNormSwishGrad(const at::Tensor& dy, const at::Tensor& mean, const at::Tensor& rstd,
                        const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& beta,
                        int64_t numGroups, std::string_view dataFormat, double swishScale,
                        bool dgammaIsRequire, bool dbetaIsRequire, at::Tensor& dxOut, at::Tensor& dgammaOut,
                        at::Tensor& dbetaOut) {
  TORCH_CHECK(dataFormat == "NCHW", "dataFormat is '", dataFormat, "'; CANN has NCHW");
  const int64_t batch = x.size(0), channels = x.size(1), spatial = c10::multiply_integers(x.sizes().slice(2));
  const auto source = wide(x).contiguous(), centre = wide(mean).contiguous(),
             factor = wide(rstd).contiguous();
  const auto of_channels = [&](const at::Tensor& t) { return wide(t).view({1, channels, 1}); };
  const auto of_groups = [&](const at::Tensor& t) { return t.view({batch, numGroups, 1}); };
  const auto normal = (source.view({batch, numGroups, -1}) - of_groups(centre)) * of_groups(factor);
  const auto y = normal.view({batch, channels, spatial}) * of_channels(gamma) + of_channels(beta);
  const auto share = (y * swishScale).sigmoid();
  const auto of_norm =
      wide(dy).reshape({batch, channels, spatial}) * (share + y * swishScale * share * (1 - share));
  const auto [dx, dgamma, dbeta] =
      at::native_group_norm_backward(of_norm.view(x.sizes()), source, centre, factor, wide(gamma), batch,
                                     channels, spatial, numGroups, {true, dgammaIsRequire, dbetaIsRequire});
  dxOut.copy_(dx);
  const auto put = [](const at::Tensor& out, const at::Tensor& value, bool required) {
    required ? out.copy_(value) : out.zero_();
  };
  put(dgammaOut, dgamma, dgammaIsRequire);
  put(dbetaOut, dbeta, dbetaIsRequire);
}

}  // namespace cann_host::host
