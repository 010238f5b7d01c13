// Fused optimizer steps and loss scaling.
#include <ATen/ATen.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale_ops.h>
#include <ATen/ops/_fused_sgd_ops.h>

#include "torch_npu/csrc/ops/kernel.h"

namespace torch_npu::ops {
namespace {

Aclnn<decltype(::aclnnApplyAdamWV2GetWorkspaceSize)> aclnn_apply_adamw("aclnnApplyAdamWV2");
Aclnn<decltype(::aclnnFusedSgdGetWorkspaceSize)> aclnn_fused_sgd("aclnnFusedSgd");
Aclnn<decltype(::aclnnForeachNonFiniteCheckAndUnscaleGetWorkspaceSize)> aclnn_non_finite_check_and_unscale(
    "aclnnForeachNonFiniteCheckAndUnscale");

using Optional = std::optional<at::Tensor>;

bool is_defined(const Optional& tensor) { return tensor.has_value() && tensor->defined(); }

/// Whether loss scaling found infinities, so that this step does nothing. Reads from the device.
bool skips(const Optional& found_inf) { return is_defined(found_inf) && found_inf->item<float>() == 1; }

/// One step of Adam for all parameters; `decoupled` decay (AdamW) shrinks the parameters, the other joins the
/// gradients.
void adam(at::TensorList self, at::TensorList grads, at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
          at::TensorList max_exp_avg_sqs, at::TensorList state_steps, double lr, double beta1, double beta2,
          double weight_decay, double eps, bool amsgrad, bool maximize, const Optional& grad_scale,
          const Optional& found_inf, bool decoupled) {
  TORCH_CHECK(self.size() == grads.size() && self.size() == exp_avgs.size() &&
                  self.size() == exp_avg_sqs.size() && self.size() == state_steps.size() &&
                  (!amsgrad || self.size() == max_exp_avg_sqs.size()),
              "fused Adam: all lists of tensors must have the same length");
  if (skips(found_inf)) return;
  const DeviceSwitch on(DeviceSwitch::of(self));
  const bool decays_gradient = !decoupled && weight_decay != 0;
  for (size_t i = 0; i < self.size(); ++i) {
    if (is_defined(grad_scale))
      grads[i].div_(*grad_scale);  // the caller sees unscaled gradients, as on the CPU
    at::Tensor grad = grads[i];
    if (decays_gradient) grad = grad.add(self[i], maximize ? -weight_decay : weight_decay);
    // CANN counts the steps before this one.
    aclnn_apply_adamw(self[i], exp_avgs[i], exp_avg_sqs[i], amsgrad ? max_exp_avg_sqs[i] : at::Tensor(), grad,
                      state_steps[i].sub(1), lr, beta1, beta2, decoupled ? weight_decay : 0.0, eps, amsgrad,
                      maximize);
  }
}

void sgd(at::TensorList self, at::TensorList grads, at::TensorList momentum_buffer_list, double weight_decay,
         double momentum, double lr, double dampening, bool nesterov, bool maximize, bool is_first_step,
         const Optional& grad_scale, const Optional& found_inf) {
  const DeviceSwitch on(DeviceSwitch::of(self));
  if (momentum == 0 || momentum_buffer_list.empty() || !native(aclnn_fused_sgd, kHalfAndFloat, self, grads) ||
      !fits_foreach({self, grads})) {
    fallback<at::_ops::_fused_sgd_>(self, grads, momentum_buffer_list, weight_decay, momentum, lr, dampening,
                                    nesterov, maximize, is_first_step, grad_scale, found_inf);
    return;
  }
  if (skips(found_inf)) return;
  aclnn_fused_sgd(self, grads, momentum_buffer_list, grad_scale, weight_decay, momentum, lr, dampening,
                  nesterov, maximize, is_first_step);
}

}  // namespace

void fused_adamw(at::TensorList self, at::TensorList grads, at::TensorList exp_avgs,
                 at::TensorList exp_avg_sqs, at::TensorList max_exp_avg_sqs, at::TensorList state_steps,
                 double lr, double beta1, double beta2, double weight_decay, double eps, bool amsgrad,
                 bool maximize, const Optional& grad_scale, const Optional& found_inf) {
  adam(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps,
       amsgrad, maximize, grad_scale, found_inf, /*decoupled=*/true);
}

void fused_adamw_tensor_lr(at::TensorList self, at::TensorList grads, at::TensorList exp_avgs,
                           at::TensorList exp_avg_sqs, at::TensorList max_exp_avg_sqs,
                           at::TensorList state_steps, const at::Tensor& lr, double beta1, double beta2,
                           double weight_decay, double eps, bool amsgrad, bool maximize,
                           const Optional& grad_scale, const Optional& found_inf) {
  adam(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr.item<double>(), beta1, beta2,
       weight_decay, eps, amsgrad, maximize, grad_scale, found_inf, /*decoupled=*/true);
}

void fused_adam(at::TensorList self, at::TensorList grads, at::TensorList exp_avgs,
                at::TensorList exp_avg_sqs, at::TensorList max_exp_avg_sqs, at::TensorList state_steps,
                double lr, double beta1, double beta2, double weight_decay, double eps, bool amsgrad,
                bool maximize, const Optional& grad_scale, const Optional& found_inf) {
  adam(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps,
       amsgrad, maximize, grad_scale, found_inf, /*decoupled=*/false);
}

void fused_adam_tensor_lr(at::TensorList self, at::TensorList grads, at::TensorList exp_avgs,
                          at::TensorList exp_avg_sqs, at::TensorList max_exp_avg_sqs,
                          at::TensorList state_steps, const at::Tensor& lr, double beta1, double beta2,
                          double weight_decay, double eps, bool amsgrad, bool maximize,
                          const Optional& grad_scale, const Optional& found_inf) {
  adam(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr.item<double>(), beta1, beta2,
       weight_decay, eps, amsgrad, maximize, grad_scale, found_inf, /*decoupled=*/false);
}

void fused_sgd(at::TensorList self, at::TensorList grads, at::TensorList momentum_buffer_list,
               double weight_decay, double momentum, double lr, double dampening, bool nesterov,
               bool maximize, bool is_first_step, const Optional& grad_scale, const Optional& found_inf) {
  sgd(self, grads, momentum_buffer_list, weight_decay, momentum, lr, dampening, nesterov, maximize,
      is_first_step, grad_scale, found_inf);
}

void fused_sgd_tensor_lr(at::TensorList self, at::TensorList grads, at::TensorList momentum_buffer_list,
                         double weight_decay, double momentum, const at::Tensor& lr, double dampening,
                         bool nesterov, bool maximize, bool is_first_step, const Optional& grad_scale,
                         const Optional& found_inf) {
  sgd(self, grads, momentum_buffer_list, weight_decay, momentum, lr.item<double>(), dampening, nesterov,
      maximize, is_first_step, grad_scale, found_inf);
}

void amp_foreach_non_finite_check_and_unscale(at::TensorList self, at::Tensor& found_inf,
                                              const at::Tensor& inv_scale) {
  if (self.empty()) return;
  const DeviceSwitch on(DeviceSwitch::of(self));
  if (!native(aclnn_non_finite_check_and_unscale, kHalfAndFloat, self)) {
    fallback<at::_ops::_amp_foreach_non_finite_check_and_unscale_>(self, found_inf, inv_scale);
    return;
  }
  constexpr size_t kMaxTensors = 250;  // of CANN's operator
  for (size_t start = 0; start < self.size(); start += kMaxTensors) {
    const size_t count = std::min(kMaxTensors, self.size() - start);
    aclnn_non_finite_check_and_unscale(self.slice(start, count), found_inf, inv_scale);
  }
}

}  // namespace torch_npu::ops
