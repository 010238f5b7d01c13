// nn.LSTM, nn.GRU and nn.RNN in float32, a layer and direction in one operator, where the CANN underneath has
// it; PyTorch composes them of steps.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/gru_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/lstm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/rnn_relu_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/rnn_tanh_compositeimplicitautograd_dispatch.h>
#include <torch/library.h>

#include "adapter/npu_calls.h"
#include "cann/aclnn/rnn.h"
#include "torch_npu/csrc/dispatch/aclnn.h"
#include "torch_npu/csrc/dispatch/unfused.h"

namespace torch_npu::ops {
namespace {

Aclnn<decltype(::aclnnRecurrentLayerGetWorkspaceSize)> aclnn_layer("aclnnRecurrentLayer");

/// How the layers are put together.
struct Layers {
  std::string_view mode;
  bool has_biases;
  int64_t count;
  double dropout;  // between the layers; 0 where the module does not train
  bool bidirectional;
  bool batch_first;
  bool train;  // gradients are wanted

  int64_t directions() const { return bidirectional ? 2 : 1; }
  /// As in torch.
  const char* function() const {
    if (mode == "LSTM") return "lstm";
    if (mode == "GRU") return "gru";
    return mode == "RNN_TANH" ? "rnn_tanh" : "rnn_relu";
  }
  size_t parameters_a_direction() const { return has_biases ? 4 : 2; }
};

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_privateuseone() && tensor.scalar_type() == at::kFloat;
}

/// Why layers are composed of steps; null where they are not.
const char* why_composed(const Layers& layers, const at::Tensor& input, at::TensorList states,
                         at::TensorList parameters) {
  const auto expected = layers.count * layers.directions() * layers.parameters_a_direction();
  if (parameters.size() != static_cast<size_t>(expected)) return "proj_size must be 0";
  const auto whole = [](const at::Tensor& s) { return is_plain(s) && s.dim() == 3; };
  if (!is_plain(input) || !std::all_of(states.begin(), states.end(), whole) ||
      !std::all_of(parameters.begin(), parameters.end(), is_plain)) {
    return "input, states and weights must be float32 tensors of the device";
  }
  if (input.dim() != 3 || input.sym_size(layers.batch_first ? 1 : 0) == 0) return "there must be a step";
  if (at::autocast::is_autocast_enabled(at::kPrivateUse1)) return "autocast casts the product of each step";
  return aclnn_layer.available() ? nullptr : "CANN lacks aclnnRecurrentLayer";
}

bool fits(const Layers& layers, const at::Tensor& input, at::TensorList states, at::TensorList parameters) {
  // Function transforms have rules for PyTorch's steps alone.
  if (c10::impl::tls_local_dispatch_key_set().included_.has(
          c10::DispatchKey::FuncTorchDynamicLayerFrontMode)) {
    return false;
  }
  const char* reason = why_composed(layers, input, states, parameters);
  if (reason != nullptr) note_unfused(layers.function(), reason);
  return reason == nullptr;
}

bool wants_gradients(const at::Tensor& input, at::TensorList states, at::TensorList parameters) {
  const auto wants = [](const at::Tensor& tensor) { return tensor.requires_grad(); };
  return at::GradMode::is_enabled() && (wants(input) || std::any_of(states.begin(), states.end(), wants) ||
                                        std::any_of(parameters.begin(), parameters.end(), wants));
}

/// One direction of one layer.
struct Direction {
  at::Tensor output, last_state, last_cell;
};

Direction run(const Layers& layers, const at::Tensor& input, at::TensorList states, at::TensorList parameters,
              int64_t number, bool reverse) {
  const auto own =
      parameters.slice(number * layers.parameters_a_direction(), layers.parameters_a_direction());
  const bool gru = layers.mode == "GRU", lstm = layers.mode == "LSTM";
  std::optional<at::Tensor> bias, hidden_bias, cell;
  if (layers.has_biases) {
    bias = gru ? own[2] : own[2] + own[3];
    if (gru) hidden_bias = own[3];
  }
  if (lstm) cell = states[1].select(0, number);
  auto [output, last_cell, cells, saved] =
      call::_recurrent_layer(at::linear(input, own[0], bias), own[1], hidden_bias,
                             states[0].select(0, number), cell, layers.mode, reverse, layers.train);
  at::Tensor last_state = output.select(0, reverse ? 0 : -1);
  return {std::move(output), std::move(last_state), std::move(last_cell)};
}

/// The output of the last layer, and the last states and cells of all.
std::tuple<at::Tensor, at::Tensor, at::Tensor> run(const Layers& layers, const at::Tensor& input,
                                                   at::TensorList states, at::TensorList parameters) {
  at::Tensor flowing = layers.batch_first ? input.transpose(0, 1) : input;
  std::vector<at::Tensor> last_states, last_cells;
  for (int64_t layer = 0; layer < layers.count; ++layer) {
    std::vector<at::Tensor> outputs;
    for (int64_t d = 0; d < layers.directions(); ++d) {
      Direction done = run(layers, flowing, states, parameters, layer * layers.directions() + d, d == 1);
      outputs.push_back(std::move(done.output));
      last_states.push_back(std::move(done.last_state));
      last_cells.push_back(std::move(done.last_cell));
    }
    flowing = layers.bidirectional ? at::cat(outputs, -1) : outputs[0];
    if (layers.dropout > 0 && layer + 1 < layers.count) flowing = at::dropout(flowing, layers.dropout, true);
  }
  if (layers.batch_first) flowing = flowing.transpose(0, 1);
  return {std::move(flowing), at::stack(last_states),
          layers.mode == "LSTM" ? at::stack(last_cells) : at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm(const at::Tensor& input, at::TensorList hx,
                                                    at::TensorList params, bool has_biases,
                                                    int64_t num_layers, double dropout, bool train,
                                                    bool bidirectional, bool batch_first) {
  const Layers layers{"LSTM",
                      has_biases,
                      num_layers,
                      train ? dropout : 0,
                      bidirectional,
                      batch_first,
                      wants_gradients(input, hx, params)};
  if (hx.size() == 2 && fits(layers, input, hx, params)) return run(layers, input, hx, params);
  return at::compositeimplicitautograd::lstm(input, hx, params, has_biases, num_layers, dropout, train,
                                             bidirectional, batch_first);
}

using Composed = std::tuple<at::Tensor, at::Tensor> (*)(const at::Tensor&, const at::Tensor&, at::TensorList,
                                                        bool, int64_t, double, bool, bool, bool);

std::tuple<at::Tensor, at::Tensor> run_or(Composed composed, std::string_view mode, const at::Tensor& input,
                                          const at::Tensor& hx, at::TensorList params, bool has_biases,
                                          int64_t num_layers, double dropout, bool train, bool bidirectional,
                                          bool batch_first) {
  const Layers layers{mode,
                      has_biases,
                      num_layers,
                      train ? dropout : 0,
                      bidirectional,
                      batch_first,
                      wants_gradients(input, hx, params)};
  if (!fits(layers, input, hx, params)) {
    return composed(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
  }
  auto [output, last_states, none] = run(layers, input, hx, params);
  return {std::move(output), std::move(last_states)};
}

std::tuple<at::Tensor, at::Tensor> gru(const at::Tensor& input, const at::Tensor& hx, at::TensorList params,
                                       bool has_biases, int64_t num_layers, double dropout, bool train,
                                       bool bidirectional, bool batch_first) {
  return run_or(&at::compositeimplicitautograd::gru, "GRU", input, hx, params, has_biases, num_layers,
                dropout, train, bidirectional, batch_first);
}

std::tuple<at::Tensor, at::Tensor> rnn_tanh(const at::Tensor& input, const at::Tensor& hx,
                                            at::TensorList params, bool has_biases, int64_t num_layers,
                                            double dropout, bool train, bool bidirectional,
                                            bool batch_first) {
  return run_or(&at::compositeimplicitautograd::rnn_tanh, "RNN_TANH", input, hx, params, has_biases,
                num_layers, dropout, train, bidirectional, batch_first);
}

std::tuple<at::Tensor, at::Tensor> rnn_relu(const at::Tensor& input, const at::Tensor& hx,
                                            at::TensorList params, bool has_biases, int64_t num_layers,
                                            double dropout, bool train, bool bidirectional,
                                            bool batch_first) {
  return run_or(&at::compositeimplicitautograd::rnn_relu, "RNN_RELU", input, hx, params, has_biases,
                num_layers, dropout, train, bidirectional, batch_first);
}

void add_layers(torch::Library& m) {
  m.impl("lstm.input", TORCH_FN(lstm));
  m.impl("gru.input", TORCH_FN(gru));
  m.impl("rnn_tanh.input", TORCH_FN(rnn_tanh));
  m.impl("rnn_relu.input", TORCH_FN(rnn_relu));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { add_layers(m); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { add_layers(m); }

}  // namespace torch_npu::ops
