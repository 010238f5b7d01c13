// Recurrent layers over [T, B, …], with the gates that their gradients read. gate_order says how the gates
// lie in the weights' columns: i input, f forget, j (or c) candidate, o output; r reset, z update, h
// candidate.
#include <array>
#include <string>
#include <utility>

#include "cann_host/opapi/legacy/operators.h"

namespace cann_host::legacy {
namespace {

using Tensors = std::vector<at::Tensor>;

/// [B, …] of a state that may have a leading dimension of one layer.
at::Tensor state(const Arguments& a, size_t i) {
  const auto value = a.wide(i);
  return value.dim() == 3 ? value.squeeze(0) : value;
}

/// [T, B, …]; a cell's has no T.
at::Tensor sequence(const Arguments& a, size_t i) {
  const auto value = a.wide(i);
  return value.dim() == 2 ? value.unsqueeze(0) : value;
}

struct Gates {
  const std::string order;

  explicit Gates(const Arguments& a) : order(a.attribute<std::string>("gate_order", "ifjo")) {
    TORCH_CHECK(
        order.size() == 4 && column('i') >= 0 && column('j') >= 0 && column('f') >= 0 && column('o') >= 0,
        "gate_order is ", order, "; i, f, j (or c) and o in some order were expected");
  }
  int column(char gate) const {
    const auto found = order.find(gate);
    return static_cast<int>(found != std::string::npos || gate != 'j' ? found : order.find('c'));
  }
  at::Tensor joined(const at::Tensor& i, const at::Tensor& j, const at::Tensor& f,
                    const at::Tensor& o) const {
    Tensors parts(4);
    const std::pair<char, const at::Tensor*> gates[] = {{'i', &i}, {'j', &j}, {'f', &f}, {'o', &o}};
    for (const auto& [gate, value] : gates) parts[static_cast<size_t>(column(gate))] = *value;
    return at::cat(parts, -1);
  }
};

/// Weights of x, then of h: one matrix [I + H, 4 H] (DynamicRNN) or two (DynamicRNNV2).
struct LstmWeights {
  at::Tensor x, h;
  size_t next;  // input behind the weights

  LstmWeights(const Arguments& a, size_t first, int64_t input, bool apart)
      : x(apart ? a.wide(first) : a.wide(first).narrow(0, 0, input)),
        h(apart ? a.wide(first + 1) : a.wide(first).narrow(0, input, a.wide(first).size(0) - input)),
        next(first + (apart ? 2 : 1)) {}
};

/// Inputs: x, weights, bias, mask, h, c. Outputs: y, h, c, i, j, f, o, tanh(c). Where the mask [T, B, H] is
/// 0, a sequence has ended: its state stays and its y is 0.
void lstm(const Arguments& a, bool apart) {
  const Gates gates(a);
  const auto x = a.wide(0);
  const LstmWeights w(a, 1, x.size(2), apart);
  const bool masked = a.has(w.next + 1),
             backward = a.attribute<std::string>("direction", "") == "REDIRECTIONAL";
  const auto mask = masked ? a.wide(w.next + 1) : at::Tensor();
  TORCH_CHECK(!masked || mask.dim() == 3,
              "cann_host reads the lengths of sequences as a mask [T, B, H], got ",
              masked ? mask.sizes() : x.sizes());
  const auto bias = a.has(w.next) ? a.wide(w.next) : at::zeros({w.h.size(1)});
  auto h = state(a, w.next + 2), c = state(a, w.next + 3);
  const auto length = static_cast<size_t>(x.size(0));
  std::array<Tensors, 8> steps;  // y, h, c, i, j, f, o, tanh(c)
  for (auto& values : steps) values.resize(length);
  for (size_t step = 0; step < length; ++step) {
    const size_t t = backward ? length - 1 - step : step;
    const auto now = static_cast<int64_t>(t);
    const auto z = (x[now].matmul(w.x) + h.matmul(w.h) + bias).chunk(4, -1);
    const auto of = [&](char gate) { return z[static_cast<size_t>(gates.column(gate))]; };
    const auto i = of('i').sigmoid(), j = of('j').tanh(), f = of('f').sigmoid(), o = of('o').sigmoid();
    auto next_c = f * c + i * j;
    const auto tanh_c = next_c.tanh();
    auto next_h = o * tanh_c, y = next_h;
    if (masked) {
      const auto goes_on = mask[now];
      next_c = at::lerp(c, next_c, goes_on);
      next_h = at::lerp(h, next_h, goes_on);
      y = y * goes_on;
    }
    h = next_h, c = next_c;
    const at::Tensor* values[] = {&y, &h, &c, &i, &j, &f, &o, &tanh_c};
    for (size_t s = 0; s < steps.size(); ++s) steps[s][t] = *values[s];
  }
  for (size_t s = 0; s < steps.size(); ++s) a.set(s, at::stack(steps[s]));
}

/// Inputs: x, weights, (bias,) y, first h and c, h, c, gradients of y, h and c, i, j, f, o, tanh(c). Outputs:
/// gradients of the weights and the bias, of x, h and c.
void lstm_grad(const Arguments& a, bool apart) {
  const Gates gates(a);
  TORCH_CHECK(a.attribute<std::string>("direction", "") != "REDIRECTIONAL",
              "cann_host has gradients of recurrent layers in the order of time only");
  const auto x = sequence(a, 0);
  const LstmWeights w(a, 1, x.size(2), apart);
  const size_t n = w.next + (apart ? 1 : 2);  // behind y
  const auto first_h = state(a, n), first_c = state(a, n + 1);
  const auto h = sequence(a, n + 2), c = sequence(a, n + 3), dy = sequence(a, n + 4);
  auto dh = state(a, n + 5), dc = state(a, n + 6);
  const auto i = sequence(a, n + 7), j = sequence(a, n + 8), f = sequence(a, n + 9), o = sequence(a, n + 10),
             tanh_c = sequence(a, n + 11);
  auto dwx = at::zeros_like(w.x), dwh = at::zeros_like(w.h), db = at::zeros({w.h.size(1)});
  Tensors dx(static_cast<size_t>(x.size(0)));
  for (int64_t t = x.size(0) - 1; t >= 0; --t) {
    const auto before_h = t ? h[t - 1] : first_h, before_c = t ? c[t - 1] : first_c;
    dh = dh + dy[t];
    dc = dc + dh * o[t] * (1 - tanh_c[t] * tanh_c[t]);
    const auto dz = gates.joined(dc * j[t] * i[t] * (1 - i[t]), dc * i[t] * (1 - j[t] * j[t]),
                                 dc * before_c * f[t] * (1 - f[t]), dh * tanh_c[t] * o[t] * (1 - o[t]));
    dwx += x[t].t().matmul(dz);
    dwh += before_h.t().matmul(dz);
    db += dz.sum(0);
    dx[static_cast<size_t>(t)] = dz.matmul(w.x.t());
    dh = dz.matmul(w.h.t());
    dc = dc * f[t];
  }
  size_t out = 0;
  if (apart) {
    a.set(out++, dwx);
    a.set(out++, dwh);
  } else {
    a.set(out++, at::cat({dwx, dwh}));
  }
  a.set(out++, db);
  a.set(out++, at::stack(dx));
  a.set(out++, dh);
  a.set(out, dc);
}

void check_gru(const Arguments& a) {
  const auto order = a.attribute<std::string>("gate_order", "zrh");
  TORCH_CHECK(order == "rzh" && a.attribute<bool>("reset_after", true),
              "cann_host has gated recurrent units with gate_order rzh and reset_after only, got ", order);
}

/// Inputs: x, weights of x and h, biases of both, lengths (none), h. Outputs: y, h, update, reset, candidate,
/// and what the reset gate multiplies.
void gru(const Arguments& a) {
  check_gru(a);
  TORCH_CHECK(!a.has(5), "cann_host has no recurrent layers over sequences of different lengths");
  const auto x = a.wide(0).matmul(a.wide(1)) + a.wide(3), weight = a.wide(2), bias = a.wide(4);
  auto h = state(a, 6);
  std::array<Tensors, 5> steps;  // h, update, reset, candidate, hidden
  for (const auto& now : x.unbind(0)) {
    const auto of_x = now.chunk(3, -1), of_h = (h.matmul(weight) + bias).chunk(3, -1);
    const auto reset = (of_x[0] + of_h[0]).sigmoid(), update = (of_x[1] + of_h[1]).sigmoid();
    const auto candidate = (of_x[2] + reset * of_h[2]).tanh();
    h = (1 - update) * candidate + update * h;
    const at::Tensor* values[] = {&h, &update, &reset, &candidate, &of_h[2]};
    for (size_t s = 0; s < steps.size(); ++s) steps[s].push_back(*values[s]);
  }
  a.set(0, at::stack(steps[0]));
  for (size_t s = 0; s < steps.size(); ++s) a.set(s + 1, at::stack(steps[s]));
}

/// Inputs: x, weights of x and h, y, first h, h, gradients of y and h, update, reset, candidate, hidden.
/// Outputs: gradients of both weights and biases, of x and h.
void gru_grad(const Arguments& a) {
  check_gru(a);
  const auto x = a.wide(0), wx = a.wide(1), wh = a.wide(2), first = state(a, 4), h = a.wide(5),
             dy = a.wide(6);
  const auto update = a.wide(8), reset = a.wide(9), candidate = a.wide(10), hidden = a.wide(11);
  auto dh = state(a, 7);
  auto dwx = at::zeros_like(wx), dwh = at::zeros_like(wh), dbx = at::zeros({wx.size(1)}),
       dbh = at::zeros_like(dbx);
  Tensors dx(static_cast<size_t>(x.size(0)));
  for (int64_t t = x.size(0) - 1; t >= 0; --t) {
    const auto before = t ? h[t - 1] : first;
    dh = dh + dy[t];
    const auto dn = dh * (1 - update[t]) * (1 - candidate[t] * candidate[t]);
    const auto dz = dh * (before - candidate[t]) * update[t] * (1 - update[t]);
    const auto dr = dn * hidden[t] * reset[t] * (1 - reset[t]);
    const auto of_x = at::cat({dr, dz, dn}, -1), of_h = at::cat({dr, dz, dn * reset[t]}, -1);
    dwx += x[t].t().matmul(of_x);
    dwh += before.t().matmul(of_h);
    dbx += of_x.sum(0);
    dbh += of_h.sum(0);
    dx[static_cast<size_t>(t)] = of_x.matmul(wx.t());
    dh = dh * update[t] + of_h.matmul(wh.t());
  }
  const at::Tensor outputs[] = {dwx, dwh, dbx, dbh, at::stack(dx), dh};
  for (size_t i = 0; i < std::size(outputs); ++i) a.set(i, outputs[i]);
}

}  // namespace

Table recurrent_operators() {
  return {
      {"DynamicRNN", [](const Arguments& a) { lstm(a, false); }},
      {"DynamicRNNV2", [](const Arguments& a) { lstm(a, true); }},
      {"DynamicRNNGrad", [](const Arguments& a) { lstm_grad(a, false); }},
      {"DynamicRNNV2Grad", [](const Arguments& a) { lstm_grad(a, true); }},
      {"DynamicGRUV2", gru},
      {"DynamicGRUV2Grad", gru_grad},
  };
}

}  // namespace cann_host::legacy
