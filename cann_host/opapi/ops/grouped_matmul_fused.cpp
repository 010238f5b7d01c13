// Products of groups of rows, and what is done with them: gradients of weights added up, rows put back to
// their tokens, activation and quantization.
#include "cann_host/opapi/groups.h"
#include "cann_host/opapi/quantized.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;

/// Rows of int8 by an int8 matrix, times a scale a row and a scale a column.
struct QuantizedRows {
  const at::Tensor &x, &scale;

  at::Tensor times(const Group& group, const at::Tensor& matrix, const at::Tensor& column_scale) const {
    const auto product = int_product(x.narrow(0, group.begin, group.length()), matrix).to(at::kFloat);
    return product * column_scale.to(at::kFloat) *
           scale.narrow(0, group.begin, group.length()).to(at::kFloat).unsqueeze(1);
  }
};

void check_groups(const std::vector<Group>& groups, int64_t weights, int64_t rows) {
  TORCH_CHECK(static_cast<int64_t>(groups.size()) == weights, "groupList has ", groups.size(),
              " numbers for ", weights, " weights");
  TORCH_CHECK(groups.empty() || groups.back().end <= rows, "groupList ends at ", groups.back().end, " of ",
              rows, " rows");
}

/// silu(a) * b of the halves of a product, quantized; rows of no group come out as zeros.
void swiglu_quantized(const QuantizedRows& rows, const at::Tensor& weight, const at::Tensor& weight_scale,
                      const std::vector<Group>& groups, const at::Tensor& out, const at::Tensor& out_scale) {
  check_groups(groups, weight.size(0), rows.x.size(0));
  out.zero_();
  out_scale.zero_();
  for (const auto& group : groups) {
    if (group.length() == 0) continue;
    const auto halves = rows.times(group, weight[group.number], weight_scale[group.number]).chunk(2, -1);
    quantize_rows(at::silu(halves[0]) * halves[1], out.narrow(0, group.begin, group.length()),
                  out_scale.narrow(0, group.begin, group.length()));
  }
}

}  // namespace

void GroupedMatmulAddV2(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& groupList,
                        at::Tensor& yRef, bool transposeX, bool transposeWeight, int64_t groupType,
                        int64_t groupListType) {
  TORCH_CHECK(transposeX && !transposeWeight && groupType == 2, "transposeX is ", transposeX,
              ", transposeWeight ", transposeWeight, ", groupType ", groupType,
              "; CANN has true, false and 2 (groups of the inner dimension)");
  TORCH_CHECK(x.size(0) == weight.size(0), "x has ", x.size(0), " rows, weight ", weight.size(0));
  const auto groups = groups_of(groupList, groupListType);
  check_groups(groups, groupList.size(0), x.size(0));
  const auto sums = yRef.view({groupList.size(0), x.size(1), weight.size(1)});
  for (const auto& group : groups) {
    const auto part = [&](const at::Tensor& t) {
      return t.narrow(0, group.begin, group.length()).to(at::kFloat);
    };
    sums[group.number].addmm_(part(x).t(), part(weight));
  }
}

void GroupedMatmulFinalizeRoutingV3(const at::Tensor& x, const at::Tensor& w, const Optional& scaleOptional,
                                    const Optional& biasOptional, const Optional& offsetOptional,
                                    const Optional& antiquantScaleOptional,
                                    const Optional& antiquantOffsetOptional,
                                    const Optional& pertokenScaleOptional, const at::Tensor& groupList,
                                    const Optional& sharedInputOptional, const Optional& logitOptional,
                                    const Optional& rowIndexOptional, int64_t, float sharedInputWeight,
                                    int64_t sharedInputOffset, bool transposeX, bool transposeW,
                                    int64_t groupListType, at::OptionalIntArrayRef, at::Tensor& out) {
  TORCH_CHECK(!biasOptional.has_value() && !offsetOptional.has_value() &&
                  !antiquantScaleOptional.has_value() && !antiquantOffsetOptional.has_value() && !transposeX,
              "bias, offset, antiquantization and transposeX are not in cann_host");
  TORCH_CHECK(scaleOptional.has_value() && pertokenScaleOptional.has_value() && logitOptional.has_value() &&
                  rowIndexOptional.has_value(),
              "scale, pertokenScale, logit and rowIndex are needed");
  const auto groups = groups_of(groupList, groupListType);
  check_groups(groups, w.size(0), x.size(0));
  out.zero_();
  if (sharedInputOptional.has_value()) {
    out.narrow(0, sharedInputOffset, sharedInputOptional->size(0))
        .copy_(sharedInputOptional->to(at::kFloat) * sharedInputWeight);
  }
  const QuantizedRows rows{x, *pertokenScaleOptional};
  for (const auto& group : groups) {
    if (group.length() == 0) continue;
    const auto matrix = transposeW ? w[group.number].t() : w[group.number];
    const auto product = rows.times(group, matrix, (*scaleOptional)[group.number]);
    const auto part = [&](const at::Tensor& t) { return t.narrow(0, group.begin, group.length()); };
    out.index_add_(0, part(*rowIndexOptional), product * part(*logitOptional).unsqueeze(1));
  }
}

void GroupedMatmulSwigluQuantWeightNZ(const at::Tensor& x, const at::Tensor& weight,
                                      const Optional& biasOptional, const Optional& offsetOptional,
                                      const at::Tensor& weightScale, const at::Tensor& xScale,
                                      const at::Tensor& groupList, at::Tensor& quantOutput,
                                      at::Tensor& quantScaleOutput, const Optional& quantOffsetOutput) {
  TORCH_CHECK(!biasOptional.has_value() && !offsetOptional.has_value(),
              "bias and offset are not in CANN; pass null pointers");
  swiglu_quantized({x, xScale}, weight, weightScale, groups_of(groupList, 0), quantOutput, quantScaleOutput);
  if (quantOffsetOutput.has_value()) quantOffsetOutput->zero_();
}

void GroupedMatmulSwigluQuantV2(const at::Tensor& x, const std::vector<at::Tensor>& weight,
                                const std::vector<at::Tensor>& weightScale,
                                const std::vector<at::Tensor>& weightAssistMatrixOptional,
                                const Optional& biasOptional, const at::Tensor& xScale,
                                const Optional& smoothScaleOptional, const at::Tensor& groupList,
                                int64_t dequantMode, int64_t dequantDtype, int64_t quantMode,
                                int64_t groupListType, at::OptionalIntArrayRef, at::Tensor& output,
                                at::Tensor& outputScale) {
  TORCH_CHECK(
      weightAssistMatrixOptional.empty() && !biasOptional.has_value() && !smoothScaleOptional.has_value() &&
          dequantMode == 0 && dequantDtype == 0 && quantMode == 0,
      "weightAssistMatrix, bias, smoothScale and other modes than 0 (int8, in float32) are not in cann_host");
  swiglu_quantized({x, xScale}, weight[0], weightScale[0], groups_of(groupList, groupListType), output,
                   outputScale);
}

}  // namespace cann_host::host
