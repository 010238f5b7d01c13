// Steps of recurrent networks over gates that were multiplied already.
#include <ATen/ATen.h>

#include "torch_npu/csrc/ops/kernel.h"

namespace torch_npu::ops {
namespace {

Aclnn<decltype(::aclnnThnnFusedLstmCellGetWorkspaceSize)> aclnn_lstm_cell("aclnnThnnFusedLstmCell");
Aclnn<decltype(::aclnnThnnFusedLstmCellBackwardGetWorkspaceSize)> aclnn_lstm_cell_backward(
    "aclnnThnnFusedLstmCellBackward");

using Optional = std::optional<at::Tensor>;

bool is_defined(const Optional& tensor) { return tensor.has_value() && tensor->defined(); }

/// CANN's operators step over two dimensions; others are added up from elementwise operators.
bool cell_fits(const at::Tensor& gates, const at::Tensor& cx) { return gates.dim() == 2 && cx.dim() == 2; }

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> thnn_fused_lstm_cell(const at::Tensor& input_gates,
                                                                    const at::Tensor& hidden_gates,
                                                                    const at::Tensor& cx,
                                                                    const Optional& input_bias,
                                                                    const Optional& hidden_bias) {
  same_device("_thnn_fused_lstm_cell", input_gates, "input_gates", hidden_gates, "hidden_gates", cx, "cx");
  const DeviceSwitch on(DeviceSwitch::of(input_gates));
  if (native(aclnn_lstm_cell, kHalfAndFloat, input_gates, hidden_gates, cx, input_bias, hidden_bias) &&
      cell_fits(input_gates, cx) && input_gates.sizes() == hidden_gates.sizes()) {
    at::Tensor workspace = new_output(input_gates.sizes(), input_gates.scalar_type(), input_gates);
    at::Tensor hy = new_output(cx.sizes(), cx.scalar_type(), cx);
    at::Tensor cy = new_output(cx.sizes(), cx.scalar_type(), cx);
    aclnn_lstm_cell(input_gates, hidden_gates, cx, input_bias, hidden_bias, hy, cy, workspace);
    return {std::move(hy), std::move(cy), std::move(workspace)};
  }
  at::Tensor workspace = hidden_gates + input_gates;
  if (is_defined(input_bias)) workspace.add_(*input_bias);
  if (is_defined(hidden_bias)) workspace.add_(*hidden_bias);
  auto gates = workspace.unsafe_chunk(4, 1);  // input, forget, cell, output
  for (size_t i : {0, 1, 3}) gates[i].sigmoid_();
  gates[2].tanh_();
  at::Tensor cy = gates[1] * cx + gates[0] * gates[2];
  at::Tensor hy = gates[3] * cy.tanh();
  return {std::move(hy), std::move(cy), std::move(workspace)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> thnn_fused_lstm_cell_backward(
    const Optional& grad_hy, const Optional& grad_cy, const at::Tensor& cx, const at::Tensor& cy,
    const at::Tensor& workspace, bool has_bias) {
  if (!is_defined(grad_hy) && !is_defined(grad_cy)) return {};
  const DeviceSwitch on(DeviceSwitch::of(cx));
  if (native(aclnn_lstm_cell_backward, kHalfAndFloat, cx, cy, workspace, grad_hy, grad_cy) &&
      cell_fits(workspace, cx)) {
    at::Tensor grad_gates = new_output(workspace.sizes(), workspace.scalar_type(), workspace);
    at::Tensor grad_cx = new_output(cx.sizes(), cx.scalar_type(), cx);
    at::Tensor grad_bias = new_output_if(has_bias, {workspace.size(1)}, cx.scalar_type(), cx);
    aclnn_lstm_cell_backward(grad_hy, grad_cy, cx, cy, workspace, has_bias, grad_gates, grad_cx, grad_bias);
    return {std::move(grad_gates), std::move(grad_cx), std::move(grad_bias)};
  }
  const auto gates = workspace.unsafe_chunk(4, 1);
  const at::Tensor tanh_cy = cy.tanh();
  at::Tensor of_cell = is_defined(grad_cy) ? *grad_cy : at::zeros_like(cy);
  at::Tensor of_output = at::zeros_like(cy);
  if (is_defined(grad_hy)) {
    of_output = at::sigmoid_backward(*grad_hy * tanh_cy, gates[3]);
    of_cell = of_cell + at::tanh_backward(*grad_hy * gates[3], tanh_cy);
  }
  at::Tensor grad_gates = at::cat(
      {at::sigmoid_backward(of_cell * gates[2], gates[0]), at::sigmoid_backward(of_cell * cx, gates[1]),
       at::tanh_backward(of_cell * gates[0], gates[2]), of_output},
      1);
  at::Tensor grad_bias = has_bias ? grad_gates.sum(0) : at::Tensor();
  return {std::move(grad_gates), of_cell * gates[1], std::move(grad_bias)};
}

// The workspace of a GRU step, [B, 5 H]: reset, update and new gate, hx, and the hidden part of the new gate.

std::tuple<at::Tensor, at::Tensor> thnn_fused_gru_cell(const at::Tensor& input_gates,
                                                       const at::Tensor& hidden_gates, const at::Tensor& hx,
                                                       const Optional& input_bias,
                                                       const Optional& hidden_bias) {
  same_device("_thnn_fused_gru_cell", input_gates, "input_gates", hidden_gates, "hidden_gates", hx, "hx");
  const at::Tensor in = is_defined(input_bias) ? input_gates + *input_bias : input_gates;
  const at::Tensor hidden = is_defined(hidden_bias) ? hidden_gates + *hidden_bias : hidden_gates;
  const auto i = in.unsafe_chunk(3, 1);
  const auto h = hidden.unsafe_chunk(3, 1);
  const at::Tensor reset = (i[0] + h[0]).sigmoid_();
  const at::Tensor update = (i[1] + h[1]).sigmoid_();
  const at::Tensor fresh = (i[2] + reset * h[2]).tanh_();
  at::Tensor hy = fresh + update * (hx - fresh);
  return {std::move(hy), at::cat({reset, update, fresh, hx, h[2]}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> thnn_fused_gru_cell_backward(
    const at::Tensor& grad_hy, const at::Tensor& workspace, bool has_bias) {
  const auto saved = workspace.unsafe_chunk(5, 1);
  const auto& reset = saved[0];
  const auto& update = saved[1];
  const auto& fresh = saved[2];
  const at::Tensor of_update = at::sigmoid_backward(grad_hy * (saved[3] - fresh), update);
  const at::Tensor of_fresh = at::tanh_backward(grad_hy * (1 - update), fresh);
  const at::Tensor of_reset = at::sigmoid_backward(of_fresh * saved[4], reset);
  at::Tensor grad_input = at::cat({of_reset, of_update, of_fresh}, 1);
  at::Tensor grad_hidden = at::cat({of_reset, of_update, of_fresh * reset}, 1);
  at::Tensor input_bias = has_bias ? grad_input.sum(0) : at::Tensor();
  at::Tensor hidden_bias = has_bias ? grad_hidden.sum(0) : at::Tensor();
  return {std::move(grad_input), std::move(grad_hidden), grad_hy * update, std::move(input_bias),
          std::move(hidden_bias)};
}

}  // namespace torch_npu::ops
