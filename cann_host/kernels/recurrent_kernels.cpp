// The elementwise part of recurrent steps. Compiled once per instruction set.

#include "cann_host/kernels/recurrent_kernels.h"

#include "cann_host/kernels/math.h"
#include "cann_host/kernels/row.h"

namespace cann_host::kernels {
namespace {

using V = Vec<float>;

V sigmoid_slope(V y) { return y * (1 - y); }
V tanh_slope(V y) { return 1 - y * y; }

/// The gradient of next_h in row r: by the layer's output, if it has one, and by the following step.
struct GradientOfState {
  const float* output;
  const float* next;

  GradientOfState(const RecurrentStepBackward& a, int64_t r)
      : output(a.grad_output == nullptr ? nullptr : a.grad_output + r * a.hidden),
        next(a.grad_next_h + r * a.hidden) {}

  template <class Place>
  V at(int64_t i, Place place) const {
    const V sum = load(next + i, place);
    return output == nullptr ? sum : sum + load(output + i, place);
  }
};

struct Lstm {
  static void forward(const RecurrentStep& a, int64_t r) {
    const int64_t n = a.hidden;
    const float *gates = a.gates + 4 * r * n, *c = a.c + r * n;
    float *saved = a.saved + 4 * r * n, *h = a.next_h + r * n, *next_c = a.next_c + r * n;
    each_vector(n, [&](int64_t i, auto place) {
      const V in = sigmoid<float>(load(gates + i, place)),
              forget = sigmoid<float>(load(gates + n + i, place));
      const V cell = tanh<float>(load(gates + 2 * n + i, place));
      const V out = sigmoid<float>(load(gates + 3 * n + i, place));
      const V state = forget * load(c + i, place) + in * cell;
      store(next_c + i, state, place);
      store(h + i, out * tanh<float>(state), place);
      store(saved + i, in, place);
      store(saved + n + i, forget, place);
      store(saved + 2 * n + i, cell, place);
      store(saved + 3 * n + i, out, place);
    });
  }

  static void backward(const RecurrentStepBackward& a, int64_t r) {
    const int64_t n = a.hidden;
    const float *saved = a.saved + 4 * r * n, *c = a.c + r * n, *next_c = a.next_c + r * n;
    float *grad = a.grad_gates + 4 * r * n, *grad_c = a.grad_c + r * n;
    const GradientOfState gradient(a, r);
    each_vector(n, [&](int64_t i, auto place) {
      const V in = load(saved + i, place), forget = load(saved + n + i, place);
      const V cell = load(saved + 2 * n + i, place), out = load(saved + 3 * n + i, place);
      const V of_h = gradient.at(i, place), squashed = tanh<float>(load(next_c + i, place));
      const V of_c = load(grad_c + i, place) + of_h * out * tanh_slope(squashed);
      store(grad + i, of_c * cell * sigmoid_slope(in), place);
      store(grad + n + i, of_c * load(c + i, place) * sigmoid_slope(forget), place);
      store(grad + 2 * n + i, of_c * in * tanh_slope(cell), place);
      store(grad + 3 * n + i, of_h * squashed * sigmoid_slope(out), place);
      store(grad_c + i, of_c * forget, place);
    });
  }
};

struct Gru {
  static void forward(const RecurrentStep& a, int64_t r) {
    const int64_t n = a.hidden;
    const float *gates = a.gates + 3 * r * n, *state = a.state_gates + 3 * r * n, *h = a.h + r * n;
    float *saved = a.saved + 4 * r * n, *next_h = a.next_h + r * n;
    each_vector(n, [&](int64_t i, auto place) {
      const V reset = sigmoid<float>(load(gates + i, place) + load(state + i, place));
      const V update = sigmoid<float>(load(gates + n + i, place) + load(state + n + i, place));
      const V of_state = load(state + 2 * n + i, place);
      const V fresh = tanh<float>(load(gates + 2 * n + i, place) + reset * of_state);
      store(next_h + i, fresh + update * (load(h + i, place) - fresh), place);
      store(saved + i, reset, place);
      store(saved + n + i, update, place);
      store(saved + 2 * n + i, fresh, place);
      store(saved + 3 * n + i, of_state, place);
    });
  }

  static void backward(const RecurrentStepBackward& a, int64_t r) {
    const int64_t n = a.hidden;
    const float *saved = a.saved + 4 * r * n, *h = a.h + r * n;
    float *grad = a.grad_gates + 3 * r * n, *of_state_gates = a.grad_state_gates + 3 * r * n;
    float* grad_h = a.grad_h + r * n;
    const GradientOfState gradient(a, r);
    each_vector(n, [&](int64_t i, auto place) {
      const V reset = load(saved + i, place), update = load(saved + n + i, place);
      const V fresh = load(saved + 2 * n + i, place), of_h = gradient.at(i, place);
      const V of_update = of_h * (load(h + i, place) - fresh) * sigmoid_slope(update);
      const V of_fresh = of_h * (1 - update) * tanh_slope(fresh);
      const V of_reset = of_fresh * load(saved + 3 * n + i, place) * sigmoid_slope(reset);
      store(grad + i, of_reset, place);
      store(grad + n + i, of_update, place);
      store(grad + 2 * n + i, of_fresh, place);
      store(of_state_gates + i, of_reset, place);
      store(of_state_gates + n + i, of_update, place);
      store(of_state_gates + 2 * n + i, of_fresh * reset, place);
      store(grad_h + i, of_h * update, place);
    });
  }
};

struct Tanh {
  static V of(V x) { return tanh<float>(x); }
  static V slope(V y) { return tanh_slope(y); }
};
struct Relu {
  static V of(V x) { return select(x < 0, V{}, x); }  // NaN stays
  static V slope(V y) { return select(y > 0, splat<V>(1), V{}); }
};

template <class Activation>
struct Plain {
  static void forward(const RecurrentStep& a, int64_t r) {
    const float* gates = a.gates + r * a.hidden;
    float* h = a.next_h + r * a.hidden;
    each_vector(a.hidden,
                [&](int64_t i, auto place) { store(h + i, Activation::of(load(gates + i, place)), place); });
  }

  static void backward(const RecurrentStepBackward& a, int64_t r) {
    const float* h = a.next_h + r * a.hidden;
    float* grad = a.grad_gates + r * a.hidden;
    const GradientOfState gradient(a, r);
    each_vector(a.hidden, [&](int64_t i, auto place) {
      store(grad + i, gradient.at(i, place) * Activation::slope(load(h + i, place)), place);
    });
  }
};

template <class Step>
void forward_rows(const RecurrentStep& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) Step::forward(a, r);
}
template <class Step>
void backward_rows(const RecurrentStepBackward& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) Step::backward(a, r);
}

}  // namespace

namespace CANN_HOST_ISA {

extern const RecurrentKernels recurrent_kernels = {
    .forward = {&forward_rows<Lstm>, &forward_rows<Gru>, &forward_rows<Plain<Tanh>>,
                &forward_rows<Plain<Relu>>},
    .backward = {&backward_rows<Lstm>, &backward_rows<Gru>, &backward_rows<Plain<Tanh>>,
                 &backward_rows<Plain<Relu>>},
};

}  // namespace CANN_HOST_ISA
}  // namespace cann_host::kernels
