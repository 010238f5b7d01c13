// Two layers of a feed-forward network with an activation between, plain, with int8 weights, or all of it in
// int8; tokens by expert.
#include "cann_host/opapi/quantized.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;

/// The part of a parameter that belongs to one expert; parameters without experts belong to all.
Optional of_expert(const Optional& parameter, int64_t expert, bool by_expert) {
  if (!by_expert || !parameter.has_value()) return parameter;
  return parameter->select(0, expert);
}

/// One of the two layers, for one expert.
struct Layer {
  at::Tensor weight;
  Optional bias, dequant_scale, scale, offset;  // scale and offset: of an int8 weight

  /// float32 of x @ weight + bias.
  at::Tensor run(const at::Tensor& x) const {
    at::Tensor y;
    if (x.scalar_type() == at::kChar) {
      y = int_product(x, weight);
      if (bias.has_value()) y = y + *bias;
      return y.to(at::kFloat) * plain_scale(*dequant_scale);
    }
    if (weight.scalar_type() == at::kChar) {
      auto wide = weight.to(at::kFloat);
      if (offset.has_value()) wide = wide + offset->to(at::kFloat);
      y = at::matmul(x.to(at::kFloat), wide * scale->to(at::kFloat));
    } else {
      y = at::matmul(exact(x.to(weight.scalar_type())), exact(weight)).to(at::kFloat);
    }
    return bias.has_value() ? y + bias->to(at::kFloat) : y;
  }
};

at::Tensor activated(const at::Tensor& x, std::string_view activation) {
  const auto gated = [&](const auto& gate) {
    const auto halves = x.chunk(2, -1);
    return halves[0] * gate(halves[1]);
  };
  if (activation == "relu") return x.relu();
  if (activation == "gelu") return at::gelu(x);
  if (activation == "fastgelu") return x * (x * 1.702).sigmoid();
  if (activation == "silu") return at::silu(x);
  if (activation == "geglu") return gated([](const at::Tensor& g) { return at::gelu(g); });
  if (activation == "swiglu") return gated([](const at::Tensor& g) { return at::silu(g); });
  if (activation == "reglu") return gated([](const at::Tensor& g) { return g.relu(); });
  TORCH_CHECK(false, "activation is '", activation,
              "'; known: relu, gelu, fastgelu, silu, geglu, swiglu, reglu");
}

/// [begin, end) of each expert's tokens.
std::vector<std::pair<int64_t, int64_t>> ranges(at::OptionalIntArrayRef tokens, bool are_ends, int64_t rows) {
  std::vector<std::pair<int64_t, int64_t>> result;
  int64_t begin = 0;
  for (const int64_t number : tokens.value_or(at::IntArrayRef())) {
    const int64_t end = are_ends ? number : begin + number;
    TORCH_CHECK(begin <= end && end <= rows, "expertTokens give tokens ", begin, " to ", end, " of ", rows);
    result.emplace_back(begin, end);
    begin = end;
  }
  if (result.empty()) result.emplace_back(0, rows);
  TORCH_CHECK(result.back().second == rows, "expertTokens end at token ", result.back().second, " of ", rows);
  return result;
}

}  // namespace

void FFNV2(const at::Tensor& x, const at::Tensor& weight1, const at::Tensor& weight2,
           at::OptionalIntArrayRef expertTokensOptional, const Optional& bias1Optional,
           const Optional& bias2Optional, const Optional& scaleOptional, const Optional& offsetOptional,
           const Optional& deqScale1Optional, const Optional& deqScale2Optional,
           const Optional& antiquantScale1Optional, const Optional& antiquantScale2Optional,
           const Optional& antiquantOffset1Optional, const Optional& antiquantOffset2Optional,
           std::string_view activation, int64_t, bool tokensIndexFlag, at::Tensor& y) {
  const bool by_expert = weight1.dim() == 3;
  const auto tokens = x.flatten(0, -2);
  auto out = at::empty({tokens.size(0), weight2.size(-1)}, y.options());
  const auto parts = ranges(expertTokensOptional, tokensIndexFlag, tokens.size(0));
  TORCH_CHECK(!by_expert || static_cast<int64_t>(parts.size()) == weight1.size(0), "expertTokens have ",
              parts.size(), " numbers for ", weight1.size(0), " experts");
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto [begin, end] = parts[i];
    if (begin == end) continue;
    const auto expert = static_cast<int64_t>(i);
    const auto own = [&](const Optional& parameter) { return of_expert(parameter, expert, by_expert); };
    const Layer first{*own(weight1), own(bias1Optional), own(deqScale1Optional), own(antiquantScale1Optional),
                      own(antiquantOffset1Optional)};
    const Layer second{*own(weight2), own(bias2Optional), own(deqScale2Optional),
                       own(antiquantScale2Optional), own(antiquantOffset2Optional)};
    auto hidden = activated(first.run(tokens.slice(0, begin, end)), activation);
    if (x.scalar_type() == at::kChar) {
      hidden = hidden * *own(scaleOptional);
      if (offsetOptional.has_value()) hidden = hidden + *own(offsetOptional);
      hidden = hidden.round().clamp(-128, 127).to(at::kChar);
    } else if (weight1.scalar_type() != at::kChar) {
      hidden = hidden.to(x.scalar_type());
    }
    out.slice(0, begin, end).copy_(second.run(hidden));
  }
  y.copy_(out.view(y.sizes()));
}

}  // namespace cann_host::host
