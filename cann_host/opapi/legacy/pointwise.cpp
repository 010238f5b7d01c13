// Element by element: results have the broadcast shape of the inputs.
#include <cmath>

#include "cann_host/opapi/legacy/operators.h"

namespace cann_host::legacy {
namespace {

using Unary = at::Tensor (*)(const at::Tensor&);
using Binary = at::Tensor (*)(const at::Tensor&, const at::Tensor&);

template <Unary f>
void unary(const Arguments& a) {
  a.set(0, f(a.wide(0)));
}

template <Binary f>
void binary(const Arguments& a) {
  a.set(0, f(a.wide(0), a.wide(1)));
}

/// log_base(scale * x + shift); a base of -1 is e.
void log(const Arguments& a) {
  const float base = a.attribute<float>("base", -1), scale = a.attribute<float>("scale", 1),
              shift = a.attribute<float>("shift", 0);
  auto value = (a.wide(0) * scale + shift).log();
  if (base > 0) value = value / std::log(base);
  a.set(0, value);
}

void log_add_exp(const Arguments& a) {
  const bool two = a.attribute<float>("base", -1) == 2;
  a.set(0, two ? at::logaddexp2(a.wide(0), a.wide(1)) : at::logaddexp(a.wide(0), a.wide(1)));
}

void clip(const Arguments& a) { a.set(0, a.wide(0).clamp(a.wide(1), a.wide(2))); }

at::Tensor quotient(const at::Tensor& x, const at::Tensor& y) { return at::div(x, y, "floor"); }

}  // namespace

Table pointwise_operators() {
  return {
      {"Abs", unary<at::abs>},
      {"Acos", unary<at::acos>},
      {"Acosh", unary<at::acosh>},
      {"Asin", unary<at::asin>},
      {"Asinh", unary<at::asinh>},
      {"Atan", unary<at::atan>},
      {"Atanh", unary<at::atanh>},
      {"Ceil", unary<at::ceil>},
      {"Cos", unary<at::cos>},
      {"Cosh", unary<at::cosh>},
      {"Erf", unary<at::erf>},
      {"Erfc", unary<at::erfc>},
      {"Erfinv", unary<at::erfinv>},
      {"Exp", unary<at::exp>},
      {"Expm1", unary<at::expm1>},
      {"Floor", unary<at::floor>},
      {"Invert", unary<at::bitwise_not>},
      {"IsFinite", unary<at::isfinite>},
      {"Log1p", unary<at::log1p>},
      {"LogicalNot", unary<at::logical_not>},
      {"Neg", unary<at::neg>},
      {"Reciprocal", unary<at::reciprocal>},
      {"Rsqrt", unary<at::rsqrt>},
      {"Sign", unary<at::sign>},
      {"Sin", unary<at::sin>},
      {"Sinh", unary<at::sinh>},
      {"Sqrt", unary<at::sqrt>},
      {"Square", unary<at::square>},
      {"Tan", unary<at::tan>},
      {"Tanh", unary<at::tanh>},
      {"Trunc", unary<at::trunc>},
      {"Round", [](const Arguments& a) { a.set(0, a.wide(0).round(a.attribute<int64_t>("decimals", 0))); }},
      {"Log", log},
      {"LogAddExp", log_add_exp},
      {"Atan2", binary<at::atan2>},
      {"Maximum", binary<at::maximum>},
      {"Minimum", binary<at::minimum>},
      {"FloorDiv", binary<quotient>},
      {"FloorMod", [](const Arguments& a) { a.set(0, at::remainder(a.wide(0), a.wide(1))); }},
      {"Mod", [](const Arguments& a) { a.set(0, at::fmod(a.wide(0), a.wide(1))); }},
      {"Pow", [](const Arguments& a) { a.set(0, at::pow(a.wide(0), a.wide(1))); }},
      {"Xlogy", [](const Arguments& a) { a.set(0, at::xlogy(a.wide(0), a.wide(1))); }},
      {"Add", [](const Arguments& a) { a.set(0, a.wide(0) + a.wide(1)); }},
      {"AxpyV2", [](const Arguments& a) { a.set(0, a.wide(0) + a.wide(1) * a.wide(2)); }},
      {"Sub", [](const Arguments& a) { a.set(0, a.wide(0) - a.wide(1)); }},
      {"Mul", [](const Arguments& a) { a.set(0, a.wide(0) * a.wide(1)); }},
      {"RealDiv", [](const Arguments& a) { a.set(0, a.wide(0) / a.wide(1)); }},
      {"Div", [](const Arguments& a) { a.set(0, a.wide(0) / a.wide(1)); }},
      {"Equal", [](const Arguments& a) { a.set(0, a[0] == a[1]); }},
      {"NotEqual", [](const Arguments& a) { a.set(0, a[0] != a[1]); }},
      {"Greater", [](const Arguments& a) { a.set(0, a[0] > a[1]); }},
      {"GreaterEqual", [](const Arguments& a) { a.set(0, a[0] >= a[1]); }},
      {"Less", [](const Arguments& a) { a.set(0, a[0] < a[1]); }},
      {"LessEqual", [](const Arguments& a) { a.set(0, a[0] <= a[1]); }},
      {"TensorEqual", [](const Arguments& a) { a.set(0, at::scalar_tensor(a[0].equal(a[1]), at::kBool)); }},
      {"LogicalAnd", binary<at::logical_and>},
      {"LogicalOr", binary<at::logical_or>},
      {"BitwiseAnd", [](const Arguments& a) { a.set(0, at::bitwise_and(a[0], a[1])); }},
      {"BitwiseOr", [](const Arguments& a) { a.set(0, at::bitwise_or(a[0], a[1])); }},
      {"BitwiseXor", [](const Arguments& a) { a.set(0, at::bitwise_xor(a[0], a[1])); }},
      {"LeftShift", [](const Arguments& a) { a.set(0, at::bitwise_left_shift(a[0], a[1])); }},
      {"RightShift", [](const Arguments& a) { a.set(0, at::bitwise_right_shift(a[0], a[1])); }},
      {"Lerp", [](const Arguments& a) { a.set(0, a.wide(0) + a.wide(2) * (a.wide(1) - a.wide(0))); }},
      {"Addcmul", [](const Arguments& a) { a.set(0, a.wide(0) + a.wide(3) * a.wide(1) * a.wide(2)); }},
      {"Addcdiv", [](const Arguments& a) { a.set(0, a.wide(0) + a.wide(3) * a.wide(1) / a.wide(2)); }},
      {"ClipByValue", clip},
      {"ClipByValueV2", clip},
      {"MaskedFill",
       [](const Arguments& a) { a.set(0, at::where(a[1].to(at::kBool), a[2].to(a[0].dtype()), a[0])); }},
      {"Identity", [](const Arguments& a) { a.set(0, a[0]); }},
      {"TransData", [](const Arguments& a) { a.set(0, a[0]); }},
      {"Cast", [](const Arguments& a) { a.set(0, a[0]); }},
      {"OnesLike", [](const Arguments& a) { a.set(0, at::ones_like(a[0])); }},
      {"ZerosLike", [](const Arguments& a) { a.set(0, at::zeros_like(a[0])); }},
      {"Fill", [](const Arguments& a) { a.set(0, a[1].reshape({})); }},
  };
}

}  // namespace cann_host::legacy
