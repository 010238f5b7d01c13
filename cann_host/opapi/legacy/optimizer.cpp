// Steps of optimizers for one parameter. The first three inputs are the parameter and the running means of
// its gradient and of the gradient's square, which are the outputs, too.
#include <array>
#include <cmath>

#include "cann_host/opapi/legacy/operators.h"

namespace cann_host::legacy {
namespace {

struct Moments {
  at::Tensor mean, square;

  Moments(const Arguments& a, const at::Tensor& slope, double beta1, double beta2)
      : mean(a.wide(1) + (1 - beta1) * (slope - a.wide(1))),
        square(a.wide(2) + (1 - beta2) * (slope * slope - a.wide(2))) {}
};

void write(const Arguments& a, const at::Tensor& parameter, const Moments& moments) {
  a.set(0, parameter);
  a.set(1, moments.mean);
  a.set(2, moments.square);
}

template <size_t count>
std::array<double, count> numbers(const Arguments& a, size_t first) {
  std::array<double, count> values{};
  for (size_t i = 0; i < count; ++i) values[i] = a.number(first + i).toDouble();
  return values;
}

/// The powers of the betas are those up to this step.
void adam(const Arguments& a) {
  const auto [power1, power2, rate, beta1, beta2, epsilon] = numbers<6>(a, 3);
  const auto slope = a.wide(9);
  const Moments moments(a, slope, beta1, beta2);
  const auto towards = a.flag("use_nesterov") ? moments.mean * beta1 + (1 - beta1) * slope : moments.mean;
  const double step = rate * std::sqrt(1 - power2) / (1 - power1);
  write(a, a.wide(0) - step * towards / (epsilon + moments.square.sqrt()), moments);
}

/// The powers of the betas are those up to the step before.
void adam_w(const Arguments& a) {
  const auto [power1, power2, rate, decay, beta1, beta2, epsilon] = numbers<7>(a, 3);
  TORCH_CHECK(!a.flag("amsgrad"), "ApplyAdamW supports amsgrad = false only");
  const auto slope = a.flag("maximize") ? -a.wide(10) : a.wide(10);
  const Moments moments(a, slope, beta1, beta2);
  const auto denominator = (moments.square / (1 - power2 * beta2)).sqrt() + epsilon;
  write(a, a.wide(0) * (1 - rate * decay) - rate / (1 - power1 * beta1) * moments.mean / denominator,
        moments);
}

/// Without correction of the means' bias. "adam" scales gradients down to a norm; "mbart_adam" may have a
/// step of its own.
void adam_v2(const Arguments& a) {
  const auto [rate, beta1, beta2, epsilon] = numbers<4>(a, 3);
  const auto [most, norm, decay] = numbers<3>(a, 8);
  const bool scales = a.attribute<std::string>("adam_mode", "adam") == "adam";
  auto slope = a.wide(7);
  if (scales && most > 0 && norm > most) slope = slope * (most / norm);
  const double step = !scales && a.has(11) ? a.number(11).toDouble() : rate;
  const Moments moments(a, slope, beta1, beta2);
  const auto weight = a.wide(0);
  write(a, weight - step * (moments.mean / (moments.square.sqrt() + epsilon)) - rate * decay * weight,
        moments);
}

}  // namespace

Table optimizer_operators() {
  return {{"ApplyAdamD", adam}, {"ApplyAdamW", adam_w}, {"ApplyAdamV2", adam_v2}};
}

}  // namespace cann_host::legacy
