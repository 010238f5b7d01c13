#include "opapi/host_functions.h"

namespace cann_host::host {

void ThnnFusedLstmCell(const at::Tensor& inputGates, const at::Tensor& hiddenGates, const at::Tensor& cx,
                       const std::optional<at::Tensor>& inputBias,
                       const std::optional<at::Tensor>& hiddenBias, at::Tensor& hy, at::Tensor& cy,
                       at::Tensor& storage) {
  at::add_out(storage, hiddenGates, inputGates);
  if (inputBias.has_value()) storage.add_(*inputBias);
  if (hiddenBias.has_value()) storage.add_(*hiddenBias);
  auto gates = storage.unsafe_chunk(4, 1);  // input, forget, cell, output
  gates[0].sigmoid_();
  gates[1].sigmoid_();
  gates[2].tanh_();
  gates[3].sigmoid_();
  at::mul_out(cy, gates[1], cx);
  cy.add_(gates[0] * gates[2]);
  at::mul_out(hy, gates[3], cy.tanh());
}

void ThnnFusedLstmCellBackward(const std::optional<at::Tensor>& gradHy,
                               const std::optional<at::Tensor>& gradC, const at::Tensor& cx,
                               const at::Tensor& cy, const at::Tensor& storage, bool hasBias,
                               at::Tensor& gradGates, at::Tensor& gradCx,
                               const std::optional<at::Tensor>& gradBias) {
  const auto gates = storage.unsafe_chunk(4, 1);
  const auto& in = gates[0];
  const auto& forget = gates[1];
  const auto& cell = gates[2];
  const auto& out = gates[3];
  auto grads = gradGates.unsafe_chunk(4, 1);
  const auto tanh_cy = cy.tanh();

  auto grad_cy = gradC.has_value() ? *gradC : at::zeros_like(cy);
  if (gradHy.has_value()) {
    at::sigmoid_backward_out(grads[3], *gradHy * tanh_cy, out);
    grad_cy = grad_cy + at::tanh_backward(*gradHy * out, tanh_cy);
  } else {
    grads[3].zero_();
  }
  at::sigmoid_backward_out(grads[0], grad_cy * cell, in);
  at::sigmoid_backward_out(grads[1], grad_cy * cx, forget);
  at::tanh_backward_out(grads[2], grad_cy * in, cell);
  at::mul_out(gradCx, grad_cy, forget);
  if (hasBias && gradBias.has_value()) gradBias->copy_(gradGates.sum(0));
}

}  // namespace cann_host::host
