// Products of rows that are quantized on the way, and what comes of them in floating point.
#include "cann_host/opapi/quantized.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;

/// Rows as int8 and their scales [rows or 1, 1].
struct QuantizedRows {
  at::Tensor numbers, scales;

  QuantizedRows(const at::Tensor& x, const Optional& scale, const Optional& smooth, std::string_view mode) {
    TORCH_CHECK(mode == "pertoken" || mode == "pertensor", "xQuantMode is '", mode,
                "'; known: pertoken, pertensor");
    TORCH_CHECK(scale.has_value() || mode == "pertoken", "without xScale xQuantMode must be pertoken");
    const auto values = smooth.has_value() ? x.to(at::kFloat) * smooth->to(at::kFloat) : x.to(at::kFloat);
    numbers = at::empty(values.sizes(), at::kChar);
    if (scale.has_value()) {
      scales = scale->to(at::kFloat).reshape({-1, 1});
      store_rounded(values / scales, at::kChar, numbers);
    } else {
      scales = at::empty({values.size(0)}, at::kFloat);
      quantize_rows(values, numbers, scales);
      scales = scales.unsqueeze(1);
    }
  }
  QuantizedRows(at::Tensor n, at::Tensor s) : numbers(std::move(n)), scales(std::move(s)) {}

  QuantizedRows narrow(int64_t begin, int64_t count) const {
    return {numbers.narrow(0, begin, count), scales.size(0) == 1 ? scales : scales.narrow(0, begin, count)};
  }
  /// An int64 scale holds those of the rows already.
  at::Tensor times(const at::Tensor& weight, const at::Tensor& scale, bool transposed) const {
    const auto product = int_product(numbers, transposed ? weight.t() : weight).to(at::kFloat);
    const auto result = product * plain_scale(scale);
    return scale.scalar_type() == at::kLong ? result : result * scales;
  }
};

void refuse_bias_and_offset(const Optional& bias, const Optional& offset) {
  TORCH_CHECK(!bias.has_value() && !offset.has_value(),
              "bias and xOffset are not in CANN; pass null pointers");
}

}  // namespace

void DequantBias(const at::Tensor& x, const at::Tensor& weightScale, const Optional& activateScaleOptional,
                 const Optional& biasOptional, int64_t, at::Tensor& out) {
  const bool integer_bias = biasOptional.has_value() && biasOptional->scalar_type() == at::kInt;
  auto values = (integer_bias ? x.to(at::kLong) + *biasOptional : x).to(at::kFloat);
  values = values * weightScale.to(at::kFloat);
  if (activateScaleOptional.has_value()) values = values * activateScaleOptional->unsqueeze(1);
  if (biasOptional.has_value() && !integer_bias) values = values + biasOptional->to(at::kFloat);
  out.copy_(values);
}

void QuantMatmulDequant(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& weightScale,
                        const Optional& biasOptional, const Optional& xScaleOptional,
                        const Optional& xOffsetOptional, const Optional& smoothScaleOptional,
                        std::string_view xQuantMode, bool transposeWeight, at::Tensor& out) {
  refuse_bias_and_offset(biasOptional, xOffsetOptional);
  const QuantizedRows rows(x, xScaleOptional, smoothScaleOptional, xQuantMode);
  out.copy_(rows.times(weight, weightScale, transposeWeight));
}

void QuantGroupedMatmulDequant(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& weightScale,
                               const at::Tensor& groupList, const Optional& biasOptional,
                               const Optional& xScaleOptional, const Optional& xOffsetOptional,
                               const Optional& smoothScaleOptional, std::string_view xQuantMode,
                               bool transposeWeight, at::Tensor& out) {
  refuse_bias_and_offset(biasOptional, xOffsetOptional);
  const QuantizedRows rows(x, xScaleOptional, smoothScaleOptional, xQuantMode);
  TORCH_CHECK(groupList.dim() == 1 && groupList.size(0) == weight.size(0), "groupList has ",
              groupList.numel(), " numbers for ", weight.size(0), " weights");
  out.zero_();  // rows behind the last group
  int64_t begin = 0;
  for (int64_t i = 0; i < weight.size(0); ++i) {
    const int64_t end = groupList[i].item<int64_t>();
    TORCH_CHECK(begin <= end && end <= x.size(0), "groupList: group ", i, " goes from ", begin, " to ", end,
                " of ", x.size(0), " rows");
    const auto part = rows.narrow(begin, end - begin).times(weight[i], weightScale[i], transposeWeight);
    out.narrow(0, begin, end - begin).copy_(part);
    begin = end;
  }
}

}  // namespace cann_host::host
