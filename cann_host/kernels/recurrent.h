#pragma once

// The steps of recurrent layers, over gates that are multiplied already. Matrices are contiguous.

#include <cstdint>

namespace cann_host::kernels {

enum class Recurrence : int { lstm, gru, tanh, relu };
constexpr int recurrence_count = 4;

/// Gates that a step needs for a hidden state, in PyTorch's order: input, forget, cell, output; reset,
/// update, new.
constexpr int64_t gates_of(Recurrence kind) {
  return kind == Recurrence::lstm ? 4 : kind == Recurrence::gru ? 3 : 1;
}
/// Numbers that a step leaves for its gradient: the activated gates, and the state's part of GRU's new gate.
constexpr int64_t saved_of(Recurrence kind) {
  return kind == Recurrence::lstm || kind == Recurrence::gru ? 4 : 0;
}

/// A step for `rows` sequences whose states have `hidden` numbers.
struct RecurrentStep {
  Recurrence kind;
  int64_t rows;
  int64_t hidden;
  const float* gates;        ///< [rows, gates * hidden] of the input; but for gru with those of the state
  const float* state_gates;  ///< gru: the same of the state
  const float* h;            ///< gru: the state before, [rows, hidden]
  const float* c;            ///< lstm: the cell before
  float* saved;              ///< [rows, saved * hidden]; lstm: may be `gates`
  float* next_h;             ///< tanh, relu: may be `gates`
  float* next_c;             ///< lstm
};
void recurrent_step(const RecurrentStep& arguments);

/// The gradients of a step.
struct RecurrentStepBackward {
  Recurrence kind;
  int64_t rows;
  int64_t hidden;
  const float* saved;
  const float* h;            ///< gru: the state before
  const float* next_h;       ///< tanh, relu
  const float* c;            ///< lstm: the cell before
  const float* next_c;       ///< lstm
  const float* grad_output;  ///< of next_h, by whoever reads the layer's output; may be null
  const float* grad_next_h;  ///< of next_h, by the step that follows
  float* grad_c;             ///< lstm: of next_c, becomes that of c
  float* grad_gates;         ///< of RecurrentStep::gates
  float* grad_state_gates;   ///< gru
  float* grad_h;             ///< gru: of h, without what flows through the gates
};
void recurrent_step_backward(const RecurrentStepBackward& arguments);

}  // namespace cann_host::kernels
