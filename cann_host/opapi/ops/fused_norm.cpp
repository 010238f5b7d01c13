// RMS norm, layer norm and what is fused with them, on the kernels of cann_host/kernels/fused.h.
#include "cann_host/opapi/fused.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using kernels::Norm;
using kernels::NormBackward;

/// Rows are what gamma covers.
void set_sizes(Norm& norm, const at::Tensor& x, const at::Tensor& gamma) {
  norm.columns = gamma.numel();
  norm.rows = norm.columns == 0 ? 0 : x.numel() / norm.columns;
}

/// v = x * x_scale + added, normalised; undefined tensors are left out.
struct NormCall {
  at::Tensor x, added, gamma, beta;
  double epsilon = 0;
  float x_scale = 1, gamma_offset = 0;
  bool centered = false;

  void run(const at::Tensor& y, const at::Tensor& sum, const at::Tensor& mean, const at::Tensor& rstd) const {
    const at::Tensor source = dense(x), second = dense(added, x.scalar_type());
    const at::Tensor gain = parameter_like(gamma, x), shift = dense(beta, gain.scalar_type());
    const Result y_result(y, x.scalar_type()), rstd_result(rstd);
    const std::optional<Result> sum_result =
        sum.defined() ? std::optional<Result>(std::in_place, sum) : std::nullopt;
    const std::optional<Result> mean_result =
        mean.defined() ? std::optional<Result>(std::in_place, mean) : std::nullopt;
    Norm norm{};
    norm.type = kernel_type(source);
    norm.parameter_type = kernel_type(gain);
    norm.x = source.const_data_ptr();
    norm.added = data_or_null(second);
    norm.gamma = gain.const_data_ptr();
    norm.beta = data_or_null(shift);
    norm.sum = sum_result ? sum_result->data() : nullptr;
    norm.y = y_result.data();
    norm.mean = mean_result ? mean_result->floats() : nullptr;
    norm.rstd = rstd_result.floats();
    norm.x_scale = x_scale;
    norm.gamma_offset = gamma_offset;
    norm.epsilon = static_cast<float>(epsilon);
    norm.centered = centered;
    set_sizes(norm, source, gain);
    kernels::norm(norm);
  }
};

struct NormGradientCall {
  at::Tensor dy, x, added, gamma, dsum, mean, rstd;
  float x_scale = 1;

  void run(const at::Tensor& dx, const at::Tensor& dadded, const at::Tensor& dgamma,
           const at::Tensor& dbeta) const {
    const at::Tensor gradient = dense(dy, x.scalar_type()), source = dense(x);
    const at::Tensor second = dense(added, x.scalar_type()), more = dense(dsum, x.scalar_type());
    const at::Tensor gain = parameter_like(gamma, x);
    const at::Tensor center = dense(mean, at::kFloat), scale = dense(rstd, at::kFloat);
    const Result dx_result(dx, x.scalar_type()), dgamma_result(dgamma, at::kFloat);
    const std::optional<Result> dadded_result =
        dadded.defined() ? std::optional<Result>(std::in_place, dadded, x.scalar_type()) : std::nullopt;
    const std::optional<Result> dbeta_result =
        dbeta.defined() ? std::optional<Result>(std::in_place, dbeta, at::kFloat) : std::nullopt;
    NormBackward norm{};
    norm.type = kernel_type(source);
    norm.parameter_type = kernel_type(gain);
    norm.dy = gradient.const_data_ptr();
    norm.x = source.const_data_ptr();
    norm.added = data_or_null(second);
    norm.gamma = gain.const_data_ptr();
    norm.dsum = data_or_null(more);
    norm.mean = static_cast<const float*>(data_or_null(center));
    norm.rstd = scale.const_data_ptr<float>();
    norm.dx = dx_result.data();
    norm.dadded = dadded_result ? dadded_result->data() : nullptr;
    norm.dgamma = dgamma_result.floats();
    norm.dbeta = dbeta_result ? dbeta_result->floats() : nullptr;
    norm.x_scale = x_scale;
    norm.columns = gain.numel();
    norm.rows = norm.columns == 0 ? 0 : source.numel() / norm.columns;
    if (norm.columns > 0) kernels::norm_backward(norm);
  }
};

/// The common dtype of two summands, which the sum is computed in.
std::pair<at::Tensor, at::Tensor> promoted(const at::Tensor& a, const at::Tensor& b) {
  const auto dtype = at::promote_types(a.scalar_type(), b.scalar_type());
  return {a.to(dtype), b.to(dtype)};
}

}  // namespace

void RmsNorm(const at::Tensor& x, const at::Tensor& gamma, double epsilon, at::Tensor& y, at::Tensor& rstd) {
  NormCall{.x = x, .gamma = gamma, .epsilon = epsilon}.run(y, {}, {}, rstd);
}

void RmsNormGrad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& gamma,
                 at::Tensor& dx, at::Tensor& dgamma) {
  NormGradientCall{.dy = dy, .x = x, .gamma = gamma, .rstd = rstd}.run(dx, {}, dgamma, {});
}

void GemmaRmsNorm(const at::Tensor& x, const at::Tensor& gamma, double epsilon, at::Tensor& y,
                  at::Tensor& rstd) {
  NormCall{.x = x, .gamma = gamma, .epsilon = epsilon, .gamma_offset = 1}.run(y, {}, {}, rstd);
}

void AddRmsNorm(const at::Tensor& x1, const at::Tensor& x2, const at::Tensor& gamma, double epsilon,
                at::Tensor& y, at::Tensor& rstd, at::Tensor& x) {
  NormCall{.x = x1, .added = x2, .gamma = gamma, .epsilon = epsilon}.run(y, x, {}, rstd);
}

void AddRmsNormCast(const at::Tensor& x1, const at::Tensor& x2, const at::Tensor& gamma, double epsilon,
                    at::Tensor& y1, at::Tensor& y2, at::Tensor& rstd, at::Tensor& x) {
  AddRmsNorm(x1, x2, gamma, epsilon, y2, rstd, x);
  y1.copy_(y2);
}

void AddLayerNorm(const at::Tensor& x1, const at::Tensor& x2, const at::Tensor& gamma, const at::Tensor& beta,
                  const std::optional<at::Tensor>& bias, double epsilon, bool additionalOutput, at::Tensor& y,
                  at::Tensor& mean, at::Tensor& rstd, const std::optional<at::Tensor>& x) {
  auto [a, b] = promoted(x1, x2);
  if (bias.has_value()) b = b + *bias;
  NormCall{.x = a, .added = b, .gamma = gamma, .beta = beta, .epsilon = epsilon, .centered = true}.run(
      y, additionalOutput ? x.value_or(at::Tensor()) : at::Tensor(), mean, rstd);
}

void AddLayerNormGrad(const at::Tensor& dy, const at::Tensor& x1, const at::Tensor& x2,
                      const at::Tensor& rstd, const at::Tensor& mean, const at::Tensor& gamma,
                      const std::optional<at::Tensor>& dsum, at::Tensor& dx, at::Tensor& dgamma,
                      at::Tensor& dbeta) {
  const auto [a, b] = promoted(x1, x2);
  NormGradientCall{.dy = dy,
                   .x = a,
                   .added = b,
                   .gamma = gamma,
                   .dsum = dsum.value_or(at::Tensor()),
                   .mean = mean,
                   .rstd = rstd}
      .run(dx, {}, dgamma, dbeta);
}

void DeepNorm(const at::Tensor& x, const at::Tensor& gx, const at::Tensor& beta, const at::Tensor& gamma,
              double alpha, double epsilon, at::Tensor& mean, at::Tensor& rstd, at::Tensor& y) {
  NormCall{.x = x,
           .added = gx,
           .gamma = gamma,
           .beta = beta,
           .epsilon = epsilon,
           .x_scale = static_cast<float>(alpha),
           .centered = true}
      .run(y, {}, mean, rstd);
}

void DeepNormGrad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gx, const at::Tensor& gamma,
                  const at::Tensor& mean, const at::Tensor& rstd, double alpha, at::Tensor& dx,
                  at::Tensor& dgx, at::Tensor& dbeta, at::Tensor& dgamma) {
  NormGradientCall{.dy = dy,
                   .x = x,
                   .added = gx,
                   .gamma = gamma,
                   .mean = mean,
                   .rstd = rstd,
                   .x_scale = static_cast<float>(alpha)}
      .run(dx, dgx, dgamma, dbeta);
}

void GroupNormSilu(const at::Tensor& self, const std::optional<at::Tensor>& gamma,
                   const std::optional<at::Tensor>& beta, int64_t group, double eps, at::Tensor& out,
                   at::Tensor& meanOut, at::Tensor& rstdOut) {
  const int64_t batch = self.size(0), channels = self.size(1);
  const int64_t spatial = c10::multiply_integers(self.sizes().slice(2));
  const auto [y, mean, rstd] = at::native_group_norm(self, gamma, beta, batch, channels, spatial, group, eps);
  at::silu_out(out, y);
  meanOut.copy_(mean);
  rstdOut.copy_(rstd);
}

}  // namespace cann_host::host
