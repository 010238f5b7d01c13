// Whole recurrent layers: products of all steps with weights at once, and each step's product with the state,
// by ATen; what lies between by kernels.
#include "cann_host/kernels/recurrent.h"

#include <string_view>

#include "cann_host/kernels/matvec.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using kernels::DataType;
using kernels::Recurrence;

Recurrence recurrence_named(std::string_view mode) {
  if (mode == "LSTM") return Recurrence::lstm;
  if (mode == "GRU") return Recurrence::gru;
  if (mode == "RNN_TANH") return Recurrence::tanh;
  TORCH_CHECK(mode == "RNN_RELU", "mode must be LSTM, GRU, RNN_TANH or RNN_RELU, not ", mode);
  return Recurrence::relu;
}

/// The weight of the states as their products read it best: for one row as it lies, for more the other way
/// round, which a few steps are worth.
class StateWeight {
 public:
  StateWeight(const at::Tensor& weight, int64_t rows)
      : rows_(rows), weight_(rows == 1 ? weight.contiguous() : weight.t().contiguous()) {}

  /// out = added + h @ weightᵀ; added: a row for all, or one for each.
  void multiply(float* out, const float* added, bool added_is_one_row, const float* h) const {
    if (rows_ == 1) {
      kernels::matvec({.type = DataType::float32,
                       .weight_type = DataType::float32,
                       .x = h,
                       .weight = weight_.const_data_ptr(),
                       .bias = added,
                       .scale = nullptr,
                       .offset = nullptr,
                       .y = out,
                       .rows = 1,
                       .columns = weight_.size(0),
                       .inner = weight_.size(1),
                       .weight_stride = weight_.size(1)});
      return;
    }
    const int64_t columns = weight_.size(1);
    at::Tensor result = matrix(out, rows_, columns);
    at::addmm_out(result, matrix(added, added_is_one_row ? 1 : rows_, columns),
                  matrix(h, rows_, weight_.size(0)), weight_);
  }

 private:
  at::Tensor matrix(const float* data, int64_t rows, int64_t columns) const {
    return at::from_blob(const_cast<float*>(data), {rows, columns}, weight_.options());
  }

  int64_t rows_;
  at::Tensor weight_;
};

/// The matrices of all steps, one behind the other; none at all where a recurrence has no such thing.
class Matrices {
 public:
  explicit Matrices(const at::Tensor& all)
      : data_(all.numel() == 0 ? nullptr : const_cast<float*>(all.const_data_ptr<float>())),
        size_(all.dim() == 3 ? all.size(1) * all.size(2) : 0) {
    TORCH_CHECK(all.is_contiguous(), "the steps of a recurrent layer must lie one behind the other; sizes ",
                all.sizes(), ", strides ", all.strides());
  }
  explicit Matrices(const std::optional<at::Tensor>& all)
      : Matrices(all.value_or(at::Tensor(at::empty({0})))) {}
  float* at(int64_t t) const { return data_ == nullptr ? nullptr : data_ + t * size_; }

 private:
  float* data_;
  int64_t size_;
};

std::optional<at::Tensor> dense(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() ? std::optional(tensor->contiguous()) : tensor;
}

/// The steps in the order in which they are taken.
class Steps {
 public:
  Steps(int64_t count, bool reverse) : count_(count), reverse_(reverse) {}
  int64_t at(int64_t step) const { return reverse_ ? count_ - 1 - step : step; }
  /// The state before a step: of the step before, or the first one.
  const float* before(const Matrices& states, const at::Tensor& first, int64_t step) const {
    return step == 0 ? first.const_data_ptr<float>() : states.at(at(step - 1));
  }
  /// The states before all steps, [steps, rows, hidden].
  at::Tensor all_before(const at::Tensor& states, const at::Tensor& first) const {
    const at::Tensor rest = states.narrow(0, reverse_ ? 1 : 0, count_ - 1);
    return reverse_ ? at::cat({rest, first.unsqueeze(0)}) : at::cat({first.unsqueeze(0), rest});
  }

 private:
  int64_t count_;
  bool reverse_;
};

}  // namespace

void RecurrentLayer(const at::Tensor& inputGates, const at::Tensor& hiddenWeight,
                    const std::optional<at::Tensor>& hiddenBias, const at::Tensor& h0,
                    const std::optional<at::Tensor>& c0, std::string_view mode, bool reverse, bool train,
                    at::Tensor& output, at::Tensor& lastCell, at::Tensor& cells, at::Tensor& saved) {
  const Recurrence kind = recurrence_named(mode);
  const at::Tensor all_gates = inputGates.contiguous();
  const at::Tensor first_h = h0.contiguous(), first_c = c0.value_or(h0).contiguous();
  const int64_t count = inputGates.size(0), rows = h0.size(0), hidden = h0.size(1);
  const bool lstm = kind == Recurrence::lstm, gru = kind == Recurrence::gru;
  const at::Tensor bias = gru ? hiddenBias.value_or(at::zeros({3 * hidden}, h0.options())).contiguous() : h0;
  const at::Tensor of_state = at::empty({gru ? rows * 3 * hidden : 0}, h0.options());
  const Matrices gates(all_gates), states(output), all_cells(cells), kept(saved);
  const StateWeight weight(hiddenWeight, rows);
  const Steps steps(count, reverse);
  for (int64_t step = 0; step < count; ++step) {
    const int64_t t = steps.at(step), own = train ? t : 0;  // where the step leaves cell and gates
    const float* h = steps.before(states, first_h, step);
    float* product = gru ? of_state.mutable_data_ptr<float>() : lstm ? kept.at(own) : states.at(t);
    const float* before_c = train || step == 0 ? steps.before(all_cells, first_c, step) : all_cells.at(0);
    weight.multiply(product, gru ? bias.const_data_ptr<float>() : gates.at(t), gru, h);
    kernels::recurrent_step({.kind = kind,
                             .rows = rows,
                             .hidden = hidden,
                             .gates = gru ? gates.at(t) : product,
                             .state_gates = product,
                             .h = h,
                             .c = lstm ? before_c : nullptr,
                             .saved = kept.at(own),
                             .next_h = states.at(t),
                             .next_c = all_cells.at(own)});
  }
  if (lstm) lastCell.copy_(count == 0 ? first_c : cells.select(0, train ? steps.at(count - 1) : 0));
}

void RecurrentLayerBackward(const std::optional<at::Tensor>& gradOutput,
                            const std::optional<at::Tensor>& gradLastCell, const at::Tensor& output,
                            const at::Tensor& hiddenWeight, const at::Tensor& h0,
                            const std::optional<at::Tensor>& c0, const at::Tensor& cells,
                            const at::Tensor& saved, std::string_view mode, bool reverse,
                            at::Tensor& gradGates, at::Tensor& gradWeight, at::Tensor& gradBias,
                            at::Tensor& gradH0, at::Tensor& gradC0) {
  const Recurrence kind = recurrence_named(mode);
  const bool lstm = kind == Recurrence::lstm, gru = kind == Recurrence::gru;
  const at::Tensor weight = hiddenWeight.contiguous();
  const at::Tensor first_h = h0.contiguous(), first_c = c0.value_or(h0).contiguous();
  const int64_t count = output.size(0), rows = h0.size(0), hidden = h0.size(1);
  const auto of_output = dense(gradOutput);
  const at::Tensor direct = at::empty_like(first_h);
  at::Tensor of_h = at::zeros_like(first_h);
  at::Tensor of_c =
      gradLastCell.has_value() ? gradLastCell->clone(at::MemoryFormat::Contiguous) : at::zeros_like(first_h);
  const at::Tensor of_state_gates = gru ? at::empty_like(gradGates) : gradGates;
  const Matrices states(output), all_cells(cells), kept(saved), of_outputs(of_output), of_gates(gradGates),
      of_states(of_state_gates);
  const Steps steps(count, reverse);
  for (int64_t step = count - 1; step >= 0; --step) {
    const int64_t t = steps.at(step);
    kernels::recurrent_step_backward({.kind = kind,
                                      .rows = rows,
                                      .hidden = hidden,
                                      .saved = kept.at(t),
                                      .h = steps.before(states, first_h, step),
                                      .next_h = states.at(t),
                                      .c = lstm ? steps.before(all_cells, first_c, step) : nullptr,
                                      .next_c = all_cells.at(t),
                                      .grad_output = of_outputs.at(t),
                                      .grad_next_h = of_h.const_data_ptr<float>(),
                                      .grad_c = of_c.mutable_data_ptr<float>(),
                                      .grad_gates = of_gates.at(t),
                                      .grad_state_gates = of_states.at(t),
                                      .grad_h = direct.mutable_data_ptr<float>()});
    if (gru) {
      at::addmm_out(of_h, direct, of_state_gates.select(0, t), weight);
    } else {
      at::mm_out(of_h, of_state_gates.select(0, t), weight);
    }
  }
  gradH0.copy_(of_h);
  if (lstm) gradC0.copy_(of_c);
  if (count == 0) {
    gradWeight.zero_();
  } else {
    const at::Tensor before = steps.all_before(output, first_h);
    at::mm_out(gradWeight, of_state_gates.flatten(0, 1).t(), before.flatten(0, 1));
  }
  if (gru) at::sum_out(gradBias, of_state_gates, at::IntArrayRef{0, 1});
}

}  // namespace cann_host::host
